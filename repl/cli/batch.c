/* batch.c - `aerie run --batch FILE`: many prompts in one batch, a JSON line of result each. */
#include "repl/cli/cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "engine/serve/batch.h"
#include "kernels/json.h"

struct prompts {
    char **v;
    int n, cap;
};

static bool take_line(struct prompts *p, const char *line, size_t n, struct err *e)
{
    json_error_t why;
    json_t *v = json_loadb(line, n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &why);
    json_t *text = json_is_string(v) ? v : json_object_get(v, "prompt");
    bool ok = json_is_string(text);
    if (!v)
        err_set(e, ERR_USAGE, "%s", why.text);
    else if (!ok)
        err_set(e, ERR_USAGE, "expected {\"prompt\": \"...\"}");
    if (ok && p->n == p->cap) {
        p->cap = p->cap * 2 + 16;
        p->v = xrealloc(p->v, (size_t)p->cap, sizeof *p->v);
    }
    if (ok)
        p->v[p->n++] = xstrdup(json_string_value(text));
    json_decref(v);
    return ok;
}

static bool read_prompts(struct prompts *p, const char *name, struct err *e)
{
    enum { MOST = 1000000 };
    struct buf line = {0};
    bool ok = true;
    int got = 1;
    FILE *f = strcmp(name, "-") == 0 ? stdin : fopen(name, "re");
    if (!f)
        return err_set(e, ERR_USAGE, "cannot open %s: %s", name, strerror(errno));
    for (int number = 1; ok && (got = cli_line(f, &line, e)); number++) {
        ok = got > 0 && (p->n < MOST || err_set(e, ERR_USAGE, "more than %d prompts", MOST));
        if (ok && strspn(line.p ? line.p : "", " \t\r") != line.n)
            ok = take_line(p, line.p, line.n, e);
        if (!ok)
            err_prefix(e, "%s line %d", name, number);
    }
    buf_free(&line);
    if (f != stdin)
        fclose(f);
    return ok;
}

static void tell(void *arg, const struct batch_result *r)
{
    bool *bad = arg;
    struct buf line = {0};
    jput_open(&line, '{');
    jput_kint(&line, "index", r->index);
    jput_kint(&line, "prompt_tokens", r->n_prompt);
    jput_kint(&line, "tokens", r->n_tokens);
    jput_kstr(&line, "reason", stop_name(r->reason));
    if (r->error)
        jput_kstr(&line, "error", r->error);
    else
        jput_kstr(&line, "reply", r->text);
    jput_close(&line, '}');
    cli_progress_end();
    cli_json(&line);
    buf_free(&line);
    *bad |= r->error != NULL;
}

static void say(void *arg, const char *line)
{
    (void)arg;
    struct buf clean = {0};
    cli_progress_end();
    text_sanitise(&clean, line, strlen(line), false, NULL);
    fprintf(stderr, "aerie: %s\n", clean.p ? clean.p : "");
    buf_free(&clean);
}

int cli_batch(struct cli *c)
{
    struct err e = {0};
    struct prompts p = {0};
    bool bad = false, ok = true;
    if (c->n_word || c->opt.file)
        ok = err_set(&e, ERR_USAGE, "--batch takes its prompts from the file alone");
    if (ok && !c->opt.engine.model)
        ok = err_set(&e, ERR_MODEL, "no model: the bundled one is not installed; expected -m DIR");
    if (!c->opt.quiet) {
        c->opt.engine.progress = cli_progress;
        c->opt.engine.notice = say;
    }
    ok = ok && read_prompts(&p, c->batch, &e);
    ok = ok && batch_run(&c->opt.engine, (const char *const *)p.v, p.n,
                         c->lanes ? c->lanes : 8, c->opt.system, tell, &bad, &e);
    cli_progress_end();
    for (int i = 0; i < p.n; i++)
        free(p.v[i]);
    free(p.v);
    return !ok ? cli_fail(&e) : bad ? ERR_NEGATIVE : 0;
}
