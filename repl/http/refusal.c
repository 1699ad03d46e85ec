/* refusal.c - why a request is not answered: see ask.h. */

#include "kernels/json.h"
#include "kernels/utf8.h"
#include "repl/http/ask.h"

/* Makes text with parts of a request one line of UTF-8 that a terminal may show: each byte that is
 * not becomes '?'. */
static void make_clean(char *s)
{
    for (size_t i = 0, n = strlen(s); i < n;) {
        uint32_t cp;
        size_t k = utf8_char(s + i, n - i, &cp);
        if (k == 0 || utf8_is_hidden(cp))
            memset(s + i, '?', k ? k : 1);
        i += k ? k : 1;
    }
}

bool refuse(struct refusal *r, int status, const char *param, const char *fmt, ...)
{
    r->status = status;
    snprintf(r->param, sizeof r->param, "%s", param ? param : "");
    PRINT_ARGS(r->message, fmt);
    make_clean(r->param);
    make_clean(r->message);
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
