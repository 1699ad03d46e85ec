/* prompts.c - see prompts.h. */
#include "repl/app/prompts.h"

#include "kernels/ascii.h"
#include "kernels/json_read.h"
#include "kernels/utf8.h"

#include <errno.h>
#include <sys/stat.h>

#include <jansson.h>

/* ---- numbers --------------------------------------------------------------------------------- */

static bool three_digits(const char *s)
{
    return ascii_digit(s[0]) && ascii_digit(s[1]) && ascii_digit(s[2]) && !ascii_digit(s[3]);
}

/* Reads the number at `s`, which begins with a digit, into out (digits and at most one point).
 * Returns its end; out is empty if it has no room. */
static const char *read_number(const char *s, char out[64])
{
    size_t n = 0;
    bool point = false, fits = true;
    for (;; s++) {
        bool comma = *s == ',' && !point && three_digits(s + 1);
        if (*s == '.' && !point && ascii_digit(s[1]))
            point = true;
        else if (!ascii_digit(*s) && !comma)
            break;
        if (comma)
            continue;
        fits &= n < 62;
        if (fits)
            out[n++] = *s;
    }
    out[fits ? n : 0] = '\0';
    return s;
}

/* Removes needless zeros. */
static void trim_zeros(char *number)
{
    if (strchr(number, '.')) {
        size_t n = strlen(number);
        while (number[n - 1] == '0')
            n--;
        n -= number[n - 1] == '.';
        number[n] = '\0';
    }
    size_t lead = 0;
    while (number[lead] == '0' && ascii_digit(number[lead + 1]))
        lead++;
    memmove(number, number + lead, strlen(number + lead) + 1);
}

static bool last_number(const char *text, char out[64])
{
    bool found = false;
    for (const char *s = text; *s;) {
        char one[64];
        if (!ascii_digit(*s)) {
            s++;
            continue;
        }
        bool minus = s > text && s[-1] == '-' && (s == text + 1 || !ascii_alnum(s[-2]));
        s = read_number(s, one);
        found = one[0] != '\0';
        if (!found)
            continue;
        trim_zeros(one);
        snprintf(out, 64, "%s%.62s", minus && strcmp(one, "0") != 0 ? "-" : "", one);
    }
    return found;
}

bool number_find(const char *text, char out[64])
{
    const char *mark = NULL;
    for (const char *at = text; (at = strstr(at, "####")); at += 4)
        mark = at + 4;
    return (mark && last_number(mark, out)) || last_number(text, out);
}

/* ---- one line -------------------------------------------------------------------------------- */

void prompt_free(struct prompt *p)
{
    past_free(p->past, p->n_past);
    FREE(p->text, p->system, p->answer);
    *p = (struct prompt){0};
}

static bool same_text(const char *a, const char *b)
{
    return a == b || (a && b && strcmp(a, b) == 0);
}

bool prompt_same_past(const struct prompt *a, const struct prompt *b)
{
    if (!same_text(a->system, b->system) || a->n_past != b->n_past)
        return false;
    for (int i = 0; i < a->n_past; i++)
        if (strcmp(a->past[i].user, b->past[i].user) != 0 ||
            strcmp(a->past[i].reply, b->past[i].reply) != 0)
            return false;
    return true;
}

/* The text of a message; NULL and *e: the message has none. */
static const char *content(json_t *message, int number, struct err *e)
{
    json_t *text = json_object_get(message, "content");
    const char *s = json_string_value(text);
    if (!s || !*s)
        err_set(e, ERR_USAGE, "message %d has no text; expected {\"role\": \"user\", \"content\": "
                              "\"...\"}", number);
    return s && *s ? s : NULL;
}

/* Reads messages: perhaps one of the system, then user and assistant alternately; the last is a
 * user's. */
static bool take_messages(struct prompt *p, json_t *all, struct err *e)
{
    int n = (int)json_array_size(all), at = 0;
    for (int i = 0; i < n; i++) {
        json_t *m = json_array_get(all, (size_t)i);
        const char *role = json_string_value(json_object_get(m, "role")), *text;
        if (!(text = content(m, i + 1, e)))
            return false;
        if (role && i == 0 && (!strcmp(role, "system") || !strcmp(role, "developer"))) {
            p->system = xstrdup(text);
            continue;
        }
        const char *expected = at++ % 2 ? "assistant" : "user";
        if (!role || strcmp(role, expected) != 0)
            return err_set(e, ERR_USAGE, "message %d has the role \"%.40s\"; expected %s", i + 1,
                           role ? role : "", expected);
        if (at % 2 == 0) {
            past_add(&p->past, &p->n_past, p->n_past + 1, p->text, text);
            DROP(p->text);
        } else {
            p->text = xstrdup(text);
        }
    }
    return p->text || err_set(e, ERR_USAGE, "the last message must be the user's");
}

static bool take_object(struct prompt *p, json_t *v, struct err *e)
{
    json_t *messages = json_object_get(v, "messages"), *text = json_object_get(v, "prompt");
    const char *answer = json_string_value(json_object_get(v, "answer"));
    char number[64];
    if (!text)
        text = json_object_get(v, "question");
    if (answer && number_find(answer, number))
        p->answer = xstrdup(number);
    if (messages && !text)
        return json_is_array(messages) ? take_messages(p, messages, e)
                                       : err_set(e, ERR_USAGE, "messages must be an array");
    if (!json_is_string(text) || messages)
        return err_set(e, ERR_USAGE, "expected a prompt, a question or messages: {\"prompt\": "
                                     "\"...\"}");
    p->text = xstrdup(json_string_value(text));
    return *p->text || err_set(e, ERR_USAGE, "the prompt is empty");
}

static bool take_line(struct prompt *p, const char *line, size_t n, bool json, struct err *e)
{
    if (!json) {
        p->text = xasprintf("%.*s", (int)(n - (n && line[n - 1] == '\r')), line);
        return strlen(p->text) + 1 >= n || err_set(e, ERR_USAGE, "the line has a NUL byte");
    }
    json_error_t why;
    json_t *v = json_parse(line, n, JSON_REJECT_DUPLICATES, &why);
    bool ok = v ? take_object(p, v, e) : err_set(e, ERR_USAGE, "%s", why.text);
    json_decref(v);
    return ok;
}

/* ---- the file -------------------------------------------------------------------------------- */

/* The next line that is not blank: 1, 0 or -1 as prompts_next(). */
static int next_line(struct prompts *p, struct buf *line, struct err *e)
{
    enum { MOST = 16 << 20 };
    for (int c = 0; c != EOF;) {
        buf_clear(line);
        while ((c = getc_unlocked(p->f)) != EOF && c != '\n' && line->n <= MOST)
            buf_char(line, (char)c);
        if (p->line++ == 0)
            utf8_drop_mark(line);
        if (line->n > MOST || ferror(p->f)) {
            err_set(e, ERR_USAGE, "%s line %d: %s", p->name, p->line,
                    line->n > MOST ? "longer than 16 MiB; expected a prompt a line"
                                   : strerror(errno));
            return -1;
        }
        if (strspn(buf_text(line), " \t\r") < line->n)
            return 1;
    }
    return 0;
}

/* Reads the line's prompt; false and *e with the line's number. */
static bool read_prompt(struct prompts *p, const struct buf *line, struct prompt *out,
                        struct err *e)
{
    *out = (struct prompt){0};
    bool ok = take_line(out, line->p, line->n, p->json, e);
    out->line = p->line;
    if (!ok) {
        prompt_free(out);
        err_prefix(e, "%s line %d", p->name, p->line);
    }
    return ok;
}

/* Copies input that can be read only once, such as a pipe, to an unnamed file. */
static FILE *keep(FILE *from, const char *name, struct err *e)
{
    char part[65536];
    size_t n;
    FILE *f = temporary_file();
    bool ok = f != NULL;
    while (ok && (n = fread(part, 1, sizeof part, from)) > 0)
        ok = fwrite(part, 1, n, f) == n;
    ok = ok && !ferror(from) && fflush(f) == 0;
    if (!ok)
        err_set(e, ERR_USAGE, "cannot copy %s to a file: %s", name, strerror(errno));
    if (!ok && f)
        fclose(f);
    return ok ? f : NULL;
}

static FILE *open_file(const char *asked, const char *name, struct err *e)
{
    struct stat st = {0};
    if (strcmp(asked, "-") == 0)
        return keep(stdin, name, e);
    FILE *f = fopen(asked, "re"), *copy = NULL;
    if (!f)
        return FAILED(NULL, e, ERR_USAGE, "cannot open %s: %s", name, strerror(errno));
    if (fstat(fileno(f), &st) == 0 && S_ISDIR(st.st_mode)) {
        fclose(f);
        return FAILED(NULL, e, ERR_USAGE, "cannot read %s: it is a folder", name);
    }
    if (S_ISREG(st.st_mode))
        return f;
    copy = keep(f, name, e);
    fclose(f);
    return copy;
}

bool prompts_open(struct prompts *p, const char *name, int limit,
                  void (*complain)(void *, const char *line), struct err *e)
{
    *p = (struct prompts){.name = strcmp(name, "-") == 0 ? "standard input" : name};
    p->f = open_file(name, p->name, e);
    if (!p->f)
        return false;
    rewind(p->f);
    FREED(buf_free) struct buf line = {0};
    int got, bad = 0;
    while ((limit == 0 || p->n < limit) && (got = next_line(p, &line, e)) > 0) {
        struct prompt one;
        struct err why = {0};
        if (p->n == 0 && bad == 0)
            p->json = line.p[strspn(line.p, " \t\r")] == '{';
        if (read_prompt(p, &line, &one, &why)) {
            p->n++;
            prompt_free(&one);
        } else {
            bad++;
            complain(NULL, why.msg);
        }
    }
    bool ok = e->kind == ERR_NONE;
    if (ok && bad)
        ok = err_set(e, ERR_USAGE, "%d line%s of %s cannot be used; nothing was computed", bad,
                     bad == 1 ? "" : "s", p->name);
    else if (ok && p->n == 0)
        ok = err_set(e, ERR_USAGE, "%s holds no prompt; expected one a line", p->name);
    if (ok)
        prompts_rewind(p);
    else
        prompts_close(p);
    return ok;
}

void prompts_close(struct prompts *p)
{
    if (p->f)
        fclose(p->f);
    p->f = NULL;
}

void prompts_rewind(struct prompts *p)
{
    rewind(p->f);
    p->line = p->next = 0;
}

int prompts_next(struct prompts *p, struct prompt *out, struct err *e)
{
    FREED(buf_free) struct buf line = {0};
    int got = p->next < p->n ? next_line(p, &line, e) : 0;
    if (got > 0)
        got = read_prompt(p, &line, out, e) ? 1 : -1;
    p->next += got > 0;
    return got;
}
