/* print.c - a plan for people and for programs: lengths, tables with their space, extents. */
#include <stdio.h>

#include "engine/plan/plan.h"

enum { MANY = 12 }; /* ids of one list that the text form shows before it elides */

/* dashes: 0 is no id, in text it is shown as "-". */
static void list(struct buf *out, const int32_t *v, int n, bool json, bool dashes)
{
    buf_str(out, json ? "[" : "");
    for (int i = 0; i < n; i++) {
        if (!json && n > MANY && i == MANY / 2) {
            buf_printf(out, " ... %d more ...", n - MANY);
            i = n - MANY / 2;
        }
        buf_str(out, i ? (json ? "," : " ") : "");
        if (v[i] || json || !dashes)
            buf_printf(out, "%d", v[i]);
        else
            buf_char(out, '-');
    }
    buf_str(out, json ? "]" : "");
}

static void row_text(const struct table *t, int r, struct buf *out)
{
    buf_printf(out, "    row %-3d keys [%d, %d)", r, t->lo[r], t->hi[r]);
    if (t->n_expand && t->n_expand[r]) {
        buf_str(out, " + slots ");
        list(out, t->expand + (size_t)r * (size_t)t->expand_w, t->n_expand[r], false, false);
    }
    if (t->write)
        buf_printf(out, "  writes %s slot %d", pool_name(t->pool), t->write[r]);
    buf_char(out, '\n');
}

/* The pages of a plan that borrowed them are gone once the next one did. */
static bool has_pages(const struct plan *p, const struct table *t)
{
    return !p->list || p->list->version[side_of(t->pool)] == p->list_version;
}

/* Columns that some request reaches; the rest of a plan of fixed width is empty. */
static int used_columns(const struct plan *p, const struct table *t)
{
    int most = 0;
    for (int b = 0; b < p->n_req; b++)
        most = max_int(most, div_up(p->kv_len[b], t->page_size));
    return min_int(most, t->n_cols);
}

static void table_text(const struct plan *p, const struct table *t, const char *what,
                       struct buf *out)
{
    buf_printf(out, "  %s table: %s slots, page size %d, %d columns, %d expand columns, ", what,
               pool_name(t->pool), t->page_size, used_columns(p, t), t->expand_w);
    if (t->window)
        buf_printf(out, "window %d, ", t->window);
    buf_printf(out, "epoch %u\n", t->epoch);
    for (int b = 0; b < p->n_req; b++) {
        buf_printf(out, "    request %d pages ", b);
        list(out, t->pages + (size_t)b * (size_t)t->n_cols, has_pages(p, t) ? used_columns(p, t) : 0,
             false, true);
        buf_str(out, has_pages(p, t) ? "" : "changed since");
        buf_char(out, '\n');
    }
    for (int r = 0; r < p->n_rows; r++) {
        if (p->n_rows > 2 * MANY && r == MANY) {
            buf_printf(out, "    ... %d more rows ...\n", p->n_rows - 2 * MANY);
            r = p->n_rows - MANY;
        }
        row_text(t, r, out);
    }
}

static void table_json(const struct plan *p, const struct table *t, const char *what,
                       struct buf *out)
{
    buf_printf(
        out,
        "{\"table\":\"%s\",\"space\":\"%s\",\"epoch\":%u,\"page_size\":%d,\"window\":%d,\"columns\":%d,"
        "\"expand_columns\":%d,\"pages\":[",
        what, pool_name(t->pool), t->epoch, t->page_size, t->window, used_columns(p, t), t->expand_w);
    for (int b = 0; b < p->n_req; b++) {
        buf_str(out, b ? "," : "");
        list(out, t->pages + (size_t)b * (size_t)t->n_cols, has_pages(p, t) ? used_columns(p, t) : 0,
             true, false);
    }
    buf_str(out, "],\"lo\":");
    list(out, t->lo, p->n_rows, true, false);
    buf_str(out, ",\"hi\":");
    list(out, t->hi, p->n_rows, true, false);
    buf_str(out, ",\"expand\":[");
    for (int r = 0; r < p->n_rows; r++) {
        buf_str(out, r ? "," : "");
        list(out, t->expand + (size_t)r * (size_t)t->expand_w, t->n_expand ? t->n_expand[r] : 0,
             true, false);
    }
    buf_str(out, "],\"write\":");
    list(out, t->write ? t->write : p->pos, t->write ? p->n_rows : 0, true, false);
    buf_char(out, '}');
}

static void table_print(const struct plan *p, const struct table *t, const char *what, bool json,
                        bool *first, struct buf *out)
{
    if (!t->used)
        return;
    buf_str(out, json && !*first ? "," : "");
    (json ? table_json : table_text)(p, t, what, out);
    *first = false;
}

static void lengths(const struct plan *p, bool json, struct buf *out)
{
    for (int b = 0; b < p->n_req; b++)
        buf_printf(out,
                   json ? "%s{\"prefix_len\":%d,\"q_len\":%d,\"kv_len\":%d,\"row0\":%d}"
                        : "%s  request prefix_len %d, q_len %d, kv_len %d, first row %d\n",
                   json && b ? "," : "", p->prefix_len[b], p->q_len[b], p->kv_len[b], p->row0[b]);
}

void plan_print(const struct plan *p, bool json, struct buf *out)
{
    buf_printf(out,
               json ? "{\"mode\":\"%s\",\"requests_n\":%d,\"rows\":%d,\"digest\":\"%016llx\","
                      "\"requests\":["
                    : "%s: %d request(s), %d row(s), digest %016llx\n",
               plan_mode_name(p->mode), p->n_req, p->n_rows, (unsigned long long)plan_digest(p));
    lengths(p, json, out);
    buf_str(out, json ? "],\"token\":" : "  tokens ");
    list(out, p->token, p->n_rows, json, false);
    buf_str(out, json ? ",\"position\":" : "\n  positions ");
    list(out, p->pos, p->n_rows, json, false);
    buf_str(out, json ? ",\"tables\":[" : "\n");
    bool first = true;
    for (int i = 0; i < N_TABLES; i++) {
        char prefix[32];
        snprintf(prefix, sizeof prefix, "%s prefix", table_name((enum table_id)i));
        table_print(p, &p->table[i], table_name((enum table_id)i), json, &first, out);
        table_print(p, &p->prefix[i], prefix, json, &first, out);
    }
    buf_str(out, json ? "]}" : "");
}
