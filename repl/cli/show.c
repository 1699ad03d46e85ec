/* show.c - `aerie show ID[:TURN[.STEP]]`: prints a session, a turn or one step from the log. */
#include "kernels/when.h"
#include "repl/app/report.h"
#include "repl/cli/cli.h"

#include <limits.h>
#include <math.h>

#include "history/evidence/hazards.h"
#include "models/tokenizer/tokenizer.h"
#include "repl/cli/show_served.h"
#include "repl/compare/facts.h"
#include "kernels/json.h"

struct show {
    const struct cli *c;
    struct hdb *db;
    const struct printer *to;
    struct tokenizer *tok; /* of the session's model, or NULL: the log's texts are shown */
    int turn, step;        /* 0: all */
    struct session_row row;
    const struct pack_about *pack; /* NULL: a session of the log */
    struct buf about;      /* of its latest run */
    struct hdb_past past;
    const struct past_part *part; /* the session whose rows are being read */
    int n_turns, n_steps, newest; /* shown; steps of the turn */
    char *settings;        /* in force at the turn shown before, or NULL */
    struct show_run {
        int64_t order;
        char *about;
    } *run; /* (n_run) of the session whose rows are being read */
    int n_run;
    char *by; /* run_row.about of the turn shown before; NULL: `about` */
    char name[SESSION_ID]; /* session_name() */
};

/* "#12", or the id where there is no number; valid until the next call. */
static const char *session_name(struct show *w, const char *id)
{
    hdb_name(w->db, id, w->name);
    return w->name;
}

/* ---- "ID:TURN.STEP" ---- */

static bool positive(const char *s, size_t n, int *out)
{
    *out = 0;
    for (size_t i = 0; i < n; i++) {
        if (s[i] < '0' || s[i] > '9' || *out > 100000000)
            return false;
        *out = *out * 10 + (s[i] - '0');
    }
    return n > 0 && *out > 0;
}

/* Reads "ID[:TURN[.STEP]]". *id: the caller frees it; a part that is left out is 0. */
static bool read_place(const char *text, char **id, int *turn, int *step, struct err *e)
{
    const char *colon = strrchr(text, ':');
    *turn = *step = 0;
    if (cli_names_file(text) && !file_missing(text))
        colon = NULL; /* a pack with a colon in its name */
    *id = colon ? xasprintf("%.*s", (int)(colon - text), text) : xstrdup(text);
    if (!colon)
        return true;
    const char *dot = strchr(colon, '.');
    size_t n = dot ? (size_t)(dot - colon - 1) : strlen(colon + 1);
    if (positive(colon + 1, n, turn) && (!dot || positive(dot + 1, strlen(dot + 1), step)))
        return true;
    return err_set(e, ERR_USAGE, "\"%.80s\" names no place in a session; expected ID, ID:TURN or "
                   "ID:TURN.STEP, counted from 1", text);
}

/* ---- tokens ---- */

static void show_token(const struct show *w, struct sheet *out, enum style st, int32_t id)
{
    size_t n = 0;
    const char *s = w->tok && id >= 0 ? tok_bytes(w->tok, id, &n) : NULL;
    FREED(buf_free) struct buf logged = {0};
    if (s)
        sheet_quote(out, st, s, n, 0);
    else if (!w->tok && id >= 0 && hdb_token_text(w->db, w->row.id, id, &logged) && logged.n)
        sheet_quote(out, st, logged.p, logged.n, 0);
    else
        sheet_printf(out, st, "%d", id);
}

/* ---- steps ---- */

static void json_step(const struct step_row *r, const char *session, const struct printer *to)
{
    print_int(to, "step", r->n);
    step_row_json(r, to->json);
    show_served_step(r, to);
    print_add(to, ST_TEXT, "\f%d{turn}%s{session}", r->turn, session);
    if (r->tree) {
        jput_key(to->json, "tree");
        tree_json(r->tree, to->json);
    }
}

static void tree_lines(struct show *w, const struct tree *t)
{
    struct sheet *s = w->to->out;
    for (int i = 0; i < t->n; i++) {
        enum style st = t->fate[i] == FATE_ACCEPTED ? ST_GOOD : t->fate[i] == FATE_REJECTED ?
                        ST_BAD : ST_DIM;
        sheet_printf(s, st, "  %*s%s ", 2 * t->depth[i], "", fate_name(t->fate[i]));
        show_token(w, s, st, t->token[i]);
        sheet_printf(s, ST_DIM, "  q %.3f", (double)t->q[i]);
        if (!isnan(t->p[i]))
            sheet_printf(s, ST_DIM, "  p %.3f", (double)t->p[i]);
        if (!isnan(t->u[i]))
            sheet_printf(s, ST_DIM, "  u %.3f", (double)t->u[i]);
        sheet_line(s);
    }
}

/* The step's tokens; on a terminal a row is broken between two tokens, never inside the quotes of
 * one. */
static void step_tokens(struct show *w, const struct step_row *r)
{
    enum { HANG = 11 };
    struct sheet *s = w->to->out;
    int width = cli_width();
    for (int i = 0, k = -1; r->tokens.n == 0 && r->tops && i < r->tops->n; i++) {
        const struct top *x = &r->tops->at[i]; /* from a server that sends texts without ids */
        if (x->k != k && x->n) {
            sheet_add(s, ST_TEXT, " ");
            sheet_quote(s, ST_TEXT, x->text, (size_t)x->n, 0);
        }
        k = x->k;
    }
    for (int i = 0; i < r->tokens.n; i++) {
        FREED(sheet_free) struct sheet one = {.ascii = s->ascii};
        show_token(w, &one, i < r->rec.accepted ? ST_DRAFT : ST_TEXT, r->tokens.v[i]);
        sheet_line(&one);
        const struct buf *row = &s->row[s->n_row - 1].text, *token = &one.row[0].text;
        if (width && text_width(row->p, row->n) + 1 + text_width(token->p, token->n) > width) {
            sheet_line(s);
            sheet_tab(s, HANG - 1);
        }
        sheet_add(s, ST_TEXT, " ");
        sheet_add_row(s, &one.row[0], 0, (int)token->n);
    }
}

static void step_line(struct show *w, const struct step_row *r)
{
    struct sheet *s = w->to->out;
    const struct step_rec *k = &r->rec;
    sheet_printf(s, ST_KEY, "%5d.%-4d", r->turn, r->n);
    if (k->source == STEP_PIECE)
        sheet_printf(s, ST_TEXT, " piece   at %-6d", k->pos0);
    else
        sheet_printf(s, ST_TEXT, " %-7s at %-6d rows %-4d", step_kind_name(k->kind), k->pos0,
                     k->rows);
    if (k->source == STEP_PIECE && k->us_arrived) /* an imported one has no time */
        sheet_printf(s, ST_TEXT, " after %.1f ms", (double)k->us_arrived / 1000);
    if (k->drafted)
        sheet_printf(s, ST_TEXT, " accepted %d of %d", k->accepted, k->drafted);
    sheet_add(s, ST_TEXT, " ");
    step_tokens(w, r);
    sheet_line(s);
}

/* A line a token: its log probability, its rival's, and whether it was given by hand. */
static void fact_lines(struct show *w, const struct step_row *r)
{
    struct sheet *s = w->to->out;
    for (int i = 0; r->facts && i < r->tokens.n; i++) {
        const struct token_fact *f = &r->facts[i];
        sheet_add(s, ST_TEXT, "  ");
        show_token(w, s, i < r->rec.accepted ? ST_DRAFT : ST_TEXT, r->tokens.v[i]);
        if (!isnan(f->logp))
            sheet_printf(s, ST_DIM, "  log p %.3g", (double)f->logp);
        if (f->rival >= 0) {
            sheet_add(s, ST_DIM, "  rival ");
            show_token(w, s, ST_TEXT, f->rival);
            sheet_printf(s, ST_DIM, "  %.3g", (double)f->rival_logp);
        }
        if (i < r->rec.forced)
            sheet_add(s, ST_WARN, "  given by hand");
        sheet_line(s);
    }
}

static void step_details(struct show *w, const struct step_row *r)
{
    struct sheet *s = w->to->out;
    const struct step_rec *k = &r->rec;
    sheet_add(s, ST_LABEL, "  bonus ");
    if (k->bonus >= 0)
        show_token(w, s, ST_TEXT, k->bonus);
    else
        sheet_add(s, ST_DIM, "none");
    if (k->source == STEP_COMPUTED)
        sheet_printf(s, ST_TEXT, "  draws %llu", (unsigned long long)k->draws);
    if (!isnan(k->margin))
        sheet_printf(s, ST_TEXT, "  margin %.3f", (double)k->margin);
    sheet_line(s);
    if (!r->tops)
        fact_lines(w, r);
    show_served_step(r, w->to);
    if (k->source != STEP_COMPUTED)
        return;
    sheet_printf(s, ST_LABEL, "  digests ");
    say_line(s, ST_TEXT, "pages %016llx  draft %016llx  logits %016llx",
             (unsigned long long)k->page_digest, (unsigned long long)k->draft_digest,
             (unsigned long long)k->logit_digest);
    sheet_printf(s, ST_LABEL, "  microseconds ");
    say_line(s, ST_TEXT, "draft %u  verify %u  commit %u  check %u", k->us_draft, k->us_verify,
             k->us_commit, k->us_check);
    if (r->tree)
        tree_lines(w, r->tree);
    else if (k->drafted && w->pack && w->pack->trees[0])
        say_line(s, ST_DIM, "  the pack has trees of %s only", w->pack->trees);
    else if (k->drafted)
        say_line(s, ST_DIM, "  the tree was not saved: --log-level tree saves it");
}

static bool show_step(const struct step_row *r, void *arg)
{
    struct show *w = arg;
    const struct printer *to = w->to;
    if (r->turn > w->part->upto)
        return false;
    w->newest = r->n;
    if (w->step && r->n != w->step)
        return true;
    w->n_steps++;
    PRINT_IN(to, NULL, '{');
    if (to->json)
        json_step(r, w->part->session, to);
    else
        step_line(w, r);
    if (w->step && !to->json)
        step_details(w, r);
    return true;
}

/* ---- turns ---- */

static bool is_inherited(const struct show *w)
{
    return w->part != &w->past.part[w->past.n_part - 1];
}

static enum past_state state_of(const struct show *w, int turn)
{
    for (int i = w->past.n - 1; i >= 0; i--)
        if (w->past.turn[i].user.n == turn)
            return w->past.turn[i].state;
    return PAST_LIVE;
}

static void json_turn(struct show *w, const struct turn_row *r, const struct printer *to)
{
    enum past_state state = state_of(w, r->n);
    print_add(to, ST_TEXT, "\f%d{turn}%s{role}%s{session}%d{inherited?}%.*s{text}%ld{created_ms}"
              "%d{undone?}%d{replaced?}%d{left_out?}", r->n, r->is_user ? "user" : "reply",
              r->session, is_inherited(w), (int)r->text_n, r->text ? r->text : "", r->created_ms,
              state == PAST_UNDONE, state == PAST_REPLACED, state == PAST_LEFT_OUT);
    if (r->is_user) {
        FREED(buf_free) struct buf hazards = {0};
        print_add(to, ST_TEXT, "\f%d{regen?}%ld{seed}%lu{draws0}%d{reused}", r->regen, r->seed,
                  r->draws0, r->n_reused);
        report_reuse(&(struct reuse_view){r->reuse, r->tokens.n, r->n_reused}, to->json);
        hazards_of_settings(r->sampling, "; ", &hazards);
        print_add(to, ST_TEXT, "\f%s{settings}%s{hazards}", r->sampling, hazards.p);
    } else {
        print_add(to, ST_TEXT, "\f%s{stop}%d{steps}%d{drafted}%d{accepted}%lu{us_prefill}"
                  "%lu{us_decode}", stop_name(r->stop), r->n_steps, r->n_drafted, r->n_accepted,
                  r->us_prefill, r->us_decode);
        show_served_json(r->served, to->json);
    }
    print_ints(to, "tokens", r->tokens.v, r->tokens.n);
}

/* All settings of the first turn that is shown, then what changes. */
static void settings_lines(struct show *w, const struct turn_row *r)
{
    FREED(buf_free) struct buf text = {0};
    if (w->settings)
        facts_changes(w->settings, r->sampling, &text);
    else
        facts_settings(r->sampling, &text);
    if (text.n) {
        sheet_printf(w->to->out, ST_LABEL, "%s", w->settings ? "now: " : "settings: ");
        sheet_addn(w->to->out, ST_DIM, text.p, text.n);
        sheet_line(w->to->out);
    }
    set_text(&w->settings, r->sampling);
}

/* Which model or draft computed the turn, if it is another one than before. */
static void models_lines(struct show *w, const struct turn_row *r)
{
    static const char *const names[][2] = {{"model_dir", "model"}, {"draft_dir", "draft"}};
    const char *about = NULL, *before = w->by ? w->by : w->about.p;
    for (int i = 0; i < w->n_run && w->run[i].order <= r->order; i++)
        about = w->run[i].about;
    for (int k = 0; k < 2 && about; k++) {
        FREED(free_at) char *was = facts_value(before, names[k][0]);
        FREED(free_at) char *now = facts_value(about, names[k][0]);
        const char *a = was && *was ? was : "none", *b = now && *now ? now : "none";
        if (strcmp(a, b) == 0)
            continue;
        sheet_printf(w->to->out, ST_LABEL, "%s: ", names[k][1]);
        say_line(w->to->out, ST_DIM, "%s", b);
    }
    if (about)
        set_text(&w->by, about);
}

static void turn_head(struct show *w, const struct turn_row *r)
{
    const char *mark = past_mark(state_of(w, r->n));
    sheet_printf(w->to->out, ST_HEAD, "turn %d%s", r->n, r->regen ? "  (again)" : "");
    if (*mark)
        sheet_printf(w->to->out, ST_HEAD, "  (%s)", mark);
    FREED(buf_free) struct buf hazards = {0};
    if (hazards_of_settings(r->sampling, w->to->out->ascii ? " | " : " · ", &hazards))
        sheet_printf(w->to->out, ST_BAD, "  %s", hazards.p);
    if (is_inherited(w))
        sheet_printf(w->to->out, ST_DIM, "  inherited from %s", session_name(w, w->part->session));
    sheet_line(w->to->out);
}

static void turn_lines(struct show *w, const struct turn_row *r)
{
    struct sheet *s = w->to->out;
    if (r->is_user) {
        turn_head(w, r);
        models_lines(w, r);
        settings_lines(w, r);
    }
    if (w->pack && w->pack->level != PACK_TEXT)
        say_line(s, ST_DIM, "(text left out)");
    else
        sheet_lines(s, r->is_user ? ST_USER : ST_TEXT, r->text ? r->text : "", r->text_n);
    FREED(buf_free) struct buf why = {0};
    if (r->is_user)
        reuse_text(&r->reuse, r->tokens.n, r->n_reused, &why);
    if (why.n)
        say_line(s, ST_DIM, "[%s]", why.p);
    if (r->served) {
        show_served(r, s);
    } else if (!r->is_user) {
        say_line(s, ST_DIM, "[%s, %d step%s, %d token%s, %d of %d drafted accepted, %.0f ms]",
                 r->stop == STOP_OPEN ? "not ended" : stop_name(r->stop), r->n_steps,
                 plural(r->n_steps), r->tokens.n, plural(r->tokens.n), r->n_accepted, r->n_drafted,
                 (double)(r->us_prefill + r->us_decode) / 1000);
    }
    sheet_line(s);
}

static bool show_turn(const struct turn_row *r, void *arg)
{
    struct show *w = arg;
    if (r->n > w->part->upto)
        return false;
    w->n_turns++;
    PRINT_IN(w->to, NULL, '{');
    if (w->to->json)
        json_turn(w, r, w->to);
    else if (!w->step)
        turn_lines(w, r);
    return true;
}

/* ---- the whole ---- */

static void json_head(struct show *w, const char *hazards, const struct printer *to)
{
    const struct session_row *r = &w->row;
    print_add(to, ST_TEXT, "\f%s{id}%d{number}%s{parent}%d{fork_turn}%s{title}%s{model}"
              "%ld{created_ms}", r->id, r->number, r->parent[0] ? r->parent : NULL, r->fork_turn,
              r->title, r->model, r->created_ms);
    jput_key(to->json, "pack");
    facts_pack_json(w->pack, to->json);
    jput_key(to->json, "about");
    facts_json(w->about.p, to->json);
    jput_key(to->json, "settings");
    facts_json(w->past.settings.p, to->json);
    print_str(to, "hazards", hazards);
}

/* "BUG 24617 in turn 2 · CHECK OFF in turns 2-3 (41 steps unchecked)", or nothing. */
static void session_hazards(const struct show *w, struct hdb *d, const char *id, struct buf *out)
{
    const char *between = w->c->opt.json ? "; " : w->to->out->ascii ? " | " : " · ";
    hdb_hazards(d, id, true, between, out, NULL);
}

static void head_line(struct show *w, const char *label, const char *text, const char *more)
{
    if (!text || !*text)
        return;
    /* 3 blanks: what is wrapped stands under the text */
    sheet_printf(w->to->out, ST_LABEL, "%-8s   ", label);
    sheet_add(w->to->out, ST_TEXT, text);
    if (more && *more)
        sheet_printf(w->to->out, ST_DIM, "  %.12s", more);
    sheet_line(w->to->out);
}

static void head_lines(struct show *w, const char *hazards)
{
    const struct session_row *r = &w->row;
    const char *about = w->about.p;
    char when[20];
    char *names[] = {facts_value(about, "model_dir"), facts_value(about, "model_sha"),
                     facts_value(about, "draft_dir"), facts_value(about, "draft_sha")};
    FREED(buf_free) struct buf computed = {0}, pack = {0};
    when_text(r->created_ms, when);
    facts_computed(about, &computed);
    if (w->pack)
        facts_pack(w->pack, &pack);
    sheet_printf(w->to->out, ST_KEY, "session %d", r->number);
    say_line(w->to->out, ST_DIM, "  %s  %s", when, r->id);
    head_line(w, "pack", pack.p, NULL);
    head_line(w, "model", names[0], names[1]);
    head_line(w, "draft", names[2] && *names[2] ? names[2] : "none", names[3]);
    head_line(w, "computed", computed.p, NULL);
    show_launch(about, w->to->out);
    head_line(w, "system", w->past.system, NULL);
    if (r->parent[0]) {
        sheet_printf(w->to->out, ST_LABEL, "%-8s   ", "fork");
        say_line(w->to->out, ST_TEXT, "of %s after turn %d", session_name(w, r->parent),
                 r->fork_turn);
    }
    if (hazards)
        say_line(w->to->out, ST_BAD, "%s", hazards);
    sheet_line(w->to->out);
    for (int i = 0; i < 4; i++)
        free(names[i]);
}

static bool take_run(const struct run_row *r, void *arg)
{
    struct show *w = arg;
    *APPEND(w->run, w->n_run) = (struct show_run){r->order, xstrdup(r->about)};
    return true;
}

static void drop_runs(struct show *w)
{
    for (int i = 0; i < w->n_run; i++)
        free(w->run[i].about);
    w->n_run = 0;
}

/* Calls fn for the rows of the session and of those it was forked from, the oldest first. */
static bool each_part(struct show *w, struct hdb *d, bool steps, struct err *e)
{
    for (int i = 0; i < w->past.n_part; i++) {
        w->part = &w->past.part[i];
        if (w->turn && (w->turn > w->part->upto ||
                        (i > 0 && w->turn <= w->past.part[i - 1].upto)))
            continue; /* a turn belongs to one of them */
        drop_runs(w);
        if (hdb_runs(d, w->part->session, take_run, w, e) < 0)
            return false;
        int n = steps ? hdb_steps(d, w->part->session, w->turn, show_step, w, e)
                      : hdb_turns(d, w->part->session, w->turn, show_turn, w, e);
        if (n < 0)
            return false;
    }
    return true;
}

static bool fail_missing(struct show *w, struct err *e)
{
    const char *name = session_name(w, w->row.id);
    if (!w->n_turns)
        return err_set(e, ERR_NEGATIVE, "session %s has no turn %d; its newest is turn %d",
                       name, w->turn, w->past.last);
    if (!w->newest)
        return err_set(e, ERR_NEGATIVE, "turn %d of session %s has no step in the log", w->turn,
                       name);
    return err_set(e, ERR_NEGATIVE, "turn %d of session %s has no step %d; its newest is step %d",
                   w->turn, name, w->step, w->newest);
}

static bool show_all(struct show *w, struct hdb *d, struct err *e)
{
    const struct printer *to = w->to;
    FREED(buf_free) struct buf hazards = {0};
    session_hazards(w, d, w->row.id, &hazards);
    print_open(to, NULL, '{');
    if (to->json)
        json_head(w, hazards.p, to);
    else if (!w->turn)
        head_lines(w, hazards.p);
    print_open(to, "turns", '[');
    if (!each_part(w, d, false, e))
        return false;
    print_close(to, ']');
    print_open(to, "steps", '[');
    if ((w->turn || to->json) && !each_part(w, d, true, e))
        return false;
    print_close(to, ']');
    print_close(to, '}');
    return !((w->turn && !w->n_turns) || (w->step && !w->n_steps)) || fail_missing(w, e);
}

int cli_show(struct cli *c)
{
    struct err e = {0};
    struct show w = {.c = c, .to = cli_answer(c, 0)};
    FREED(hdb_close_at) struct hdb *d = NULL;
    char *id = NULL, *dir = NULL;
    bool ok = read_place(c->word[0], &id, &w.turn, &w.step, &e) &&
              (d = cli_open_session(c, id, &w.row, &e)) &&
              (w.db = d, w.pack = hdb_packed(d), true) && hdb_about(d, w.row.id, &w.about, &e) &&
              hdb_past(d, w.row.id, INT_MAX, &w.past, &e);
    /* the folder named in a pack is one of another machine */
    if (ok && !w.pack && (dir = facts_value(w.about.p, "model_dir")))
        w.tok = tok_open(dir, NULL); /* to show text beside ids; if it fails, only ids are shown */
    ok = ok && show_all(&w, d, &e) && hdb_whole(d, &e);
    if (ok)
        cli_answer_end();
    tok_close(w.tok);
    drop_runs(&w);
    FREE(dir, id, w.settings, w.by, w.run);
    hdb_past_free(&w.past);
    buf_free(&w.about);
    session_row_free(&w.row);
    return ok ? 0 : cli_fail(&e);
}
