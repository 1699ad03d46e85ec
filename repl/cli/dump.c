/* dump.c - `aerie dump PATH`: holds what another engine recorded of its passes against aerie's
 * pass over the same checkpoint (engine/tools/dump.h), or FlashInfer's records against attention in
 * double precision (engine/tools/flashinfer.h); or shows the kv_canary lines of a server's log on a
 * map of the pages that they name (engine/tools/canary.h). */

#include "engine/tools/canary.h"
#include "engine/tools/dump.h"
#include "engine/tools/flashinfer.h"
#include "repl/cli/cli.h"

enum { SHOWN = 8 }; /* modules that differ, in text */

static void say_source(const struct dump_report *r, const struct printer *to)
{
    const struct dump_sequences *s = &r->s;
    print_add(to, ST_BOLD, "%s{engine}", r->d.engine);
    print_add(to, ST_TEXT, ": %d{files} file%s, %d{passes} pass%s, %d{requests} request%s, "
              "%ld{rows} rows aligned", r->d.files, plural(r->d.files), r->d.n,
              r->d.n == 1 ? "" : "es", s->n, plural(s->n), s->rows);
    print_add(to, ST_TEXT, r->d.ranks > 1 ? "; the first of %d{ranks} ranks" : "\f%d{ranks}",
              r->d.ranks);
    print_add(to, ST_TEXT, r->shards > 1 ? "; heads spread over %d{shards}" : "\f%d{shards}",
              r->shards);
    print_end(to);
    if (to->json || s->missing)
        print_facts(to, ST_WARN, "%ld{missing} rows not compared: %s{why_missing}", s->missing,
                    s->first_missing);
    if (to->json || s->unclear)
        print_facts(to, ST_WARN, "%ld{unclear} rows not compared: they fit several requests, "
                                 "or are nodes of a tree", s->unclear);
    if (to->json || s->no_ids)
        print_facts(to, ST_WARN, "%d{without_ids} passes without input_ids and positions",
                    s->no_ids);
    if (to->json || r->d.refused)
        print_facts(to, ST_WARN, "%d{refused} files not read: %s{why_refused}", r->d.refused,
                    r->d.why);
}

static void say_modules(const struct dump_report *r, const struct printer *to)
{
    int near = 0, far = 0, shown = 0;
    print_open(to, "modules", '[');
    for (int i = 0; i < r->n; i++) {
        const struct dump_module *m = &r->module[i];
        const char *word = m->far ? "differs" : m->near ? "near" : "agrees";
        near += !m->far && m->near;
        far += m->far > 0;
        if (to->json || (m->far && i != r->first && shown++ < SHOWN))
            print_line(to, ST_DIM, "  %s{verdict}  %s{module}\f%d{layer}%ld{rows}%ld{near}%ld{far}"
                       "%g{error:4}%g{band:4}%d{pass}%d{row}%d{position}\f  %g of pass %d, "
                       "position %d; %ld of %ld rows", word, m->name, m->layer, (long)m->rows,
                       (long)m->near, (long)m->far, m->worst, m->band, m->pass, m->row,
                       m->position, m->worst, m->pass, m->position, (long)m->far, (long)m->rows);
    }
    print_close(to, ']');
    if (shown > SHOWN)
        print_note(to, ST_DIM, "  and %d more", shown - SHOWN);
    print_add(to, ST_TEXT, "%d{compared} module%s compared: %d{agree} agree, %d{near} near, "
              "%d{differ} differ\f%s{type}\f of %s; relative L2 error of a row at most "
              "%g{tolerance}",
              r->n, plural(r->n), r->n - near - far, near, far, r->type, r->type, r->tol);
    print_add(to, ST_TEXT, r->noisy ? ", or %d{noise_runs} runs with its roundings come as far"
                                    : "\f%d{noise_runs}", r->noisy ? DUMP_NOISE : 0);
    print_end(to);
}

/* The first module whose inputs agree and whose output does not. */
static void say_first(const struct dump_report *r, const struct printer *to)
{
    const struct dump_module *m = r->first >= 0 ? &r->module[r->first] : NULL;
    const struct dump_module *good = r->last_good >= 0 ? &r->module[r->last_good] : NULL;
    if (m) {
        print_facts(to, ST_BAD, "first    %s{first}: relative L2 error %g{first_error:4} in pass "
                    "%d{first_pass}, row %d{first_row}, position %d{first_position}; "
                    "%g{first_band:4} in runs with noise", m->name, m->worst, m->pass, m->row,
                    m->position, m->band);
        if (good)
            print_add(to, ST_TEXT, "before   %s{before} agrees (at most %g{before_error:4})",
                      good->name, good->worst);
        else
            print_add(to, ST_TEXT, "before   nothing was compared that agrees: its input may "
                      "differ already, or the weights do");
        print_end(to);
    }
}

static void say_skipped(const struct dump_report *r, const struct printer *to)
{
    print_open(to, "not_compared", '[');
    FREED(buf_free) struct buf names = {0};
    for (int i = 0; i < r->n_skipped; i++) {
        if (to->json)
            jput_str(to->json, r->skipped[i]);
        else if (i < SHOWN)
            buf_printf(&names, "%s%s", i ? ", " : "", r->skipped[i]);
    }
    print_close(to, ']');
    if (names.n)
        print_note(to, ST_DIM, "not compared, because aerie keeps no such numbers: %s%s", names.p,
                   r->n_skipped > SHOWN ? ", ..." : "");
}

static void report(const struct cli *c, const struct dump_report *r)
{
    const struct printer *to = cli_answer(c, '{');
    say_source(r, to);
    say_modules(r, to);
    say_first(r, to);
    say_skipped(r, to);
    if (r->first < 0)
        print_note(to, ST_GOOD, "no module differs");
    cli_answer_end();
}

/* ---- FlashInfer ------------------------------------------------------------------------------ */

static void say_call(const struct fi_run *x, const struct printer *to)
{
    bool bad = x->verdict == FI_DIFFERS || x->verdict == FI_BROKEN;
    PRINT_IN(to, NULL, '{');
    print_add(to, bad ? ST_BAD : x->verdict == FI_AGREES ? ST_TEXT : ST_WARN,
              "%s{call} %s{verdict}\f%d{requests}%d{rows}%d{window:0}", x->name,
              fi_word(x->verdict), x->requests, x->rows, x->window);
    if (x->verdict == FI_AGREES || x->verdict == FI_DIFFERS)
        print_add(to, ST_TEXT, ": relative L2 error %g{error:4} in request %d{request}, row "
                               "%d{row}, position %d{position}",
                  x->worst, x->request, x->row, x->position);
    if (x->why[0])
        print_add(to, ST_TEXT, ": %s{why}", x->why);
    if (x->like)
        print_add(to, ST_BAD, "; the result is that %s{like}", x->like);
    print_end(to);
}

static void report_calls(const struct cli *c, const struct fi_report *r)
{
    int count[5] = {0}, shown = 0;
    const struct printer *to = cli_answer(c, '{');
    print_open(to, "calls", '[');
    for (int i = 0; i < r->n; i++) {
        count[r->v[i].verdict]++;
        if (to->json || r->n <= SHOWN || (r->v[i].verdict != FI_AGREES && shown++ < SHOWN))
            say_call(&r->v[i], to);
    }
    print_close(to, ']');
    print_facts(to, ST_BOLD, "FlashInfer: %d{records} records, %d{other} of other functions; "
                "%d{compared} calls: %d{agree} agree, %d{differ} differ, %d{broken} with broken "
                "tables, %d{no_output} without output, %d{skipped} not compared", r->records,
                r->other, r->n,
                count[FI_AGREES], count[FI_DIFFERS], count[FI_BROKEN], count[FI_NO_OUTPUT],
                count[FI_SKIPPED]);
    cli_answer_end();
}

static int dump_calls(struct cli *c)
{
    struct err e = {0};
    struct stop stop = {.running = 1};
    struct fi_report r;
    if (!cli_stop_open(&stop, &e))
        return cli_fail(&e);
    bool ok = fi_compare(c->word[0], &stop, &r, &e);
    int signal = cli_stop_close(0);
    if (r.n > 0 && !signal)
        report_calls(c, &r);
    fi_free(&r);
    return signal ? signal : ok ? 0 : cli_fail(&e);
}

/* ---- kv_canary ------------------------------------------------------------------------------- */

/* One violation: where its cell lies, and both readings. */
static void say_violation(const struct canary *k, int i, int size, const struct printer *to)
{
    const struct canary_line *l = &k->v[i];
    FREED(buf_free) struct buf why = {0};
    int piece = i > 0 && canary_piece(k, i - 1) > 1 ? 1 : canary_piece(k, i);
    bool writes = l->reasons & (CANARY_WRITE_POSITION | CANARY_WRITE_TOKEN);
    canary_reasons(l->reasons, &why);
    PRINT_IN(to, NULL, '{');
    print_add(to, ST_BAD, "%s{tag} %s{reasons}\f%ld{line}%s{pool}\f: slot %ld{slot}, page "
                          "%ld{page} cell %ld{cell}",
              l->tag, why.p, (long)l->line, pool_name(l->pool), (long)l->slot,
              (long)(l->slot / size), (long)(l->slot % size));
    print_add(to, ST_TEXT, "; %s position %ld{position}, token %ld{stored_token}",
              writes ? "writes" : "holds", (long)l->position, (long)l->stored_token);
    if (l->reasons & CANARY_WRITE_POSITION)
        print_add(to, ST_TEXT, ", expected position %ld{expected_position}", (long)l->expected_aux);
    if (l->expected_token >= 0)
        print_add(to, ST_TEXT, ", expected token %ld{expected_token}", (long)l->expected_token);
    if (size > 1 && l->position >= 0 && l->position % size != l->slot % size)
        print_add(to, ST_WARN, "\f%d{other_cell?}\f; a cell of its page that belongs to other "
                               "positions", 1);
    print_add(to, ST_DIM, "\f%s{means}", canary_means(l));
    print_end(to);
    if (piece > 1) {
        const struct canary_line *last = &k->v[i + piece - 1];
        print_facts(to, ST_WARN, "  so do %d{piece} cells up to slot %ld{last_slot}, position "
                               "%ld{last_position}: their records continue each other, a piece of "
                               "one other sequence", piece, (long)last->slot, (long)last->position);
    }
}

static int by_page(const void *a, const void *b)
{
    const struct canary_line *x = a, *y = b;
    if (x->pool != y->pool)
        return x->pool < y->pool ? -1 : 1;
    return (x->slot > y->slot) - (x->slot < y->slot);
}

/* Runs of pages with violated cells, by pool. */
static void say_pages(const struct canary *k, int size, const struct printer *to)
{
    FREED(free_at) struct canary_line *v = xcalloc((size_t)k->n, sizeof *v);
    memcpy(v, k->v, (size_t)k->n * sizeof *v);
    qsort(v, (size_t)k->n, sizeof *v, by_page);
    PRINT_IN(to, "pages", '[');
    for (int i = 0, n, shown = 0; i < k->n; i += n) {
        int64_t first = v[i].slot / size, last = first, lo = v[i].position, hi = lo;
        for (n = 1; i + n < k->n && v[i + n].pool == v[i].pool && v[i + n].slot / size <= last + 1;
             n++) {
            last = v[i + n].slot / size;
            lo = v[i + n].position < lo ? v[i + n].position : lo;
            hi = v[i + n].position > hi ? v[i + n].position : hi;
        }
        if (to->json || shown++ < SHOWN)
            print_line(to, ST_TEXT, "%-5s{pool} pages %ld{first_page}-%ld{last_page}: "
                                    "%d{violations} violation%s, positions "
                                    "%ld{first_position}-%ld{last_position}",
                       pool_name(v[i].pool), (long)first, (long)last, n, plural(n), (long)lo,
                       (long)hi);
    }
}

/* A map of a pool by position: which cells the lines name. */
static void draw_pool(const struct canary *k, enum pool_id pool, int size, const struct printer *to)
{
    enum { CELLS = 64 };
    int64_t most = -1, unit = size;
    char cells[CELLS + 1];
    for (int i = 0; i < k->n; i++)
        if (k->v[i].pool == pool && k->v[i].position > most)
            most = k->v[i].position;
    if (most < 0)
        return;
    while (unit <= most / CELLS)
        unit *= 2;
    memset(cells, '.', CELLS);
    cells[CELLS] = '\0';
    for (int i = 0; i < k->n; i++)
        if (k->v[i].pool == pool && k->v[i].position >= 0 && k->v[i].position / unit < CELLS)
            cells[k->v[i].position / unit] = '!';
    int64_t end = most / unit + 1;
    cells[end < CELLS ? end : CELLS] = '\0';
    print_note(to, ST_BAD, "%-6s%s", pool_name(pool), cells);
    print_note(to, ST_DIM, "      one cell: %ld position%s, from 0 on; ! violated, . not named",
               (long)unit, unit == 1 ? "" : "s");
}

static void report_canary(const struct cli *c, const struct canary *k)
{
    int size = max_int(1, c->opt.engine.page_size), of_swa = 0;
    const struct printer *to = cli_answer(c, '{');
    for (int i = 0; i < k->n; i++)
        of_swa += k->v[i].pool == POOL_SWA;
    print_facts(to, ST_BOLD, "kv_canary: %ld{violations} violation%s in %ld{lines} lines, "
                "%d{full} of the full pool, %d{swa} of the swa pool; pages of %d{page_size}",
                (long)k->total, plural((int)(k->total == 1 ? 1 : 2)), (long)k->lines, k->n - of_swa,
                of_swa, size);
    if (to->json || k->damaged)
        print_facts(to, ST_WARN, "%d{damaged} lines are damaged", k->damaged);
    if (k->overflowed) {
        print_facts(to, ST_WARN, "\f%d{overflowed?}\fthe server's ring was full: later violations "
                    "are missing (SGLANG_KV_CANARY_RING_CAPACITY)", 1);
    }
    print_open(to, "found", '[');
    int shown = 0, at = 0;
    for (; at < k->n && (to->json || shown++ < SHOWN); at += to->json ? 1 : canary_piece(k, at))
        say_violation(k, at, size, to);
    print_close(to, ']');
    if (at < k->n)
        print_note(to, ST_DIM, "... and %d more", k->n - at);
    say_pages(k, size, to);
    draw_pool(k, POOL_FULL, size, to);
    draw_pool(k, POOL_SWA, size, to);
    print_note(to, ST_TEXT, "first: %s", canary_means(&k->v[0]));
    cli_answer_end();
}

static int dump_canary(struct cli *c)
{
    struct err e = {0};
    struct stop stop = {.running = 1};
    FREED(canary_free) struct canary k = {0};
    if (!cli_stop_open(&stop, &e))
        return cli_fail(&e);
    bool ok = canary_read(&k, c->word[0], &stop, &e);
    int signal = cli_stop_close(0);
    if (ok && !signal)
        report_canary(c, &k);
    return signal ? signal : ok ? ERR_NEGATIVE : cli_fail(&e);
}

int cli_dump(struct cli *c)
{
    struct err e = {0};
    struct stop stop = {.running = 1};
    FREED(dump_report_free) struct dump_report r = {0};
    if (fi_is(c->word[0]))
        return dump_calls(c);
    if (canary_is(c->word[0]))
        return dump_canary(c);
    struct dump_opts o = {.engine = c->opt.engine, .path = c->word[0], .stop = &stop,
                          .begin = cli_stop_begin, .arg = &stop,
                          .progress = c->opt.quiet ? NULL : cli_progress};
    if (!o.engine.model)
        return cli_fail(&(struct err){ERR_MODEL, "no model: the bundled one is not installed; "
                                                 "expected -m DIR", {0}});
    bool ok = dump_compare(&o, &r, &e);
    cli_progress_end();
    int signal = cli_stop_close(0);
    if (r.n > 0 && !signal)
        report(c, &r);
    return signal ? signal : ok ? 0 : cli_fail(&e);
}
