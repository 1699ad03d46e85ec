/* refusal.c - why a request is not answered: see ask.h. */
#include <stdio.h>

#include "kernels/json.h"
#include "repl/http/ask.h"

bool refuse(struct refusal *r, int status, const char *param, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    r->status = status;
    snprintf(r->param, sizeof r->param, "%s", param ? param : "");
    vsnprintf(r->message, sizeof r->message, fmt, ap);
    va_end(ap);
    return false;
}

void refusal_json(const struct refusal *r, struct buf *out)
{
    const char *type = r->status == 401   ? "AuthenticationError"
                       : r->status == 404 ? "NotFoundError"
                       : r->status == 429 || r->status == 503 ? "ServiceUnavailableError"
                       : r->status >= 500 ? "InternalServerError"
                                          : "BadRequestError";
    jput_open(out, '{');
    jput_kopen(out, "error", '{');
    jput_fields(out, "%s{message}%s{type}%s{param}%d{code}", r->message, type,
                r->param[0] ? r->param : NULL, r->status);
    jput_close(out, '}');
    jput_close(out, '}');
    buf_char(out, '\n');
}
