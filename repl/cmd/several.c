/* several.c - /n: several replies to one question, computed in one batch. */

#include "repl/cmd/cmd.h"

/* The engine answers with EV_BATCH_* events; the conversation does not change. */
bool cmd_several(struct cmd_call *c)
{
    char *end;
    long n = strtol(c->rest, &end, 10);
    const char *text = end + strspn(end, " \t");
    if (end == c->rest || (*end && !strchr(" \t", *end)) || n < 1 || n > 16 || !*text)
        return arg_expected(c, "takes a number from 1 to 16 and a question");
    if (!backend_fits(c->app->backend, text, c->e))
        return false;
    struct request rq = {.kind = RQ_SEVERAL, .count = (int)n, .text = xstrdup(text)};
    if (!backend_submit(c->app->backend, &rq, c->e))
        return false;
    print_line(&c->to, ST_DIM, "%ld{replies} %s in one batch; Ctrl-C stops", n,
               n == 1 ? "reply" : "replies");
    return true;
}
