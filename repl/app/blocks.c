/* blocks.c - see blocks.h. */
#include "repl/app/blocks.h"

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
    FREE(m->sample, m->block);
    *m = (struct block_map){0};
}

/* How many blocks a group held in each of `cells` spans of equal time up to now, at the end of
 * each; -1: before the first sample. */
static void block_cells(const struct block_map *m, int group, int cells, int32_t *cell)
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
    FREED(buf_free) struct buf b = {0};
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
}

static void show_group(const struct block_map *m, int i, int width, const struct printer *to)
{
    const struct block_group *g = &m->view.group[i];
    char name[80];
    group_name(&m->view, g, name, sizeof name);
    PRINT_IN(to, NULL, '{');
    print_add(to, ST_LABEL, "%-*s \f%d{rank}%d{group:-1}%s{kind}%s{medium}%d{window:-1}", NAME - 1,
              name, g->rank, g->index, g->kind[0] ? g->kind : NULL,
              g->medium[0] ? g->medium : NULL, g->window ? g->window : -1);
    if (width >= GRAPH_FROM && !to->json)
        add_graph(m, i, to->out);
    print_facts(to, ST_TEXT, "%s%ld{blocks} blocks of %d{block_size}",
                width >= GRAPH_FROM ? "  " : "", g->blocks, g->block_size);
    print_add(to, ST_DIM, "%*s%ld{copies} cop%s", NAME, "", g->copies, g->copies == 1 ? "y"
              : "ies");
    print_add(to, ST_KEY, m->view.n_session ? ", session %d{session} of %d" : "\f%d{session}%d",
              g->n_session, m->view.n_session);
    print_facts(to, ST_DIM, "\f%lu{stored}\f, %lu{removed} removed", g->stored, g->removed);
}

static void show_block(const struct block_map *m, const struct session_block *b,
                       const struct printer *to)
{
    PRINT_IN(to, NULL, '{');
    print_add(to, ST_LABEL, "%6d{position}-%-6d \f%d{tokens}\f\v%-20s{hash} ", b->position,
              b->position + b->n_token - 1, b->n_token, b->hash);
    print_add(to, b->held ? ST_GOOD : ST_DIM, b->held ? "in groups" : "in no group now");
    print_open(to, "held", '['); /* indices of "groups" */
    for (int g = 0; g < m->view.n_group; g++)
        if (b->held >> g & 1) {
            int index = m->view.group[g].index;
            print_add(to, ST_GOOD, " %d", index >= 0 ? index : g);
            print_int(to, NULL, g);
        }
    print_close(to, ']');
    print_end(to);
}

static void foot(const struct blocks_view *v, const struct printer *to)
{
    print_add(to, ST_DIM, "%lu batch%s from %s", v->batches, v->batches == 1 ? "" : "es",
              v->source);
    if (v->replayed)
        print_add(to, ST_DIM, ", %lu of them asked for again", v->replayed);
    print_end(to);
    if (v->whole && v->batches)
        print_note(to, ST_GOOD, "exact: no batch is missing since the server's cache was empty");
    if (v->before)
        print_note(to, ST_WARN, "%lu batches were sent before the first that came", v->before);
    if (v->missed)
        print_note(to, ST_WARN, "%lu batches never came", v->missed);
    if (v->refused)
        print_note(to, ST_WARN, "%lu could not be read; the first: %s", v->refused, v->wrong);
}

/* Members for programs only. */
static void show_samples(const struct block_map *m, const struct printer *to)
{
    PRINT_IN(to, "samples", '[');
    for (int i = 0; i < m->n_sample; i++) {
        PRINT_IN(to, NULL, '{');
        print_real(to, "age_s", (double)(m->ns - m->sample[i].ns) / 1e9);
        print_ints(to, "blocks", m->sample[i].blocks, m->sample[i].n_group);
    }
}

void view_blocks(const struct block_map *m, int most, int width, const struct printer *to)
{
    const struct blocks_view *v = &m->view;
    print_open(to, NULL, '{');
    print_add(to, ST_HEAD, "BLOCKS");
    print_facts(to, ST_DIM, "  %s{about}\f%s{source}%d{connected?}%d{exact?}%lu{batches}%lu{events}"
                "%lu{replayed}%lu{before}%lu{missed}%lu{unknown}%lu{refused}%s{wrong}", v->about,
                v->source, v->connected, v->whole, v->batches, v->events, v->replayed, v->before,
                v->missed, v->unknown, v->refused, v->wrong[0] ? v->wrong : NULL);
    print_open(to, "groups", '[');
    for (int g = 0; g < v->n_group; g++)
        show_group(m, g, width, to);
    print_close(to, ']');
    print_open(to, "session", '[');
    for (int i = 0; i < (to->json ? m->n_block : min_int(m->n_block, most)); i++)
        show_block(m, &m->block[i], to);
    print_close(to, ']');
    if (m->n_block > most)
        print_note(to, ST_DIM, "%d more blocks of this session", m->n_block - most);
    show_samples(m, to);
    print_close(to, '}');
    foot(v, to);
}
