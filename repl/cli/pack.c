/* pack.c - `aerie pack ID`: writes a session as one file that others can open, and a report or
 * plans beside it. */
#include "repl/cli/pack.h"

#include <limits.h>
#include <math.h>
#include <unistd.h>

#include "kernels/ascii.h"
#include "kernels/json.h"
#include "kernels/lines.h"
#include "repl/compare/facts.h"

/* ---- "A..B" ---- */

/* Reads TURN.STEP at *p and moves *p behind it. */
static bool read_address(const char **p, int *turn, int *step)
{
    return address_at(p, turn, step) && *turn > 0 && *turn <= 100000000 && *step > 0 &&
           *step <= 100000000;
}

static bool read_range(const char *text, struct pack_opts *o, struct err *e)
{
    const char *p = text;
    bool ok = read_address(&p, &o->from_turn, &o->from_step);
    if (ok && strncmp(p, "..", 2) == 0)
        p += 2, ok = read_address(&p, &o->to_turn, &o->to_step);
    else
        o->to_turn = o->from_turn, o->to_step = o->from_step;
    ok = ok && !*p && (o->to_turn > o->from_turn ||
                       (o->to_turn == o->from_turn && o->to_step >= o->from_step));
    return ok || err_set(e, ERR_USAGE, "--steps cannot be \"%.80s\"; expected A..B, two addresses "
                         "TURN.STEP in order, or one", text);
}

/* ---- the file's name ---- */

/* The title, without characters that are special in file names or shells, or "session-12" if there
 * is none. A pack without text is named by its number, because a title is text. */
static char *default_name(const struct session_row *row, enum pack_level level)
{
    enum { MOST = 60 };
    const char *title = level == PACK_TEXT && row->title ? row->title : "";
    FREED(buf_free) struct buf name = {0}, clean = {0};
    text_sanitise(&clean, title, strlen(title), false);
    for (const char *p = buf_text(&clean); *p; p++) {
        bool bad = (unsigned char)*p <= ' ' || strchr("/\\:*?\"'<>|`$&;(){}[]!#~", *p);
        if (!bad)
            buf_char(&name, *p);
        else if (name.n && name.p[name.n - 1] != '-')
            buf_char(&name, '-');
    }
    if (name.n > MOST)
        for (name.n = MOST; name.n && ((unsigned char)name.p[name.n] & 0xC0) == 0x80;)
            name.n--;
    while (name.n && strchr("-.", name.p[name.n - 1]))
        name.n--;
    size_t skip = 0;
    while (skip < name.n && strchr("-.", name.p[skip]))
        skip++;
    return name.n > skip ? xasprintf("%.*s.aerie", (int)(name.n - skip), name.p + skip)
                         : xasprintf("session-%d.aerie", row->number);
}

/* "PATH-3.4.json" for "PATH.aerie"; the caller frees. */
static char *name_beside(const char *pack, const char *tail)
{
    size_t n = strlen(pack) - (ends_with(pack, ".aerie") ? strlen(".aerie") : 0);
    return xasprintf("%.*s-%s", (int)n, pack, tail);
}

/* ---- the step in question ---- */

/* The session whose log holds a turn of the conversation; "" if none does. */
static const char *pack_part(const struct hdb_past *p, int turn)
{
    for (int i = 0; i < p->n_part; i++)
        if (turn <= p->part[i].upto && (i == 0 || turn > p->part[i - 1].upto))
            return p->part[i].session;
    return "";
}

struct closest {
    const struct past_part *part;
    int turn, step;
    float margin;
    bool known;
};

/* Keeps the step with the smallest margin; if no step has a margin, the last step. */
static bool look_closer(const struct step_row *r, void *arg)
{
    struct closest *c = arg;
    bool known = !isnan(r->rec.margin);
    if (r->turn > c->part->upto)
        return false;
    if (known ? !c->known || r->rec.margin < c->margin : !c->known)
        *c = (struct closest){c->part, r->turn, r->n, r->rec.margin, known};
    return true;
}

static void choose_step(struct pack_job *j, const struct pack_opts *o)
{
    struct closest c = {0};
    if (j->turn) {
        j->chosen = "named";
        return;
    }
    if (o->from_turn) {
        j->turn = o->from_turn;
        j->step = o->from_step;
        j->chosen = "where the slice begins";
        return;
    }
    for (int i = 0; i < j->past.n_part; i++) {
        c.part = &j->past.part[i];
        hdb_steps(j->d, c.part->session, 0, look_closer, &c, NULL);
    }
    j->turn = c.turn;
    j->step = c.step;
    j->chosen = c.known ? "the smallest margin of the session" : "the last step";
}

static bool take_turn(const struct turn_row *r, void *arg)
{
    struct pack_job *j = arg;
    turn_row_copy(r->is_user ? &j->user : &j->reply, r);
    return true;
}

static bool take_step(const struct step_row *r, void *arg)
{
    struct pack_job *j = arg;
    if (r->n != j->step)
        return true;
    j->at = *r;
    j->at.tree = NULL; /* owned by the caller */
    j->at.tokens = (struct ids){0};
    j->at.facts = NULL;
    j->at.tops = NULL;
    return false;
}

/* Keeps the facts of the run that computed the turn: the latest run before it. */
static bool take_run(const struct run_row *r, void *arg)
{
    struct pack_job *j = arg;
    if (r->order > j->user.order)
        return false;
    buf_clear(&j->about);
    FOR_LINES(l, r->about) {
        bool url = strncmp(l.p, "server_url=", 11) == 0 && j->level != PACK_TEXT;
        buf_printf(&j->about, "%.*s\n", url ? 11 : (int)l.n, l.p);
    }
    return true;
}

/* Reads turn and step. */
static bool read_job(struct pack_job *j, const struct pack_opts *o, struct err *e)
{
    bool ok = hdb_past(j->d, j->row->id, INT_MAX, &j->past, e);
    if (ok)
        choose_step(j, o);
    const char *part = ok ? pack_part(&j->past, j->turn) : "";
    ok = ok &&
         (j->turn || err_set(e, ERR_NEGATIVE, "session %s has no step in the log", j->row->id));
    ok = ok && hdb_turns(j->d, part, j->turn, take_turn, j, e) >= 0 &&
         hdb_runs(j->d, part, take_run, j, e) >= 0 &&
         hdb_steps(j->d, part, j->turn, take_step, j, e) >= 0;
    return ok &&
           (j->user.n ||
            err_set(e, ERR_NEGATIVE, "session %s has no turn %d; its newest is turn %d",
                                       j->row->id, j->turn, j->past.last));
}

static void free_job(struct pack_job *j)
{
    hdb_past_free(&j->past);
    buf_free(&j->about);
    turn_row_free(&j->user);
    turn_row_free(&j->reply);
}

/* ---- the command ---- */

/* A file to be written beside the pack. */
struct beside {
    char *path; /* NULL: not asked for */
    struct buf text;
};

enum { PLAN, ISSUE, N_BESIDE };

struct packing {
    struct pack_job job;
    struct pack_opts opts;
    int form; /* of the report; -1: none */
    struct beside file[N_BESIDE];
};

static bool read_flags(struct packing *p, struct err *e)
{
    const struct cli *c = p->job.c;
    const char *at = c->plan;
    p->form = -1;
    p->opts.level = c->with_text ? PACK_TEXT : c->no_ids ? PACK_SHAPE : PACK_IDS;
    if (c->with_text && c->no_ids)
        return err_set(e, ERR_USAGE, "--with-text keeps ids, too; expected it or --no-ids");
    if (c->steps && !read_range(c->steps, &p->opts, e))
        return false;
    if (c->plan && !(read_address(&at, &p->job.turn, &p->job.step) && !*at))
        return err_set(e, ERR_USAGE, "--plan cannot be \"%.80s\"; expected TURN.STEP", c->plan);
    return !c->issue || (p->form = issue_form(c->issue, e)) >= 0;
}

/* Names the files; none may exist. */
static bool name_files(struct packing *p, const char *path, struct err *e)
{
    const struct cli *c = p->job.c;
    if (c->plan) {
        FREED(free_at) char *tail = xasprintf("%d.%d.json", p->job.turn, p->job.step);
        p->file[PLAN].path = name_beside(path, tail);
    }
    if (c->issue) {
        FREED(free_at) char *tail = xasprintf("%s.md", c->issue);
        p->file[ISSUE].path = name_beside(path, tail);
    }
    const char *all[] = {path, p->file[PLAN].path, p->file[ISSUE].path};
    for (int i = 0; i < 3; i++)
        if (all[i] && access(all[i], F_OK) == 0)
            return err_set(e, ERR_USAGE, "%s exists; -o FILE names another", all[i]);
    return true;
}

/* Computes the content of the files beside the pack, before any file is written. */
static bool prepare(struct packing *p, struct err *e)
{
    struct pack_job *j = &p->job;
    FREED(buf_free) struct buf control = {0};
    bool ok = true;
    if (j->c->plan || j->c->issue)
        ok = read_job(j, &p->opts, e);
    if (ok && j->c->plan)
        ok = run_plan(j, &p->file[PLAN].text, e);
    if (ok && j->c->issue) {
        run_control(j, &control);
        issue_report(j, p->form, control.p, &p->file[ISSUE].text);
    }
    return ok;
}

static bool write_all(struct packing *p, struct pack_about *a, struct err *e)
{
    bool ok = hdb_pack(p->job.d, p->job.row->id, &p->opts, p->job.path, a, e);
    for (int i = 0; ok && i < N_BESIDE; i++)
        if (p->file[i].path)
            ok = hdb_save(p->file[i].path, p->file[i].text.p, p->file[i].text.n, e);
    return ok;
}

static void say_packed(const struct packing *p, const struct pack_about *a)
{
    static const char *const key[] = {"plan", "issue"};
    static const char *const what[] = {"plans of the step", "the report"};
    FREED(buf_free) struct buf about = {0};
    char name[SESSION_ID];
    hdb_name(p->job.d, p->job.row->id, name);
    facts_pack(a, &about);
    const struct printer *to = cli_answer(p->job.c, '{');
    print_facts(to, ST_TEXT, "%s{file}: session %s, %s, %.1f kB", p->job.path, name, about.p,
                (double)a->bytes / 1000);
    for (int i = 0; i < N_BESIDE; i++) {
        print_str(to, key[i], p->file[i].path);
        if (p->file[i].path)
            print_note(to, ST_TEXT, "%s: %s", p->file[i].path, what[i]);
    }
    if (to->json) {
        jput_key(to->json, "pack");
        facts_pack_json(a, to->json);
    }
    cli_answer_end();
}

int cli_pack(struct cli *c)
{
    struct err e = {0};
    FREED(session_row_free) struct session_row row = {0};
    struct pack_about about;
    char *made_by = xasprintf("aerie %s, %s", AERIE_VERSION, facts_build()), *path = NULL;
    struct packing p = {.job = {.c = c, .row = &row}, .opts.made_by = made_by};
    bool ok = read_flags(&p, &e) && (p.job.d = cli_open_session(c, c->word[0], &row, &e));
    if (ok) {
        const struct pack_about *from = hdb_packed(p.job.d);
        p.opts.level = from && from->level > p.opts.level ? from->level : p.opts.level;
        p.job.level = p.opts.level;
        p.job.path = path = c->out ? xstrdup(c->out) : default_name(&row, p.opts.level);
    }
    ok = ok && name_files(&p, path, &e) && prepare(&p, &e) && write_all(&p, &about, &e);
    if (ok)
        say_packed(&p, &about);
    free_job(&p.job);
    for (int i = 0; i < N_BESIDE; i++) {
        free(p.file[i].path);
        buf_free(&p.file[i].text);
    }
    hdb_close(p.job.d);
    FREE(path, made_by);
    return ok ? 0 : cli_fail(&e);
}
