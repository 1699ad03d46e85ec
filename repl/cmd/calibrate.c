/* calibrate.c - /calibrate: which of the target's states the draft head was trained on. */
#include "repl/cmd/cmd.h"

/* The engine's thread scores the layers and answers with EV_CALIBRATION, so that Ctrl-C can stop
 * the work, which takes minutes with a large model on a CPU. */
bool cmd_calibrate(struct cmd_call *c)
{
    const struct backend_info *info = backend_info(c->app->backend);
    if (info->draft_off)
        return err_set(c->e, ERR_USAGE, "there is nothing to calibrate: %s", info->draft_off);
    if (info->draft_kind && !info->capture[0])
        return err_set(c->e, ERR_USAGE,
                       "there is nothing to calibrate: %s reads no captured layers",
                       info->draft_kind);
    if (!app_request(c->app, RQ_CALIBRATE, NULL, c->e))
        return false;
    print_line(&c->to, ST_DIM, "scoring the layers that the head reads; Ctrl-C "
               "stops\f%s{calibrating}", info->draft_dir);
    return true;
}
