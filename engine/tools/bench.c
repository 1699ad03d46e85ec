/* bench.c - the order of the benchmark's parts: kernels, then the models, which it opens. See
 * bench.h. */
#include "engine/tools/bench_model.h"
#include "engine/tools/synthetic.h"

#include <unistd.h>

static bool make_up(void *arg, struct model *m, struct draft *d, struct err *e)
{
    struct subject *s = arg;
    return synthetic_open(m, d, s->synthetic, &s->name, e);
}

static bool load(struct bench *b, struct subject *s, struct err *e)
{
    const struct bench_opts *o = b->o;
    struct engine_opts load = o->engine;
    load.require_draft = load.draft != NULL;
    load.make = o->synthetic ? make_up : NULL;
    load.make_arg = s;
    s->quant = load.quant;
    s->name = o->model_name;
    s->synthetic = o->synthetic;
    bool chat = (bench_wanted_any(b, "chat.") || bench_wanted_any(b, "again.") ||
                 bench_wanted_any(b, "shape.")) && !o->synthetic;
    return engine_load(&s->l, &load, LOAD_DEVICE | (chat ? LOAD_TEXT : 0), e);
}

/* Whether there is room for the weights and the cells of the longest context; if not, *e says how
 * much is needed and how much is there. */
static bool fits(struct bench *b, struct subject *s, struct err *e)
{
    double need = (double)(s->l.model.bytes + s->l.draft.bytes) *
                  (models_quant_text(&s->quant) ? 1.5 : 1);
    for (int l = 0; l < s->l.model.cfg.n_layer; l++) {
        const struct layer *w = &s->l.model.layer[l];
        if (w->kv_src == l)
            need += bench_cell_bytes(w, b->dev.kv) * (w->window ? w->window + 4096 : s->most);
    }
    if (!b->graphs) { /* the host's own memory, which it would promise without having it */
        double have = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGE_SIZE);
        return need < have * 0.9 ||
               err_set(e, ERR_MODEL, "%s needs %.1f GiB, this machine has %.1f GiB", s->name,
                       need / (1 << 30), have / (1 << 30));
    }
    kbuf all = b->dev.k->alloc(b->dev.d, (size_t)need, s->name, e);
    b->dev.k->release(b->dev.d, all);
    return all.p != NULL;
}

/* Every cell but the guard page's holds a number; expert choices are kept. */
static bool prepare(struct bench *b, struct subject *s, struct err *e)
{
    struct runtime *rt = &s->runtime;
    const struct config *c = &s->l.model.cfg;
    for (int l = 0; l < c->n_layer; l++) {
        const struct k_cells *cells = &rt->net.cells[l];
        size_t cell = cells->k.n / (size_t)cells->n_slots;
        kbuf both[] = {cells->k, cells->v};
        for (int i = 0; i < 2 && s->l.model.layer[l].kv_src == l; i++) {
            if (!bench_fill(b, both[i], cells->type, e))
                return false;
            b->dev.k->fill(b->dev.d, kbuf_at(both[i], 0, cell * (size_t)rt->kv.page_size), 0xff);
        }
    }
    if (c->n_expert == 0)
        return true;
    size_t bytes = (size_t)c->n_layer * (size_t)rt->net.max_rows * (size_t)c->top_k * 4;
    rt->net.chosen = bench_buffer(b, bytes, NULL, e);
    return rt->net.chosen.p != NULL;
}

static bool any_wanted(const struct bench *b)
{
    static const char *const part[] = {"step.", "verify.", "draft.", "cycle.", "prefill.", "chat.",
                                       "again.", "cublas.", "product.", "shape."};
    return ANY(i, LEN(part), bench_wanted_any(b, part[i]));
}

/* All lines of the models, over the device that engine_load() opened for them. */
static bool measure(struct bench *b, struct subject *s, struct err *e)
{
    s->chunk = b->graphs ? 2048 : 256;
    s->usual = b->graphs ? 4096 : 512;
    s->most = b->graphs && !b->o->brief ? 131072 : b->o->brief && !b->graphs ? 512 : 4096;
    s->most = min_int(s->most, s->l.model.cfg.max_pos);
    s->usual = min_int(s->usual, s->most);
    struct runtime_shape shape = {.page_size = 16, .context = s->most + 1024, .max_rows = s->chunk,
                                  .kv = b->dev.kv};
    bool ok = fits(b, s, e) && loaded_runtime(&s->runtime, &s->l, &shape, e);
    s->runtime.n_stop = 0;
    ok = ok && prepare(b, s, e) && bench_passes(b, s, e) && bench_products(b, s, e) &&
         bench_cycles(b, s, e) && bench_shapes(b, s, e);
    bench_release(b, &s->runtime.net.chosen, 1);
    runtime_close(&s->runtime);
    return b->dev.k->sync(b->dev.d, ok ? e : NULL) && ok;
}

static bool models(struct bench *b, struct err *e)
{
    FREED(free_at) struct subject *s = xcalloc(1, sizeof *s);
    bool ok = true;
    if (b->dev.k)
        device_close(&b->dev);
    if (any_wanted(b) && (b->o->synthetic || b->o->engine.model)) {
        ok = load(b, s, e);
        b->dev = s->l.dev; /* the lines' device while the models are loaded */
        ok = ok && measure(b, s, e);
        engine_unload(&s->l);
        b->dev = (struct device){0};
    }
    ok = ok && bench_talk(b, s, e);
    return ok;
}

static bool kernel_part(struct bench *b, struct err *e)
{
    const struct kernels *k = b->dev.k;
    b->graphs = k->graph_begin(b->dev.d);
    if (b->graphs) {
        k->phase(b->dev.d, PHASE_LAUNCH, 1);
        k->graph_free(b->dev.d, k->graph_end(b->dev.d, e));
    }
    if (b->o->about)
        b->o->about(b->o->arg, k->about(b->dev.d));
    return bench_memory(b, e) && bench_kernels(b, e);
}

bool bench_run(const struct bench_opts *o, struct err *e)
{
    struct bench b = {.o = o, .random = 1};
    if (!bench_names(o, e) || (o->synthetic && !synthetic_known(o->synthetic, e)))
        return false;
    bool ok = bench_reopen(&b, e) && kernel_part(&b, e) && models(&b, e);
    if (b.dev.k)
        device_close(&b.dev);
    if (ok && b.n_wanted == 0)
        ok = bench_no_line(o->n_pattern ? o->pattern[0] : "", o, e);
    return ok;
}
