/* status.c - the status line: its parts, which of them fit, and the marks between them. See
 * repl.h. */
#include <math.h>

#include "engine/bugs.h"
#include "history/evidence/hazards.h"
#include "repl/app/report.h"
#include "repl/repl.h"

/* "812", "3.1k", "131k" */
static void add_count(struct sheet *out, int n)
{
    if (n < 1000)
        sheet_printf(out, ST_TEXT, "%d", n);
    else
        sheet_printf(out, ST_TEXT, n < 9950 ? "%.1fk" : "%.0fk", n / 1000.0);
}

/* The latest reading of a server's metrics. */
static void status_gauges(const struct gauge_now *g, struct sheet *out)
{
    const char *gap = "";
    for (int i = 0; i < N_POOLS; i++) {
        float v = g->v[GAUGE_POOL + i];
        if (isnan(v))
            continue;
        sheet_printf(out, ST_LABEL, "%s%s ", gap, i == POOL_FULL && g->unit ? g->unit
                     : pool_name((enum pool_id)i));
        sheet_printf(out, v > 0.9f ? ST_WARN : ST_TEXT, "%.0f%%", 100 * (double)v);
        gap = " ";
    }
    if (g->v[GAUGE_WAITING] > 0)
        sheet_printf(out, ST_WARN, "%squeue %.0f", gap, (double)g->v[GAUGE_WAITING]);
}

static void status_pools(const struct pool_view pool[N_POOLS], struct sheet *out)
{
    const char *gap = "";
    for (int i = 0; i < N_POOLS; i++) {
        const struct pool_view *p = &pool[i];
        int all = p->total - p->reserved, held = p->used + p->protected_;
        if (!p->exists || all <= 0)
            continue;
        sheet_printf(out, ST_LABEL, "%s%s ", gap, pool_name((enum pool_id)i));
        sheet_printf(out, held > 0.9 * all ? ST_WARN : ST_TEXT, "%d%%",
                     (int)(100.0 * held / all + 0.5));
        gap = " ";
    }
}

static void status_draft(const struct app *a, const struct status *s, struct sheet *out)
{
    const struct chat_view *v = &s->chat;
    const struct backend_info *i = a->backend ? backend_info(a->backend) : NULL;
    if (!s->has[VIEW_ACCEPT])
        return;
    if (i && i->draft_off)
        sheet_printf(out, ST_WARN, "spec off (%s)", i->draft_off);
    else if (!v->settings.spec)
        sheet_add(out, ST_WARN, "spec off (/set spec)");
    else if (v->drafts.cycles == 0 && v->drafts.drafted > 0) /* of a server that does not count its
                                                                steps */
        sheet_printf(out, ST_TEXT, "accept %.0f%%",
                     100 * (double)v->drafts.accepted / (double)v->drafts.drafted);
    else if (v->drafts.cycles == 0)
        sheet_add(out, ST_TEXT, "MAL -");
    else
        sheet_printf(out, ST_TEXT, "MAL %.1f", v->turn_mal > 0 ? v->turn_mal : v->session_mal);
    char shape[16];
    if (v->settings.spec && v->settings.auto_shape && v->auto_shape.n)
        sheet_printf(out, ST_TEXT, " auto %s",
                     report_shape(&v->auto_shape.at[v->auto_shape.now], shape));
}

static void status_log(const struct app *a, struct sheet *out)
{
    struct history_status h = {0};
    if (a->history)
        history_status(a->history, &h);
    const char *error = a->history ? h.error : a->log_error;
    if (h.recording && !a->private_ && h.limit[0])
        sheet_printf(out, ST_WARN, "REC, log %.0f%% full",
                     100 * (double)h.bytes / (a->opt.max_size * 1e6));
    else if (h.recording && !a->private_)
        sheet_add(out, ST_GOOD, "REC");
    else if (error[0])
        sheet_printf(out, ST_BAD, "NOT SAVED: %s", error);
    else
        sheet_add(out, ST_WARN, "no log");
}

bool app_hazards(const struct status *s, bool ascii, struct buf *out)
{
    const char *gap = "", *between = ascii ? " | " : " · ";
    for (int b = 0; b < N_BUGS; b++) {
        char number[16];
        int on = bug_on(&s->bugs, (enum bug)b);
        if (!on)
            continue;
        snprintf(number, sizeof number, "%d", bug_at((enum bug)b)->number);
        buf_str(out, gap);
        hazard_print(number, bug_state_name((enum bug)b, on), out);
        gap = between;
    }
    if (s->chat.settings.check == CHECK_OFF) {
        buf_str(out, gap);
        hazard_print(NULL, NULL, out);
        gap = between;
    }
    return *gap != '\0';
}

/* A part of the status line. Parts that do not fit are dropped, those of the greatest rank
 * first. */
struct status_part {
    int rank; /* 0: never dropped */
    void (*write)(struct app *a, const struct status *s, struct sheet *out);
};

static void part_hazards(struct app *, const struct status *s, struct sheet *out)
{
    FREED(buf_free) struct buf text = {0};
    if (app_hazards(s, out->ascii, &text))
        sheet_add(out, ST_BAD, text.p);
}

static void part_pause(struct app *a, const struct status *s, struct sheet *out)
{
    if (!s->pause.on)
        return;
    sheet_printf(out, ST_WARN, "%s %d.%d%s%s", app_recording(a) ? "RECORDING" : "PAUSED",
                 s->pause.turn,
                 s->pause.step, s->pause.phase ? " " : "", step_phase_name(s->pause.phase));
    if (s->pause.step < s->pause.last)
        sheet_printf(out, ST_WARN, " (of %d.%d)", s->pause.turn, s->pause.last);
    if (s->single_keys)
        sheet_add(out, ST_WARN, " [s p n f c w S N]");
}

static void part_unchecked(struct app *, const struct status *s, struct sheet *out)
{
    if (s->check.unchecked)
        sheet_printf(out, ST_WARN, "%llu unchecked", (unsigned long long)s->check.unchecked);
}

static void part_context(struct app *, const struct status *s, struct sheet *out)
{
    sheet_add(out, ST_LABEL, "ctx ");
    add_count(out, s->chat.length);
    if (s->chat.capacity > 0) {
        sheet_add(out, ST_TEXT, "/");
        add_count(out, s->chat.capacity);
    }
}

static void part_pools(struct app *, const struct status *s, struct sheet *out)
{
    if (s->has[VIEW_GAUGES] && s->at.turn == 0) /* a step has no gauges */
        status_gauges(&s->gauge, out);
    else
        status_pools(s->pool, out);
}

static void part_draft(struct app *a, const struct status *s, struct sheet *out)
{
    status_draft(a, s, out);
}

static void part_speed(struct app *, const struct status *s, struct sheet *out)
{
    if (s->chat.tok_s > 0) /* else there is no reply yet, or it has one token: reply_tok_s() */
        sheet_printf(out, ST_TEXT, s->chat.tok_s < 10 ? "%.1f t/s" : "%.0f t/s", s->chat.tok_s);
}

/* The newest step, beside the step of the address if there is one. */
static void status_step(const struct app *a, const struct status *s, struct sheet *out)
{
    bool past = s->at.turn && !app_recording(a);
    if (!past)
        sheet_printf(out, ST_TEXT, "step %d.%d", s->chat.turn, s->chat.step);
    else if (s->live.step > 0) /* none was computed since the session was resumed */
        sheet_printf(out, ST_TEXT, "LIVE %d.%d", s->live.turn, s->live.step);
}

static void part_step(struct app *a, const struct status *s, struct sheet *out)
{
    if (s->has[VIEW_STEPS] && !(s->has[VIEW_SERVED] && s->chat.step == 0))
        status_step(a, s, out);
    else
        sheet_printf(out, ST_TEXT, "turn %d", s->chat.turn);
}

static const struct backend_info *info_of(const struct app *a)
{
    static const struct backend_info none;
    return a->backend ? backend_info(a->backend) : &none;
}

/* The kind of server, its address, its model, and what is wrong with the connection. */
static void part_kind(struct app *a, const struct status *, struct sheet *out)
{
    const struct backend_info *i = info_of(a);
    if (i->server_kind) /* "an OpenAI-compatible server" is too long here */
        sheet_add(out, ST_TEXT, strchr(i->server_kind, ' ') ? "OpenAI API" : i->server_kind);
}

static void part_address(struct app *a, const struct status *, struct sheet *out)
{
    const struct backend_info *i = info_of(a);
    const char *host = i->server_url ? strstr(i->server_url, "//") : NULL;
    if (!host)
        return;
    sheet_printf(out, ST_DIM, "%.*s", (int)strcspn(host + 2, "/"), host + 2);
}

static void part_model(struct app *a, const struct status *, struct sheet *out)
{
    const struct backend_info *i = info_of(a);
    if (i->server_url)
        sheet_printf(out, ST_TEXT, "%.40s", i->model_dir);
}

static void part_trouble(struct app *, const struct status *s, struct sheet *out)
{
    if (s->chat.trouble[0])
        sheet_printf(out, ST_BAD, "%.56s%s", s->chat.trouble, strlen(s->chat.trouble) > 56 ? "..."
                     : "");
}

/* The step that is shown, where that is not the newest: never dropped. */
static void part_at(struct app *a, const struct status *s, struct sheet *out)
{
    if (s->at.turn && !app_recording(a)) /* RECORDING says so already */
        sheet_printf(out, ST_WARN, "AT %d.%d", s->at.turn, s->at.step);
}

static void part_log(struct app *a, const struct status *, struct sheet *out)
{
    if (!app_recording(a))
        status_log(a, out);
}

void app_status(struct app *a, const struct status *s, int width, struct sheet *out)
{
    static const struct status_part part[] = {{0, part_hazards}, {0, part_pause}, {0, part_trouble},
                                              {1, part_kind}, {6, part_address}, {7, part_model},
                                              {6, part_unchecked}, {0, part_context},
                                              {5, part_pools}, {3, part_draft}, {4, part_speed},
                                              {0, part_at}, {2, part_step}, {0, part_log}};
    enum { N = LEN(part) };
    struct sheet text[N];
    int all = -1, n = -1, cells[N]; /* cells with single blanks between the parts; gaps between
                                       them */
    bool shown[N];
    for (int i = 0; i < N; i++) {
        text[i] = (struct sheet){.ascii = out->ascii};
        part[i].write(a, s, &text[i]);
        const struct buf *t = text[i].n_row ? &text[i].row[0].text : NULL;
        cells[i] = t ? text_width(t->p, t->n) : 0;
        shown[i] = cells[i] > 0;
        all += shown[i] ? cells[i] + 1 : 0;
        n += shown[i];
    }
    for (int rank = N; rank > 0 && width > 0 && all > width; rank--)
        for (int i = 0; i < N; i++)
            if (part[i].rank == rank && shown[i]) {
                shown[i] = false;
                all -= cells[i] + 1;
                n--;
            }
    bool first = true, tight = width > 0 && all + 2 * n > width;
    const char *mark = tight ? " " : out->ascii ? " | " : " · ";
    for (int i = 0; i < N; i++) {
        if (shown[i]) {
            sheet_add(out, ST_DIM, first ? "" : mark);
            sheet_add_row(out, &text[i].row[0], 0, (int)text[i].row[0].text.n);
            first = false;
        }
        sheet_free(&text[i]);
    }
    sheet_line(out);
    if (width > 0 && all > width)
        sheet_cut(out, width);
}
