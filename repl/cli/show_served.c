/* show_served.c - see show_served.h. */
#include "repl/cli/show_served.h"

#include <jansson.h>
#include <math.h>

#include "kernels/json.h"
#include "kernels/json_read.h"
#include "repl/compare/facts.h"

/* ---- replies --------------------------------------------------------------------------------- */

static void add_count(struct buf *b, const char *name, int64_t v)
{
    if (v >= 0)
        buf_printf(b, "%s%s %lld", b->n ? ", " : "", name, (long long)v);
}

static void add_ms(struct buf *b, const char *name, double ms)
{
    if (!isnan(ms))
        buf_printf(b, "%s%s %.1f ms", b->n ? ", " : "", name, ms);
}

void show_served(const struct turn_row *r, struct sheet *out)
{
    const struct served *s = r->served;
    FREED(buf_free) struct buf told = {0};
    add_count(&told, "prompt", s->prompt);
    add_count(&told, "generated", s->generated);
    add_count(&told, "cached", s->cached);
    add_count(&told, "verifying steps", s->verifies);
    add_ms(&told, "queue", s->ms_queue);
    add_ms(&told, "first token", s->ms_first);
    add_ms(&told, "prompt in", s->ms_prompt);
    add_ms(&told, "reply in", s->ms_decode);
    if (s->finish[0])
        buf_printf(&told, "%sfinish %s", told.n ? ", " : "", s->finish);
    if (s->n_metric)
        buf_printf(&told, "%s%d metrics", told.n ? ", " : "", s->n_metric);
    sheet_printf(out, ST_DIM, "[%s, %d step%s or piece%s",
                 r->stop == STOP_OPEN ? "not ended" : stop_name(r->stop), r->n_steps,
                 plural(r->n_steps), plural(r->n_steps));
    if (s->reply_ids)
        sheet_printf(out, ST_DIM, ", %d id%s from the server", r->tokens.n, plural(r->tokens.n));
    else
        sheet_add(out, ST_DIM, ", no ids from the server");
    if (s->drafted >= 0)
        sheet_printf(out, ST_DIM, ", %lld of %lld drafted accepted", (long long)s->accepted,
                     (long long)s->drafted);
    if (r->us_prefill)
        sheet_printf(out, ST_DIM, "; first token after %.1f ms, the rest in %.1f ms",
                     (double)r->us_prefill / 1000, (double)r->us_decode / 1000);
    else if (r->us_decode) /* the whole reply came at once; an imported one has no times */
        sheet_printf(out, ST_DIM, "; %.1f ms in all", (double)r->us_decode / 1000);
    say_line(out, ST_DIM, "]");
    say_line(out, ST_DIM, "[server: %s]", told.n ? told.p : "nothing reported");
}

static void json_ms(struct buf *b, const char *name, double v)
{
    if (!isnan(v))
        jput_kreal(b, name, v);
}

void show_served_json(const struct served *s, struct buf *b)
{
    jput_key(b, "server");
    if (!s) {
        jput_null(b);
        return;
    }
    JPUT_IN(b, '{');
    served_report_json(s, b);
    JPUT_KIN(b, "metrics", '[');
    FOR_EACH(const struct served_metric, m, s->metric, s->n_metric) {
        JPUT_IN(b, '{');
        jput_fields(b, "%s{name}%s{labels}", m->name, m->labels);
        json_ms(b, "before", m->before);
        json_ms(b, "after", m->after);
    }
}

/* ---- steps ----------------------------------------------------------------------------------- */

void show_served_step(const struct step_row *r, const struct printer *to)
{
    if (r->rec.source == STEP_COMPUTED)
        return;
    const char *what = r->rec.source == STEP_PIECE ? "piece of the stream" : "server's step";
    if (r->rec.us_arrived)
        print_note(to, ST_LABEL, "  %s \vhere %.3f ms after the request", what,
                   (double)r->rec.us_arrived / 1000);
    else
        print_note(to, ST_LABEL, "  %s", what); /* imported, without times */
    PRINT_IN(to, "top", '[');
    for (int i = 0, k = -1; r->tops && i < r->tops->n; i++) {
        const struct top *x = &r->tops->at[i];
        bool first = x->k != k;
        k = x->k;
        PRINT_IN(to, NULL, '{');
        print_add(to, first ? ST_LABEL : ST_DIM, first ? "\f%d{k}\f  token %-3d "
                  : "\f%d{k}%d\f         or ", k, k + 1);
        if (x->id >= 0)
            print_int(to, "token", x->id);
        if (x->text)
            print_add(to, ST_TEXT, "\f%.*s{text}", x->n, x->text);
        if (x->n && !to->json) /* a pack without text has none */
            sheet_quote(to->out, first ? ST_TEXT : ST_DIM, x->text, (size_t)x->n, 0);
        if (x->id >= 0)
            print_add(to, ST_DIM, "  id %d", x->id);
        if (!isnan(x->logp))
            print_add(to, ST_DIM, "  log p %.4g{logp}", (double)x->logp);
        print_end(to);
    }
}

/* ---- the launch ------------------------------------------------------------------------------ */

static json_t *launch(const char *about)
{
    FREED(free_at) char *facts = facts_value(about, "server_facts");
    return facts ? json_parse(facts, strlen(facts), 0, NULL) : NULL;
}

void show_launch_lines(const char *about, struct buf *out)
{
    json_t *v;
    json_auto_t *o = launch(about);
    const char *key;
    json_object_foreach(o, key, v) {
        FREED(free_at) char *text = json_is_string(v) ? xstrdup(json_string_value(v))
                                                      : json_written(v, 0);
        buf_printf(out, "%s=%s\n", key, text ? text : "");
    }
}

void show_launch(const char *about, struct sheet *out)
{
    json_t *o = launch(about);
    size_t n = json_object_size(o);
    json_decref(o);
    if (n == 0)
        return;
    sheet_printf(out, ST_LABEL, "%-8s   ", "launch");
    sheet_printf(out, ST_TEXT, "%zu fact%s that the server reports", n, plural((int)n));
    say_line(out, ST_DIM, "  (--json, and the view v_launch, list them)");
}
