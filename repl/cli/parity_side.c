/* parity_side.c - the sides of `aerie parity`: the local engine with changes, or a server. See
 * parity.h.
 *
 * A word of --a and --b is NAME=VALUE, "local", or "remote:URL", which may go on with
 * ",NAME=VALUE". --arm has all words of a side, with commas between them. Of a server, NAME is a
 * setting, "model" (the name by which it is served) or "api_key_file". */
#include <limits.h>

#include "repl/process/open.h"
#include "repl/compare/change.h"
#include "repl/cli/parity.h"

/* ---- the command line ------------------------------------------------------------------------ */

/* One NAME=VALUE of a server's side. */
static bool take_server_option(struct side *s, const char *text, struct err *e)
{
    const char *eq = strchr(text, '=');
    char name[64];
    snprintf(name, sizeof name, "%.*s", eq ? (int)(eq - text) : 0, text);
    if (eq && (strcmp(name, "model") == 0 || strcmp(name, "api_key_file") == 0)) {
        if (!eq[1])
            return err_set(e, ERR_USAGE, "%s cannot be empty", name);
        *(name[0] == 'm' ? &s->opts.model : &s->opts.server.key_file) = eq + 1;
        return true;
    }
    bool set = settings_named(name);
    if (eq && *name && !set)
        return err_set(e, ERR_USAGE, "\"%s\" cannot be changed on a server; expected model, "
                       "api_key_file or a setting that the server has", name);
    if (set && s->n_set < MAX_TEXTS)
        s->set[s->n_set++] = text;
    return change_apply(&s->opts, text, e);
}

static bool is_server_word(const char *text)
{
    return strncmp(text, "remote:", 7) == 0;
}

/* "remote:URL,NAME=VALUE,...". */
static bool take_server(struct side *s, const char *text, struct err *e)
{
    bool ok = true;
    if (s->word)
        return err_set(e, ERR_USAGE, "a side is one server; \"%.100s\" is a second", text);
    s->word = xstrdup(text + 7);
    s->opts.model = s->opts.draft = NULL; /* folders of the local engine */
    char *rest = strchr(s->word, ',');
    if (rest)
        *rest++ = '\0';
    s->opts.server.url = s->word;
    for (char *at = rest; ok && at; at = rest) {
        rest = strchr(at, ',');
        if (rest)
            *rest++ = '\0';
        ok = take_server_option(s, at, e);
    }
    return ok &&
           (*s->word || err_set(e, ERR_USAGE, "\"remote:\" names no server; expected remote:URL"));
}

static bool take_word(struct side *s, const char *text, struct err *e)
{
    if (is_server_word(text))
        return take_server(s, text, e);
    if (strcmp(text, "local") == 0)
        return !s->word || err_set(e, ERR_USAGE, "a side is a server or local, not both");
    return s->word ? take_server_option(s, text, e) : change_apply(&s->opts, text, e);
}

static bool set_side(struct side *s, const struct engine_opts *base, const struct texts *changes,
                     const char *otherwise, const char *flag, struct err *e)
{
    FREED(buf_free) struct buf label = {0};
    bool ok = true;
    s->opts = *base;
    if (otherwise) {
        ok = change_apply(&s->opts, otherwise, e);
        buf_str(&label, otherwise);
    }
    for (int pass = 0; ok && pass < 2; pass++) /* the server's own options belong to the server */
        for (int i = 0; ok && i < changes->n; i++)
            if (is_server_word(changes->v[i]) == (pass == 0))
                ok = take_word(s, changes->v[i], e) || err_prefix(e, "%s", flag);
    for (int i = 0; i < changes->n; i++)
        buf_printf(&label, "%s%s", label.n ? ", " : "", changes->v[i]);
    s->label = xstrdup(label.n ? label.p : s->word ? "" : "unchanged");
    return ok;
}

/* Cuts the words of --arm: at a comma behind which there is another NAME=VALUE or "local". The
 * commas of a server's word stay in it. */
static void cut_arm(struct side *s, const char *text, struct texts *out)
{
    set_text(&s->arm, text);
    out->n = 0;
    out->v[out->n++] = s->arm;
    for (char *at = is_server_word(text) ? NULL : s->arm; at && (at = strchr(at, ',')) != NULL;) {
        const char *next = at + 1, *end = next + strcspn(next, ",");
        bool word = memchr(next, '=', (size_t)(end - next)) || strncmp(next, "local", 5) == 0;
        if (word && out->n < MAX_TEXTS) {
            *at = '\0';
            out->v[out->n++] = next;
        }
        at++;
    }
}

static bool same_sides(const struct engine_opts *a, const struct engine_opts *b)
{
    FREED(buf_free) struct buf lines = {0};
    change_lines(a, b, &lines);
    return lines.n == 0 && !change_reopens(a, b);
}

static struct side *new_side(struct parity *p)
{
    CHECK(p->n_side < MAX_SIDES);
    struct side *s = &p->side[p->n_side];
    s->name = (char)('a' + p->n_side++);
    return s;
}

/* a and b, unless there are only arms; then the arms. One arm alone is compared with the engine as
 * it is. */
static bool set_sides(struct parity *p, struct err *e)
{
    struct cli *c = p->c;
    const struct engine_opts *base = &c->opt.engine;
    bool named = c->a.n || c->b.n, drafting = !named && !c->arm.n, ok = true;
    const struct texts none = {0};
    if (c->arm.n > MAX_SIDES - 2)
        return err_set(e, ERR_USAGE, "more than %d times --arm", MAX_SIDES - 2);
    if (named || drafting)
        ok = set_side(new_side(p), base, &c->a, drafting ? "spec=on" : NULL, "--a", e) &&
             set_side(new_side(p), base, &c->b, drafting ? "spec=off" : NULL, "--b", e);
    else if (c->arm.n == 1)
        ok = set_side(new_side(p), base, &none, NULL, "", e);
    for (int i = 0; ok && i < c->arm.n; i++) {
        struct texts words;
        struct side *s = new_side(p);
        cut_arm(s, c->arm.v[i], &words);
        ok = set_side(s, base, &words, NULL, "--arm", e);
    }
    return ok;
}

/* Room for the passes of all sides, if their chunks differ. */
static void set_rows(struct parity *p)
{
    int most = 0, least = INT_MAX;
    for (int i = 0; i < p->n_side; i++) {
        most = max_int(most, p->side[i].opts.settings.chunk);
        least = min_int(least, p->side[i].opts.settings.chunk);
    }
    for (int i = 0; i < p->n_side && most > 512 && most != least; i++)
        p->side[i].opts.rows = most;
}

static bool check_sides(struct parity *p, struct err *e)
{
    const struct side *a = &p->side[0];
    p->same_tokens = true;
    for (int i = 0; i < p->n_side; i++)
        p->servers |= p->side[i].opts.server.url != NULL;
    for (int i = 0; i < p->n_side; i++) {
        const struct side *s = &p->side[i];
        if (!s->opts.model && !s->opts.server.url)
            return err_set(e, ERR_MODEL,
                           "no model: the bundled one is not installed; expected -m DIR");
        p->same_tokens &= !p->servers && a->opts.model && s->opts.model &&
                          strcmp(a->opts.model, s->opts.model) == 0;
        for (int k = 0; k < i && !p->servers; k++)
            if (same_sides(&p->side[k].opts, &s->opts))
                return err_set(e, ERR_USAGE, "%c and %c are the same: %s; expected --a, --b or "
                               "--arm NAME=VALUE that differs", p->side[k].name, s->name,
                               p->side[k].label);
    }
    return !p->c->control || p->servers ||
           err_set(e, ERR_USAGE,
                   "--control computes the replies of servers twice, but no side is a server; the "
                   "local engine computes the same bits every time");
}

bool sides_set(struct parity *p, struct err *e)
{
    struct cli *c = p->c;
    c->opt.engine.lanes = c->lanes ? c->lanes : 8;
    c->opt.engine.progress = c->opt.quiet ? NULL : cli_progress;
    if (!set_sides(p, e))
        return false;
    set_rows(p);
    return check_sides(p, e);
}

void sides_free(struct parity *p)
{
    FOR_EACH(struct side, s, p->side, p->n_side) {
        upkeep_close(s->upkeep);
        FREE(s->label, s->word, s->arm);
        kl_free(&s->kl);
        kl_free(&s->read);
    }
}

/* ---- opening --------------------------------------------------------------------------------- */

/* Checks that the server has the settings that were named for it. */
static bool check_settings(struct side *s, struct backend *b, struct err *e)
{
    bool ok = true;
    for (int i = 0; ok && i < s->n_set; i++) {
        struct request rq = {.kind = RQ_SET, .text = xstrdup(s->set[i])};
        ok = backend_submit(b, &rq, e);
    }
    return ok;
}

static struct backend *open_server(struct side *s, struct err *e)
{
    struct backend *b = open_backend(&s->opts, e);
    if (b && check_settings(s, b, e) &&
        (s->upkeep = upkeep_open(&s->opts.server, s->opts.model, e))) {
        char *label = xasprintf("%s (%s, %s)", *s->label ? s->label : s->opts.server.url,
                                upkeep_server(s->upkeep), upkeep_model(s->upkeep));
        free(s->label);
        s->label = label;
        upkeep_drafts(s->upkeep, &s->before);
        return b;
    }
    backend_close(b);
    return NULL;
}

struct backend *side_open(struct parity *p, int side, void (*complain)(void *arg, const char *line),
                          struct err *e)
{
    struct side *s = &p->side[side];
    struct backend *b = s->opts.server.url ? open_server(s, e) : open_backend(&s->opts, e);
    cli_progress_end();
    if (!b) {
        err_prefix(e, "%c", s->name);
        return NULL;
    }
    const struct backend_info *i = backend_info(b);
    if (i->passed && !p->c->opt.quiet) {
        FREED(free_at) char *line = xasprintf("%c: computing on the CPU: %s", s->name, i->passed);
        complain(NULL, line);
    }
    bool spec = false;
    for (int k = 1; k < p->n_side; k++)
        spec |= p->side[0].opts.settings.spec != p->side[k].opts.settings.spec;
    if (!p->servers && spec && s->opts.settings.spec && !i->draft_kind) {
        err_set(e, ERR_USAGE, "drafting on and off cannot be compared: %s",
                i->draft_off ? i->draft_off : "there is no draft");
        backend_close(b);
        return NULL;
    }
    return b;
}

void side_reset_cache(struct side *s)
{
    if (!s->upkeep || (s->tried_reset && !s->resets))
        return;
    s->tried_reset = true;
    s->resets = upkeep_reset_cache(s->upkeep, s->reset);
}

void side_meter(struct side *s)
{
    struct draft_totals now;
    if (!s->upkeep || s->before.drafted < 0 || s->before.accepted < 0)
        return;
    upkeep_drafts(s->upkeep, &now);
    s->drafts = (struct draft_totals){.drafts = now.drafts - s->before.drafts,
                                      .drafted = now.drafted - s->before.drafted,
                                      .accepted = now.accepted - s->before.accepted};
    s->metered =
        s->drafts.drafted >= 0 && s->drafts.accepted >= 0; /* a restarted server counts from 0 */
}
