/* blocks.c - see blocks.h. */
#include "repl/app/blocks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/json.h"

enum { SESSION_BLOCKS = 4096, NAME = 21, GRAPH = 20,
       GRAPH_FROM = 56 /* cells of a line that has room for one */ };

void block_map_read(struct block_map *m, struct backend *b)
{
    m->sample = xcalloc(BLOCK_SAMPLES_KEPT, sizeof *m->sample);
    m->block = xcalloc(SESSION_BLOCKS, sizeof *m->block);
    m->n_sample = b->blocks->samples(b, m->sample, BLOCK_SAMPLES_KEPT);
    m->n_block = b->blocks->session(b, m->block, SESSION_BLOCKS);
    b->blocks->view(b, &m->view);
    m->ns = clock_ns();
}

void block_map_free(struct block_map *m)
{
    free(m->sample);
    free(m->block);
    *m = (struct block_map){0};
}

void block_cells(const struct block_map *m, int group, int cells, int32_t *cell)
{
    uint64_t first = m->n_sample ? m->sample[0].ns : m->ns, span = m->ns > first ? m->ns - first
                     : 0;
    int at = 0;
    for (int c = 0; c < cells; c++) {
        uint64_t end = first + (uint64_t)((double)span * (c + 1) / cells);
        while (at < m->n_sample && (m->sample[at].ns <= end || c == cells - 1))
            at++;
        cell[c] = at == 0 ? -1 : group < m->sample[at - 1].n_group ? m->sample[at - 1].blocks[group]
                  : 0;
    }
}

/* ---- text ------------------------------------------------------------------------------------ */

static void add_graph(const struct block_map *m, int group, struct sheet *out)
{
    static const char *const bar[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    int32_t cell[GRAPH], top = 1;
    block_cells(m, group, GRAPH, cell);
    for (int c = 0; c < GRAPH; c++)
        top = cell[c] > top ? cell[c] : top;
    for (int c = 0; c < GRAPH; c++) {
        int share = cell[c] <= 0 ? 0 : (int)((int64_t)cell[c] * 8 / top);
        if (cell[c] < 0)
            sheet_add(out, ST_DIM, " ");
        else if (out->ascii)
            sheet_printf(out, cell[c] ? ST_HOT : ST_DIM, "%d",
                         cell[c] ? min_int((int)((int64_t)cell[c] * 10 / top), 9) : 0);
        else
            sheet_add(out, cell[c] ? ST_HOT : ST_DIM, cell[c] ? bar[max_int(share - 1, 0)] : "·");
    }
}

/* "sliding_window 64", "full_attention", "group 2" */
static void group_name(const struct blocks_view *v, const struct block_group *g, char *out,
                       size_t room)
{
    struct buf b = {0};
    bool ranks = false;
    for (int i = 0; i < v->n_group; i++)
        ranks |= v->group[i].rank != 0;
    if (ranks)
        buf_printf(&b, "rank %d ", g->rank);
    if (g->index >= 0)
        buf_printf(&b, "%d ", g->index);
    buf_str(&b, g->kind[0] ? g->kind : "all layers");
    if (g->window)
        buf_printf(&b, " %d", g->window);
    if (g->medium[0] && strcmp(g->medium, "GPU") != 0)
        buf_printf(&b, ", %s", g->medium);
    snprintf(out, room, "%.*s", (int)room - 1, b.p);
    buf_free(&b);
}

static void group_row(const struct block_map *m, int i, int width, struct sheet *out)
{
    const struct block_group *g = &m->view.group[i];
    char name[80];
    group_name(&m->view, g, name, sizeof name);
    sheet_printf(out, ST_LABEL, "%-*s ", NAME - 1, name);
    if (width >= GRAPH_FROM)
        add_graph(m, i, out);
    sheet_printf(out, ST_TEXT, "%s%lld blocks of %d", width >= GRAPH_FROM ? "  " : "",
                 (long long)g->blocks, g->block_size);
    sheet_line(out);
    sheet_tab(out, NAME);
    sheet_printf(out, ST_DIM, "%lld cop%s", (long long)g->copies, g->copies == 1 ? "y" : "ies");
    if (m->view.n_session)
        sheet_printf(out, ST_KEY, ", session %d of %d", g->n_session, m->view.n_session);
    sheet_printf(out, ST_DIM, ", %llu removed", (unsigned long long)g->removed);
    sheet_line(out);
}

static void session_rows(const struct block_map *m, int most, struct sheet *out)
{
    for (int i = 0; i < min_int(m->n_block, most); i++) {
        const struct session_block *b = &m->block[i];
        int last = b->position + b->n_token - 1;
        sheet_printf(out, ST_LABEL, "%6d-%-6d ", b->position, last);
        sheet_printf(out, ST_TEXT, "%-20s ", b->hash);
        sheet_add(out, b->held ? ST_GOOD : ST_DIM, b->held ? "in groups" : "in no group now");
        for (int g = 0; g < m->view.n_group; g++)
            if (b->held >> g & 1)
                sheet_printf(out, ST_GOOD, " %d", m->view.group[g].index >= 0
                             ? m->view.group[g].index : g);
        sheet_line(out);
    }
    if (m->n_block > most) {
        sheet_printf(out, ST_DIM, "%d more blocks of this session", m->n_block - most);
        sheet_line(out);
    }
}

static void foot(const struct blocks_view *v, struct sheet *out)
{
    sheet_printf(out, ST_DIM, "%llu batch%s from %s", (unsigned long long)v->batches,
                 v->batches == 1 ? "" : "es", v->source);
    if (v->replayed)
        sheet_printf(out, ST_DIM, ", %llu of them asked for again",
                     (unsigned long long)v->replayed);
    sheet_line(out);
    if (v->whole && v->batches) {
        sheet_add(out, ST_GOOD, "exact: no batch is missing since the server's cache was empty");
        sheet_line(out);
    }
    if (v->before) {
        sheet_printf(out, ST_WARN, "%llu batches were sent before the first that came",
                     (unsigned long long)v->before);
        sheet_line(out);
    }
    if (v->missed) {
        sheet_printf(out, ST_WARN, "%llu batches never came", (unsigned long long)v->missed);
        sheet_line(out);
    }
    if (v->refused) {
        sheet_printf(out, ST_WARN, "%llu could not be read; the first: %s",
                     (unsigned long long)v->refused, v->wrong);
        sheet_line(out);
    }
}

void view_blocks(const struct block_map *m, int most, int width, struct sheet *out)
{
    const struct blocks_view *v = &m->view;
    sheet_add(out, ST_HEAD, "BLOCKS");
    sheet_printf(out, ST_DIM, "  %s", v->about);
    sheet_line(out);
    for (int g = 0; g < v->n_group; g++)
        group_row(m, g, width, out);
    session_rows(m, most, out);
    foot(v, out);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void group_json(const struct block_group *g, struct buf *json)
{
    jput_record(json, "%d{rank}%d{group:-1}%s{kind}%s{medium}%d{window:-1}%d{block_size}"
                "%ld{blocks}%ld{copies}%lu{stored}%lu{removed}%d{session}", g->rank, g->index,
                g->kind[0] ? g->kind : NULL, g->medium[0] ? g->medium : NULL,
                g->window ? g->window : -1, g->block_size, g->blocks, g->copies, g->stored,
                g->removed, g->n_session);
}

static void session_json(const struct block_map *m, struct buf *json)
{
    jput_open(json, '[');
    for (int i = 0; i < m->n_block; i++) {
        const struct session_block *b = &m->block[i];
        jput_open(json, '{');
        jput_fields(json, "%d{position}%d{tokens}%s{hash}", b->position, b->n_token, b->hash);
        jput_key(json, "held"); /* indices of "groups" */
        jput_open(json, '[');
        for (int g = 0; g < m->view.n_group; g++)
            if (b->held >> g & 1)
                jput_int(json, g);
        jput_close(json, ']');
        jput_close(json, '}');
    }
    jput_close(json, ']');
}

static void samples_json(const struct block_map *m, struct buf *json)
{
    jput_open(json, '[');
    for (int i = 0; i < m->n_sample; i++) {
        jput_open(json, '{');
        jput_kreal(json, "age_s", (double)(m->ns - m->sample[i].ns) / 1e9);
        jput_key(json, "blocks");
        jput_ints(json, m->sample[i].blocks, m->sample[i].n_group);
        jput_close(json, '}');
    }
    jput_close(json, ']');
}

void blocks_json(const struct block_map *m, struct buf *json)
{
    const struct blocks_view *v = &m->view;
    jput_open(json, '{');
    jput_fields(json, "%s{about}%s{source}%d{connected?}%d{exact?}%lu{batches}%lu{events}"
                "%lu{replayed}%lu{before}%lu{missed}%lu{unknown}%lu{refused}%s{wrong}", v->about,
                v->source, v->connected, v->whole, v->batches, v->events, v->replayed, v->before,
                v->missed, v->unknown, v->refused, v->wrong[0] ? v->wrong : NULL);
    jput_kopen(json, "groups", '[');
    for (int g = 0; g < v->n_group; g++)
        group_json(&v->group[g], json);
    jput_close(json, ']');
    jput_key(json, "session");
    session_json(m, json);
    jput_key(json, "samples");
    samples_json(m, json);
    jput_close(json, '}');
}
