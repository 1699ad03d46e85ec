/* several.c - /n: several replies to one question, computed in one batch. */
#include <stdlib.h>
#include <string.h>

#include "repl/cmd/cmd.h"

/* The engine answers with EV_BATCH_* events; the conversation does not change. */
bool cmd_several(struct app *a, int argc, char **argv, const char *rest, struct sheet *out,
                 struct buf *json, struct err *e)
{
    (void)argc, (void)argv;
    char *end;
    long n = strtol(rest, &end, 10);
    const char *text = end + strspn(end, " \t");
    if (end == rest || (*end && !strchr(" \t", *end)) || n < 1 || n > 16 || !*text)
        return arg_expected("n", "takes a number from 1 to 16 and a question", e);
    if (!backend_fits(a->backend, text, e))
        return false;
    struct request rq = {.kind = RQ_SEVERAL, .count = (int)n, .text = xstrdup(text)};
    if (!backend_submit(a->backend, &rq, e))
        return false;
    if (json) {
        jput_open(json, '{');
        jput_kint(json, "replies", n);
        jput_close(json, '}');
    } else {
        say_line(out, ST_DIM, "%ld replies in one batch; Ctrl-C stops", n);
    }
    return true;
}
