/* switch.c - /draft and /model: what there is to choose from, and the switch (app/switch.c). */
#include <sys/stat.h>
#include <unistd.h>

#include "models/checkpoint/hub.h"
#include "kernels/lines.h"
#include "models/draft/pair.h"
#include "repl/app/drafters.h"
#include "repl/cmd/cmd.h"

/* ---- a list of names, each with its path ----------------------------------------------------- */

struct choice {
    char *name; /* for people, and to type */
    char *path; /* or a name that needs no path */
    char *from, *why; /* where it was found; why it does not fit, NULL: it does */
    const char *kind;
    bool used;
};

struct choices {
    struct choice *v;
    int n;
};

static void choices_free(struct choices *c)
{
    for (int i = 0; i < c->n; i++)
        FREE(c->v[i].name, c->v[i].path, c->v[i].from, c->v[i].why);
    free(c->v);
}

static bool same_path(const char *a, const char *b)
{
    struct stat x, y;
    return !strcmp(a, b) || (stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev &&
                             x.st_ino == y.st_ino);
}

/* Adds a path, unless the list has it. Of several with one name, all but the first are called by
 * their paths. */
static struct choice *add_choice(struct choices *c, const char *path, const char *from)
{
    char *title = hub_title(path);
    for (int i = 0; i < c->n; i++) {
        if (same_path(c->v[i].path, path)) {
            free(title);
            return &c->v[i];
        }
        if (title && !strcmp(c->v[i].name, title))
            DROP(title);
    }
    struct choice *choice = APPEND(c->v, c->n);
    *choice = (struct choice){.name = title ? title : xstrdup(path), .path = xstrdup(path),
                              .from = xstrdup(from)};
    return choice;
}

static void offer(const struct choices *c, const char *word, cmd_add_fn *add, void *arg)
{
    for (int i = 0; i < c->n; i++)
        if (!strncmp(c->v[i].name, word, strlen(word)))
            add(arg, c->v[i].name, c->v[i].why ? c->v[i].why : c->v[i].from);
}

/* The path of a name in the list, else of what lies there or in the hub's cache. The caller frees;
 * NULL and *e: there is nothing of the name. */
static char *path_of(const struct choices *c, const char *name, struct err *e)
{
    for (int i = 0; i < c->n; i++)
        if (!strcmp(c->v[i].name, name))
            return xstrdup(c->v[i].path);
    return hub_find(name, e);
}

/* ---- /draft ---------------------------------------------------------------------------------- */

static void list_drafts(struct app *a, struct choices *out)
{
    const struct backend_info *i = backend_info(a->backend);
    FREED(pair_free) struct pairing p = {0};
    *out = (struct choices){0};
    if (i->draft_dir)
        add_choice(out, i->draft_dir, "in use")->kind = i->draft_kind;
    pair_drafts(i->model_dir, &p);
    for (int k = 0; k < p.n; k++) {
        struct choice *x = add_choice(out, p.draft[k].path, p.draft[k].from);
        set_text(&x->from, p.draft[k].from);
        x->kind = x->kind ? x->kind : p.draft[k].kind;
        x->why = p.draft[k].why && !x->why ? xstrdup(p.draft[k].why) : x->why;
    }
    bool bundled = a->opt.bundled && same_path(i->model_dir, a->opt.bundled);
    if (bundled && access(a->opt.bundled_draft, R_OK) == 0)
        add_choice(out, a->opt.bundled_draft, "the bundled one");
    add_choice(out, "ngram", "from the context; no weights")->kind = "ngram";
    add_choice(out, "none", "a token a step");
    for (int k = 0; k < out->n; k++)
        out->v[k].used = i->draft_dir ? !strcmp(out->v[k].path, i->draft_dir)
                                      : !strcmp(out->v[k].path, "none");
}

enum { KIND = 7, DID = 27 /* cells of two columns */ };

/* Which columns a list of drafters has room for. */
struct choice_columns {
    int name; /* cells of the names' */
    bool kind, from;
};

/* What a drafter did in the session, and what it took; did NULL: nothing. */
static void print_did(const struct drafter_use *did, const struct choice_columns *c,
                      const struct printer *to)
{
    if (!did || !did->steps) {
        print_add(to, ST_DIM, "%*s", c->from ? DID : 0, "");
        return;
    }
    const struct draft_sums *s = &did->drafts.all;
    double cycles = (double)s->cycles;
    print_add(to, ST_TEXT, "\f%lu{steps}%lu{tokens}%lu{us}%lu{cycles}%lu{drafted}%lu{accepted}"
              "%lu{us_draft}\f", did->steps, did->tokens, did->us, s->cycles, s->drafted,
              s->accepted, did->drafts.us_draft);
    if (s->cycles)
        print_add(to, ST_TEXT, "%5.2f{rate}%6.2f{mal}%7.2f{ms_a_draft}",
                  (double)s->accepted / (double)s->drafted, draft_sums_mal(s),
                  (double)did->drafts.us_draft / cycles / 1e3);
    else
        print_add(to, ST_DIM, "%5s%6s%7s", "-", "-", "-");
    print_add(to, ST_TEXT, "%9.0f{tokens_a_second}",
              did->us ? (double)did->tokens * 1e6 / (double)did->us : 0);
}

/* did: what drafters did, NULL: the choices are models. Without room for where a choice was found,
 * why it does not fit stands below it. */
static void print_choice(const struct choice *x, const struct choice_columns *c,
                         const struct drafters *did, const struct printer *to)
{
    const struct drafter_use *use = NULL;
    for (int i = 0; did && i < did->n; i++)
        use = !strcmp(did->v[i].name, x->path) ? &did->v[i] : use;
    PRINT_IN(to, NULL, '{');
    print_add(to, ST_GOOD, x->used ? "* " : "  ");
    print_add(to, ST_KEY, "%s{name}\f%s{path}%d{in_use?}", x->name, x->path, x->used);
    print_tab(to, c->name + (did != NULL));
    if (did) {
        if (x->kind)
            print_add(to, ST_TEXT, "\f%s{kind}", x->kind);
        print_add(to, ST_TEXT, "%-*s", c->kind ? KIND : 0, c->kind && x->kind ? x->kind : "");
        print_did(use, c, to);
        print_add(to, ST_TEXT, c->from ? " " : "");
    }
    if (!c->from)
        print_end(to);
    if (x->why)
        print_facts(to, ST_DIM, c->from ? " does not fit: %s{why}" : "    does not fit: %s{why}",
                    x->why);
    else
        print_facts(to, ST_DIM, c->from ? " %s{from}" : "\f%s{from}", x->from);
}

/* width: cells of the screen; 0: any. */
static void print_choices(const struct choices *c, const struct drafters *did, int width,
                          const struct printer *to)
{
    enum { WIDEST = 40 };
    struct choice_columns at = {0, true, true};
    int from = 0;
    for (int i = 0; i < c->n; i++) {
        int n = (int)strlen(c->v[i].name) + 3;
        at.name = n > at.name && n <= WIDEST ? n : at.name;
        from = max_int(from, text_width(c->v[i].from, strlen(c->v[i].from)));
    }
    if (did && width) {
        at.from = at.name + 1 + KIND + DID + 2 + from <= width;
        at.kind = at.name + 1 + KIND + DID <= width;
    }
    if (did) {
        print_add(to, ST_HEAD, "DRAFT");
        print_tab(to, at.name + 1);
        print_note(to, ST_HEAD, "%-*s%5s%6s%7s%9s", at.kind ? KIND : 0, at.kind ? "kind" : "",
                   "rate", "MAL", "ms", "tokens/s");
    }
    for (int i = 0; i < c->n; i++)
        print_choice(&c->v[i], &at, did, to);
}

/* Whether there are drafters to choose from. */
static bool computes_here(const struct cmd_call *c, struct err *e)
{
    const struct backend_info *i = backend_info(c->app->backend);
    if (i->recording)
        return err_set(e, ERR_USAGE, "a recording computes nothing, so it has no drafter");
    return !i->server_url || err_set(e, ERR_USAGE, "the server chooses its drafter; only that of "
                                                   "the local engine can be switched");
}

static void said_draft(struct app *a, const struct printer *to)
{
    const struct backend_info *i = backend_info(a->backend);
    const char *from = a->turn ? "; the conversation is computed again with the next message" : "";
    FREED(free_at) char *name = i->draft_dir ? hub_title(i->draft_dir) : NULL;
    print_open(to, NULL, '{');
    print_add(to, ST_TEXT, "\f%s{draft}%d{from_turn}\f", i->draft_dir, a->turn + 1);
    if (i->draft_dir)
        print_add(to, ST_TEXT, "draft: %s (%s) from turn %d on; the model stayed loaded%s",
                  name, i->draft_about, a->turn + 1, from);
    else
        print_add(to, ST_TEXT, "no draft from turn %d on; the model stayed loaded%s", a->turn + 1,
                  from);
    print_end(to);
    print_close(to, '}');
    struct settings s;
    app_settings(a, &s);
    if (i->draft_dir && !s.spec)
        print_note(to, ST_WARN, "drafting is off: /set spec on");
}

static void show_drafts(struct cmd_call *c, const struct choices *all)
{
    FREED(drafters_free) struct drafters did = {0};
    char source[STEP_SOURCE];
    drafters_read(&did, c->app);
    drafters_count(&did, c->app, source);
    print_open(&c->to, NULL, '[');
    print_choices(all, &did, c->app->face.width, &c->to);
    print_close(&c->to, ']');
    print_note(&c->to, ST_DIM, "rate = accepted/drafted; MAL = 1 + accepted/cycles; ms: "
                               "of drafting, a cycle; tokens/s: of replies; %s", source);
    print_note(&c->to, ST_DIM, "* in use; /draft NAME, DIR, ngram or none switches between two "
                               "turns");
}

bool cmd_draft(struct cmd_call *c)
{
    struct app *a = c->app;
    FREED(choices_free) struct choices all = {0};
    if (!computes_here(c, c->e))
        return false;
    list_drafts(a, &all);
    if (c->argc == 0) {
        show_drafts(c, &all);
        return true;
    }
    const char *name = c->argv[0];
    bool plain = !strcmp(name, "none"), bare = plain || !strcmp(name, "ngram");
    FREED(free_at) char *path = bare ? xstrdup(name) : path_of(&all, name, c->e);
    bool ok = path && app_switch(a, NULL, plain ? NULL : path, c->e);
    if (ok)
        said_draft(a, &c->to);
    return ok;
}

void complete_draft(struct app *a, const char *before, const char *word, cmd_add_fn *add, void *arg)
{
    FREED(choices_free) struct choices all = {0};
    const struct backend_info *i = backend_info(a->backend);
    if (*before || i->server_url || i->recording)
        return;
    list_drafts(a, &all);
    offer(&all, word, add, arg);
}

/* ---- /model ---------------------------------------------------------------------------------- */

static void add_found(void *arg, const char *path, const char *from)
{
    add_choice(arg, path, from);
}

static bool add_recent(const struct session_row *r, void *arg)
{
    if (r->model && *r->model && access(r->model, R_OK) == 0)
        add_choice(arg, r->model, "used before");
    return true;
}

static void list_served(const struct backend_info *i, struct choices *out)
{
    FOR_LINES(l, i->served_models) {
        char *name = line_copy(l);
        *APPEND(out->v, out->n) = (struct choice){.name = name, .path = xstrdup(name),
                                           .from = xstrdup("of the server"),
                                           .used = !strcmp(name, i->model_dir)};
    }
}

static void list_models(struct app *a, struct choices *out)
{
    enum { RECENT = 50 };
    const struct backend_info *i = backend_info(a->backend);
    struct err e;
    *out = (struct choices){0};
    if (i->server_url) {
        list_served(i, out);
        return;
    }
    add_choice(out, i->model_dir, "in use")->used = true;
    if (a->opt.bundled)
        add_choice(out, a->opt.bundled, "the bundled one");
    pair_models(i->model_dir, add_found, out);
    struct hdb *d = app_hdb(a, &e);
    if (d)
        hdb_sessions(d, NULL, NULL, RECENT, add_recent, out, &e);
}

/* The draft that goes with a model, as when the program starts. The caller frees *model if another
 * path takes its place. */
static bool pair_with(const struct app *a, char **model, char **draft, struct err *e)
{
    FREED(pair_free) struct pairing p = {0};
    *draft = NULL;
    if (a->opt.bundled && same_path(*model, a->opt.bundled)) {
        *draft = xstrdup(a->opt.bundled_draft);
        return true;
    }
    if (!pair_find(*model, &p, e))
        return false;
    if (p.model) {
        free(*model);
        *model = xstrdup(p.model);
    }
    *draft = p.n ? xstrdup(p.draft[0].path) : NULL;
    return true;
}

static void said_model(struct app *a, const char *before, const struct printer *to)
{
    const struct backend_info *i = backend_info(a->backend);
    FREED(free_at) char *name = i->server_url ? xstrdup(i->model_dir) : hub_title(i->model_dir);
    FREED(free_at) char *draft = i->draft_dir ? hub_title(i->draft_dir) : NULL;
    print_open(to, NULL, '{');
    print_add(to, ST_TEXT, "\f%s{model}%s{draft}%s{session}\f", i->model_dir, i->draft_dir,
              a->session);
    if (a->turn)
        print_add(to, ST_TEXT, "\f%s{parent}", before);
    print_note(to, ST_TEXT, "model: %s%s%s%s%s", name, i->family ? ", " : "",
               i->family ? i->family : "", draft ? ", draft " : "", draft ? draft : "");
    print_close(to, '}');
    if (a->turn)
        print_note(to, ST_DIM, "the session before is saved as it was; a new one goes on from turn "
                               "%d with its text, which the model reads with the next message",
                   a->turn + 1);
}

static bool switch_model(struct cmd_call *c, const struct choices *all)
{
    struct app *a = c->app;
    bool served = backend_info(a->backend)->server_url != NULL;
    char before[SESSION_ID];
    memcpy(before, a->session, sizeof before);
    char *path = served ? xstrdup(c->argv[0]) : path_of(all, c->argv[0], c->e), *draft = NULL;
    bool ok = path && (served || pair_with(a, &path, &draft, c->e));
    if (ok && same_path(path, backend_info(a->backend)->model_dir))
        ok = err_set(c->e, ERR_USAGE, "%s is in use already", c->argv[0]);
    ok = ok && app_switch(a, path, draft, c->e);
    if (ok)
        said_model(a, before, &c->to);
    FREE(path, draft);
    return ok;
}

bool cmd_model(struct cmd_call *c)
{
    FREED(choices_free) struct choices all = {0};
    if (backend_info(c->app->backend)->recording)
        return err_set(c->e, ERR_USAGE, "a recording computes nothing, so it has no model to "
                                        "switch");
    list_models(c->app, &all);
    bool ok = true;
    if (c->argc) {
        ok = switch_model(c, &all);
    } else {
        print_open(&c->to, NULL, '[');
        print_note(&c->to, ST_HEAD, "MODELS");
        print_choices(&all, NULL, 0, &c->to);
        print_close(&c->to, ']');
        bool served = backend_info(c->app->backend)->server_url != NULL;
        print_note(&c->to, ST_DIM, "* in use; /model NAME%s goes on with it in a new session",
                   served ? "" : ", a folder or a GGUF file");
    }
    return ok;
}

void complete_model(struct app *a, const char *before, const char *word, cmd_add_fn *add, void *arg)
{
    FREED(choices_free) struct choices all = {0};
    if (*before || backend_info(a->backend)->recording)
        return;
    list_models(a, &all);
    offer(&all, word, add, arg);
}
