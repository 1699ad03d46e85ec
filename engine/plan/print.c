/* print.c - a plan as text or JSON: lengths, page tables, extents and slots. */

#include "engine/plan/plan.h"
#include "kernels/json.h"

enum { SHOWN = 12 }; /* ids of a list in the text form, twice as many rows; the middle is elided */

/* dashes: 0 stands for no id and is shown as "-". */
static void list_text(struct buf *out, const int32_t *v, int n, bool dashes)
{
    for (int i = 0; i < n; i++) {
        if (n > SHOWN && i == SHOWN / 2) {
            buf_printf(out, " ... %d more ...", n - SHOWN);
            i = n - SHOWN / 2;
        }
        buf_str(out, i ? " " : "");
        if (v[i] || !dashes)
            buf_printf(out, "%d", v[i]);
        else
            buf_char(out, '-');
    }
}

/* Whether the table's pages are still those of the plan: a page list changes with the next plan
 * over it. */
static bool has_pages(const struct plan *p, const struct table *t)
{
    return !p->list || p->list->version[side_of(t->pool)] == p->list_version;
}

/* How many columns the longest request needs. A plan with a least width has empty ones behind
 * them. */
static int used_columns(const struct plan *p, const struct table *t)
{
    int most = 0;
    for (int b = 0; b < p->n_req; b++)
        most = max_int(most, div_up(p->kv_len[b], t->page_size));
    return min_int(most, t->n_cols);
}

static const int32_t *expand_row(const struct table *t, int r)
{
    return t->expand + (size_t)r * (size_t)t->expand_w;
}

/* ---- text ------------------------------------------------------------------------------------ */

static void row_text(const struct table *t, int r, struct buf *out)
{
    buf_printf(out, "    row %-3d keys [%d, %d)", r, t->lo[r], t->hi[r]);
    if (t->n_expand && t->n_expand[r]) {
        buf_str(out, " + slots ");
        list_text(out, expand_row(t, r), t->n_expand[r], false);
    }
    if (t->write)
        buf_printf(out, "  writes %s slot %d", pool_name(t->pool), t->write[r]);
    buf_char(out, '\n');
}

static void table_text(const struct plan *p, const struct table *t, const char *name,
                       struct buf *out)
{
    buf_printf(out, "  %s table: %s slots, page size %d, %d columns, %d expand columns, ", name,
               pool_name(t->pool), t->page_size, used_columns(p, t), t->expand_w);
    if (t->window)
        buf_printf(out, t->window > 0 ? "window %d, " : "chunks of %d, ", abs(t->window));
    buf_printf(out, "epoch %u\n", t->epoch);
    for (int b = 0; b < p->n_req; b++) {
        buf_printf(out, "    request %d pages ", b);
        list_text(out, t->pages + (size_t)b * (size_t)t->n_cols,
                  has_pages(p, t) ? used_columns(p, t) : 0, true);
        buf_str(out, has_pages(p, t) ? "" : "changed since");
        buf_char(out, '\n');
    }
    for (int r = 0; r < p->n_rows; r++) {
        if (p->n_rows > 2 * SHOWN && r == SHOWN) {
            buf_printf(out, "    ... %d more rows ...\n", p->n_rows - 2 * SHOWN);
            r = p->n_rows - SHOWN;
        }
        row_text(t, r, out);
    }
}

static void head_text(const struct plan *p, struct buf *out)
{
    buf_printf(out, "%s: %d request(s), %d row(s), digest %016llx\n", plan_mode_name(p->mode),
               p->n_req, p->n_rows, (unsigned long long)plan_digest(p));
    for (int b = 0; b < p->n_req; b++)
        buf_printf(out, "  request prefix_len %d, q_len %d, kv_len %d, first row %d\n",
                   p->prefix_len[b], p->q_len[b], p->kv_len[b], p->row0[b]);
    buf_str(out, "  tokens ");
    list_text(out, p->token, p->n_rows, false);
    buf_str(out, "\n  positions ");
    list_text(out, p->pos, p->n_rows, false);
    buf_char(out, '\n');
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void table_json(const struct plan *p, const struct table *t, const char *name,
                       struct buf *out)
{
    JPUT_IN(out, '{');
    jput_fields(out, "%s{table}%s{space}%d{epoch}%d{page_size}%d{window}%d{columns}"
                "%d{expand_columns}", name, pool_name(t->pool), t->epoch, t->page_size, t->window,
                used_columns(p, t), t->expand_w);
    jput_kopen(out, "pages", '[');
    for (int b = 0; b < p->n_req; b++)
        jput_ints(out, t->pages + (size_t)b * (size_t)t->n_cols,
                  has_pages(p, t) ? used_columns(p, t) : 0);
    jput_close(out, ']');
    jput_kints(out, "lo", t->lo, p->n_rows);
    jput_kints(out, "hi", t->hi, p->n_rows);
    jput_kopen(out, "expand", '[');
    for (int r = 0; r < p->n_rows; r++)
        jput_ints(out, expand_row(t, r), t->n_expand ? t->n_expand[r] : 0);
    jput_close(out, ']');
    jput_kints(out, "write", t->write, t->write ? p->n_rows : 0);
}

static void head_json(const struct plan *p, struct buf *out)
{
    jput_fields(out, "%s{mode}%d{requests_n}%d{rows}%016lx{digest}", plan_mode_name(p->mode),
                p->n_req, p->n_rows, plan_digest(p));
    jput_kopen(out, "requests", '[');
    for (int b = 0; b < p->n_req; b++) {
        jput_record(out, "%d{prefix_len}%d{q_len}%d{kv_len}%d{row0}", p->prefix_len[b], p->q_len[b],
                    p->kv_len[b], p->row0[b]);
    }
    jput_close(out, ']');
    jput_kints(out, "token", p->token, p->n_rows);
    jput_kints(out, "position", p->pos, p->n_rows);
    jput_kints(out, "parent", p->up, p->n_rows);
}

/* ---- a plan ---------------------------------------------------------------------------------- */

static void each_table(const struct plan *p,
                       void (*print)(const struct plan *p, const struct table *t, const char *name,
                                     struct buf *out),
                       struct buf *out)
{
    for (int i = 0; i < N_TABLES; i++) {
        const char *name = table_name((enum table_id)i);
        char prefix[32];
        snprintf(prefix, sizeof prefix, "%s prefix", name);
        if (p->table[i].used)
            print(p, &p->table[i], name, out);
        if (p->prefix[i].used)
            print(p, &p->prefix[i], prefix, out);
    }
}

void plan_print(const struct plan *p, bool json, struct buf *out)
{
    if (!json) {
        head_text(p, out);
        each_table(p, table_text, out);
        return;
    }
    JPUT_IN(out, '{');
    head_json(p, out);
    JPUT_KIN(out, "tables", '[');
    each_table(p, table_json, out);
}
