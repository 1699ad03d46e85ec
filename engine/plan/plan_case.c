/* plan_case.c - a plan as a case; see plan.h. */
#include "engine/plan/plan.h"

#include "kernels/json.h"

static void put_rows(struct buf *out, const char *key, const int32_t *v, int n)
{
    jput_kints(out, key, v, v ? n : 0);
}

/* The pages of a request's columns in a pool: of the table, or those that the sequence holds. */
static void put_pages(struct buf *out, const struct plan *p, const struct table *t,
                      const struct plan_req *req, bool held)
{
    JPUT_KIN(out, held ? "held" : "tables", '[');
    for (int b = 0; b < p->n_req; b++) {
        const struct seq *s = req[b].seq;
        enum pool_id pool = held ? t->pool : POOL_FULL;
        int n = held ? (pool == POOL_DRAFT ? s->n_dcol : s->n_col)
                     : min_int(t->n_cols,
                               div_up(max_int(0, p->kv_len[b]), max_int(1, t->page_size)));
        JPUT_IN(out, '[');
        for (int c = 0; c < n; c++)
            jput_int(out, !held                ? t->pages[(size_t)b * (size_t)t->n_cols + (size_t)c]
                          : pool == POOL_DRAFT ? s->dcol[c].v
                          : pool == POOL_SWA   ? s->col[c].swa.v
                                               : s->col[c].full.v);
    }
}

/* The window of the layers that read a table. */
static int layers_window(const struct plan *p, const struct kv *kv, enum table_id id)
{
    int own = p->table[id].window, all = kv->draft_window;
    return id == TABLE_FULL    ? 0
           : id == TABLE_SWA   ? (p->mode == PLAN_FROZEN ? own : kv->window)
           : id == TABLE_DRAFT ? all
           : all && (own < 1 || own > all) ? all
                                           : own;
}

static void put_table(struct buf *out, const struct plan *p, const struct kv *kv,
                      const struct plan_req *req, enum table_id id, bool prefix)
{
    const struct table *t = prefix ? &p->prefix[id] : &p->table[id];
    enum pool_id reads = table_pool(id);
    char name[32];
    snprintf(name, sizeof name, "%s%s", table_name(id), prefix ? " prefix" : "");
    JPUT_IN(out, '{');
    jput_fields(out, "%s{name}%s{space}%s{reads}%d{page_size}%d{pool_page_size}%d{window}"
                "%d{layer_window}%s{unit}%d{null}%d{pool_pages}", name, pool_name(t->pool),
                pool_name(reads), t->page_size, kv->page_size, t->window,
                layers_window(p, kv, id),
                "page", 0, kv->pool[reads].total);
    if (p->prefix[id].used)
        jput_kstr(out, "part", prefix ? "prefix" : "new");
    put_pages(out, p, t, req, false);
    put_pages(out, p, &(struct table){.pool = reads}, req, true);
    put_rows(out, "lo", t->lo, p->n_rows);
    put_rows(out, "hi", t->hi, p->n_rows);
    jput_kopen(out, "expand", '[');
    for (int r = 0; r < p->n_rows; r++) {
        int n = t->n_expand ? t->n_expand[r] : 0;
        jput_ints(out, t->expand + (t->expand ? (size_t)r * (size_t)t->expand_w : 0),
                  max_int(0, min_int(n, t->expand_w)));
    }
    jput_close(out, ']');
    put_rows(out, "write", t->write, p->n_rows);
}

/* The cells of a draft pass: which ones rows write and see. */
static void put_levels(struct buf *out, const struct plan *p, const struct plan_req *req)
{
    jput_kopen(out, "cells", '[');
    for (int b = 0; b < p->n_req; b++)
        for (int i = 0; i < req[b].n; i++)
            jput_int(out, req[b].draft[i].cell);
    jput_close(out, ']');
    JPUT_KIN(out, "seen", '[');
    for (int b = 0; b < p->n_req; b++)
        for (int i = 0; i < req[b].n; i++)
            jput_ints(out, req[b].draft[i].seen, req[b].draft[i].n_seen);
}

/* Slots of live full pages and of the swa pages that they map to: of the pages' first cells. */
static void put_map(struct buf *out, const struct plan *p, const struct kv *kv,
                    const struct plan_req *req)
{
    JPUT_KIN(out, "full_to_swa", '[');
    for (int b = 0; b < p->n_req; b++)
        for (int c = 0; c < req[b].seq->n_col; c++) {
            int32_t full = req[b].seq->col[c].full.v, swa = kv->swa_of[full];
            for (int j = 0; j < kv->page_size && swa; j++)
                jput_ints(out, (int32_t[]){(full << kv->shift) + j, (swa << kv->shift) + j}, 2);
        }
}

void plan_case(const struct plan *p, const struct kv *kv, const struct plan_req *req,
               struct buf *out)
{
    JPUT_IN(out, '{');
    jput_fields(out, "%d{aerie_case}%s{engine}%s{version}%s{mode}", 1, "aerie", AERIE_VERSION,
                plan_mode_name(p->mode));
    jput_kopen(out, "requests", '[');
    for (int b = 0; b < p->n_req; b++)
        jput_record(out, "%d{prefix_len}%d{q_len}%d{kv_len}", p->prefix_len[b], p->q_len[b],
                    p->kv_len[b]);
    jput_close(out, ']');
    put_rows(out, "row_starts", p->row0, p->n_req + 1);
    put_rows(out, "positions", p->pos, p->n_rows);
    jput_kopen(out, "parents", '[');
    for (int b = 0, r = 0, from = 0; b < p->n_req; b++, from = r)
        for (; r < p->n_rows && r < from + p->q_len[b]; r++)
            jput_int(out, p->up[r] < 0 ? -1 : p->up[r] - from);
    jput_close(out, ']');
    if (p->mode == PLAN_DRAFT)
        put_levels(out, p, req);
    jput_kopen(out, "groups", '[');
    for (enum table_id i = 0; i < N_TABLES; i++) {
        if (p->table[i].used)
            put_table(out, p, kv, req, i, false);
        if (p->prefix[i].used)
            put_table(out, p, kv, req, i, true);
    }
    jput_close(out, ']');
    if (kv->has_swa && p->table[TABLE_SWA].used)
        put_map(out, p, kv, req);
}
