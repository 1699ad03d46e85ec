/* bench_time.c - what the time axis costs: the ring of page tables for each step, and opening,
 * seeking and searching a recorded session of 10,000 steps. All times are of the thread on its
 * core.
 *
 * bench_time --keep FILE: leaves the session log in the new FILE, for `aerie --db FILE replay
 * last`. */
#include <stdio.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "engine/past/page_history.h"
#include "repl/recorded/recorded.h"
#include "tests/long_session.h"
#include "tests/scratch.h"

/* Time of this thread on a core: other programs on the machine do not count. */
static uint64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static double ms(uint64_t from)
{
    return (double)(cpu_ns() - from) * 1e-6;
}

/* ---- the ring -------------------------------------------------------------------------------- */

struct ring {
    struct page_tape tape;
    struct page_history now;
    uint64_t pack_ns, add_ns;
    size_t bytes;
    int n;
};

static void ring_take(void *arg, struct event *ev)
{
    struct ring *r = arg;
    struct buf packed = {0}, whole = {0};
    if (ev->kind == EV_STEP) {
        uint64_t t = cpu_ns();
        page_pack(&ev->lengths, ev->pages, ev->n_pages, &packed);
        r->pack_ns += cpu_ns() - t;
        CHECK(page_history_apply(&r->now, packed.p, packed.n, NULL));
        r->bytes += packed.n;
        t = cpu_ns();
        bool all = tape_wants_whole(&r->tape);
        if (all)
            page_history_pack(&r->now, &whole);
        tape_add(&r->tape, ev->turn, ev->step, all ? &whole : &packed, &packed);
        r->add_ns += cpu_ns() - t;
        r->n++;
    }
    buf_free(&packed);
    buf_free(&whole);
    event_free(ev);
}

static void measure_ring(int page_size, int nodes)
{
    struct ring r = {0};
    struct long_session s = {.turns = 50, .steps = 200, .nodes = nodes, .post = ring_take,
                             .arg = &r};
    int missed = 0;
    double worst = 0, worst_copy = 0, sum = 0;
    tape_budget(&r.tape, 16 << 20);
    long_write(&s, page_size);
    for (int i = 0; i < 1000; i++) {
        struct page_history h = {0};
        struct buf b = {0};
        uint64_t t = cpu_ns();
        missed += !tape_copy(&r.tape, 1 + long_roll(&s, 50), 1 + long_roll(&s, 200), &b);
        double copy = ms(t);
        CHECK(page_history_apply(&h, b.p, b.n, NULL));
        sum += ms(t);
        worst = ms(t) > worst ? ms(t) : worst;
        worst_copy = copy > worst_copy ? copy : worst_copy;
        page_history_free(&h);
        buf_free(&b);
    }
    printf("  pages of %2d, trees of %2d: %5.2f us to pack, %5.2f us to keep, %4zu bytes a step; "
           "%.1f MB hold %.0f %% of %d steps; a seek %.3f ms (most %.3f, of it under the lock "
           "%.3f)\n", page_size, nodes,
           (double)r.pack_ns * 1e-3 / r.n, (double)r.add_ns * 1e-3 / r.n, r.bytes / (size_t)r.n,
           (double)r.tape.used / 1e6, 100 - missed / 10.0, r.n, sum / 1000, worst, worst_copy);
    tape_close(&r.tape);
    page_history_free(&r.now);
}

/* ---- a recorded session ---------------------------------------------------------------------- */

static void log_event(void *arg, struct event *ev)
{
    evq_put(arg, ev);
}

static const char *text_of(void *arg, int32_t id, size_t *n)
{
    static char text[16];
    (void)arg;
    *n = (size_t)snprintf(text, sizeof text, " w%d", id);
    return text;
}

static void write_log(const char *path, int nodes)
{
    struct err e;
    const struct history_about about = {.version = AERIE_VERSION, .device = "cpu", .flags = "",
        .model_dir = "none", .model_sha = "m", .draft_dir = "", .draft_sha = "",
        .tokenizer_sha = "t",
        .config = "page_size=16\ncontext=4096\n"};
    struct history *h = history_open(path, LOG_TREE, &about, &e);
    CHECK(h);
    history_describe(h, &about, &(struct history_texts){500, text_of, NULL});
    struct long_session s = {.turns = 50, .steps = 200, .nodes = nodes, .post = log_event,
                             .arg = history_queue(h)};
    long_write(&s, 16);
    CHECK(history_flush(h, 600000));
    history_close(h);
    struct buf b;
    CHECK(buf_read_file(&b, path, (size_t)1 << 30, NULL));
    printf("  trees of %2d: %.1f MB, %zu bytes a step\n", nodes,
           (double)b.n / 1e6, b.n / 10000);
    buf_free(&b);
}

struct most {
    double sum, most;
    int n;
};

static void note(struct most *m, uint64_t from)
{
    double t = ms(from);
    m->sum += t;
    m->most = t > m->most ? t : m->most;
    m->n++;
}

static void print_most(const char *what, const struct most *m)
{
    printf("  %-52s %8.3f ms, most %8.3f\n", what, m->sum / m->n, m->most);
}

static struct most seek(struct backend *b, int n, bool random)
{
    struct most m = {0};
    struct err e;
    uint64_t dice = 1;
    for (int i = 0; i < n; i++) {
        struct page_table t;
        struct step_view v;
        struct chat_view c;
        dice = mix64(dice);
        int step = random ? (int)(dice % 10000) : i;
        uint64_t from = cpu_ns();
        CHECK(recorded_seek(b, 1 + step / 200, 1 + step % 200, &e));
        b->pages->table(b, &t);
        b->steps->of_step(b, 1 + step / 200, 1 + step % 200, &v);
        backend_chat(b, &c);
        note(&m, from);
        page_table_free(&t);
    }
    return m;
}

static struct most search(struct backend *b, const char *condition, int times)
{
    struct most m = {0};
    struct err e;
    for (int i = 0; i < times; i++) {
        CHECK(recorded_seek(b, 1, 0, &e));
        uint64_t from = cpu_ns();
        CHECK(b->debug->run(b, RUN_ON, 1, condition, &e));
        note(&m, from);
    }
    return m;
}

static void measure_recording(const char *path, int nodes)
{
    struct err e = {0};
    struct rusage before, after;
    struct event ev;
    write_log(path, nodes);
    getrusage(RUSAGE_SELF, &before);
    uint64_t t = cpu_ns();
    struct hdb *d = hdb_open(path, &e);
    CHECK(d);
    struct backend *b = recorded_open(d, "01ARZ3NDEKTSV4RRFFQ69G5FAV", "1", false, &e);
    if (!b)
        die("%s", e.msg);
    double opened = ms(t);
    int n = 0;
    for (t = cpu_ns(); backend_next(b, &ev); n++)
        event_free(&ev);
    getrusage(RUSAGE_SELF, &after);
    printf("  opened in %.0f ms; its %d events made in %.0f ms; peak memory grew by %.0f MB\n",
           opened, n, ms(t), (double)(after.ru_maxrss - before.ru_maxrss) / 1024);
    struct most m = seek(b, 10000, false);
    print_most("a step forward: pages, tree, counters", &m);
    m = seek(b, 1000, true);
    print_most("a step anywhere", &m);
    m = search(b, "accepted>99", 3);
    print_most("/until over all steps, a fact of the record", &m);
    m = search(b, "node.depth>=4 && node.q>0.9", 3);
    print_most("/until over all steps, nodes", &m);
    m = search(b, "token==\"nowhere\" || pool.full.free<1", 3);
    print_most("/until over all steps, token texts and pools", &m);
    m = (struct most){0};
    for (int i = 1; i < 100; i++) {
        struct page_change list[16];
        bool whole;
        recorded_seek(b, 0, 0, &e);
        t = cpu_ns();
        b->pages->events(b, 0, 0, POOL_FULL, i, list, 16, &whole);
        note(&m, t);
    }
    print_most("the latest events of a page", &m);
    backend_close(b);
    hdb_close(d);
}

int main(int argc, char **argv)
{
    char *folder = scratch_folder(), *path = xasprintf("%s/sessions.db", folder);
    printf("the ring of page tables\n");
    measure_ring(16, 6);
    measure_ring(16, 64);
    measure_ring(1, 6);
    measure_ring(1, 64);
    printf("a recorded session of 50 turns of 200 steps, pages of 16\n");
    measure_recording(path, 64);
    scratch_remove(folder);
    folder = scratch_folder();
    free(path);
    path = xasprintf("%s/sessions.db", folder);
    measure_recording(argc == 3 && strcmp(argv[1], "--keep") == 0 ? argv[2] : path, 6);
    scratch_remove(folder);
    free(path);
    return 0;
}
