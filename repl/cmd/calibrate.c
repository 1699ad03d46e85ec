/* calibrate.c - /calibrate: which of the target's states the draft head was trained on. */
#include "repl/cmd/cmd.h"

/* The engine's thread scores the layers and answers with EV_CALIBRATION, so that Ctrl-C can stop
 * the work, which takes minutes with a large model on a CPU. */
bool cmd_calibrate(struct app *a, int argc, char **argv, const char *rest, struct sheet *out,
                   struct buf *json, struct err *e)
{
    (void)argc, (void)argv, (void)rest;
    const struct backend_info *info = backend_info(a->backend);
    if (info->draft_off)
        return err_set(e, ERR_USAGE, "there is nothing to calibrate: %s", info->draft_off);
    if (info->draft_kind && !info->capture[0])
        return err_set(e, ERR_USAGE, "there is nothing to calibrate: %s reads no captured layers",
                       info->draft_kind);
    if (!app_request(a, RQ_CALIBRATE, NULL, e))
        return false;
    if (json) {
        jput_open(json, '{');
        jput_kstr(json, "calibrating", info->draft_dir);
        jput_close(json, '}');
    } else {
        say_line(out, ST_DIM, "scoring the layers that the head reads; Ctrl-C stops");
    }
    return true;
}
