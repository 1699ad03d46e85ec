/* fit.c - `aerie fit`: what a model takes of the memory, and the longest context that fits. Weights
 * are not read, only the headers of their files; a config.json, or the name of a published model,
 * is enough. */

#include "engine/thread/load.h"
#include "engine/tools/synthetic.h"
#include "kernels/ascii.h"
#include "models/checkpoint/hub.h"
#include "repl/app/report.h"
#include "repl/cli/cli.h"

/* The model of a config.json, or a published one by its name: shapes without a checkpoint. */
struct fit_model {
    const char *config, *name; /* one of them */
};

static bool make_shapes(void *arg, struct model *m, struct draft *d, struct err *e)
{
    const struct fit_model *s = arg;
    const char *brief;
    FREED(buf_free) struct buf text = {0};
    if (s->name) {
        bool ok = synthetic_open(m, d, s->name, &brief, e);
        draft_free(d); /* an EAGLE3 head of which nobody spoke */
        return ok;
    }
    return buf_read_file(&text, s->config, 16 << 20, e) &&
           (model_shaped(m, buf_text(&text), e) || err_prefix(e, "%s", s->config));
}

static void notice(void *arg, const char *line)
{
    print_note(arg, ST_WARN, "%s", line);
}

/* Of made-up weights: as published, or of the packed type that follows the model's name. */
static const char *type_name(const struct model *m)
{
    const struct layer *l = &m->layer[0];
    const enum dtype t = l->gate_up.bytes ? l->gate_up.type : l->down.type;
    if (t != DT_BF16 && t != DT_U8)
        return dtype_name(t);
    return m->cfg.moe == MOE_ALONE && m->cfg.store == STORE_MXFP4 ? "bf16, experts in MXFP4"
                                                                  : "bf16";
}

static void print_model(const struct loaded *l, const struct engine_opts *o, const char *name,
                        const struct printer *to)
{
    const struct config *g = &l->model.cfg;
    int sliding = 0;
    for (int i = 0; i < g->n_layer; i++)
        sliding += l->model.layer[i].window > 0;
    print_add(to, ST_DIM, "%s{model}: %s{family}, %d{layers} layers", name, g->family, g->n_layer);
    if (sliding)
        print_add(to, ST_DIM, " (%d{sliding} slide, %d{window} tokens)", sliding, g->window);
    print_facts(to, ST_DIM, ", a context of %d{context} tokens, on %s{device}",
                engine_context(l, o), l->dev.k->name);
    if (l->model.about)
        print_note(to, ST_DIM, "%s", l->model.about);
    if (o->make)
        print_note(to, ST_DIM, strchr(name, ':') ? "weights in %s" : "weights as published: %s",
                   type_name(&l->model));
}

static void print_fit(const struct fit *f, const struct loaded *l, const struct printer *to)
{
    int longest = f->longest, most = l->model.cfg.max_pos;
    report_need(to, &f->need);
    print_open(to, "kv", '{');
    print_add(to, ST_DIM, "KV of all layers\f%lu{f32}%lu{bf16}%lu{fp8}\f: %s in f32, %s in bf16, "
              "%s in fp8", f->kv[KV_F32], f->kv[KV_BF16], f->kv[KV_FP8], size_text(f->kv[KV_F32]).s,
              size_text(f->kv[KV_BF16]).s, size_text(f->kv[KV_FP8]).s);
    print_close(to, '}');
    print_end(to);
    print_add(to, ST_TEXT, "\f%lu{free}%lu{total}\f%s of the %s's %s are free: ", f->left,
              f->total, size_text(f->left).s, f->own ? "device" : "machine", size_text(f->total).s);
    print_add(to, f->fits ? ST_TEXT : ST_BAD, "\f%d{fits?}\f%s", f->fits,
              f->fits ? "it fits" : f->how);
    if (longest && f->fits)
        print_add(to, ST_TEXT, longest == most ? "; so does the model's longest context, "
                                                 "%d{longest}"
                                               : "; the longest context that fits is %d{longest}",
                  longest);
    else
        print_add(to, ST_TEXT, "\f%d{longest}", longest);
    print_end(to);
}

/* Answers for the model that o names. False and *e on failure. */
static bool answer_fit(const struct engine_opts *o, const char *title, const struct printer *to,
                       bool *fits, struct err *e)
{
    struct loaded l;
    struct fit f;
    if (!o->make && !o->model)
        return err_set(e, ERR_MODEL, "no model: the bundled one is not installed; expected a name");
    if (!engine_load(&l, o, LOAD_DEVICE, e))
        return false;
    bool ok = engine_fit(&l, o, &f, e);
    if (ok) {
        print_open(to, NULL, '{');
        print_model(&l, o, title, to);
        print_fit(&f, &l, to);
        print_close(to, '}');
        *fits = f.fits;
    }
    engine_unload(&l);
    return ok;
}

int cli_fit(struct cli *c)
{
    struct err e = {0};
    const char *name = c->n_word ? c->word[0] : NULL;
    bool known = name && file_missing(name) && synthetic_known(name, NULL), fits = false;
    char *path = name && !known ? hub_find(name, &e) : NULL;
    struct fit_model s = {path, known ? name : NULL};
    if (name && !known && !path)
        return cli_fail(&e);
    if (path && !c->draft_given && !ends_with(path, ".json")) {
        if (!cli_find_pair(c, path, &e)) {
            free(path);
            return cli_fail(&e);
        }
    } else if (name) {
        c->opt.engine.model = path;
        c->opt.engine.draft = c->draft_given ? c->opt.engine.draft : NULL;
        c->opt.engine.draft_from = NULL;
    }
    struct engine_opts o = c->opt.engine;
    o.headers = true;
    o.lanes = c->lanes;
    struct printer to = *cli_answer(c, 0);
    o.notice = c->opt.quiet ? NULL : notice;
    o.notice_arg = &to;
    o.make = known || (path && ends_with(path, ".json")) ? make_shapes : NULL;
    o.make_arg = &s;
    FREED(free_at) char *title = name ? xstrdup(name) : hub_title(o.model ? o.model : "");
    bool ok = answer_fit(&o, title, &to, &fits, &e);
    if (ok || !to.json) /* else there is no answer, but perhaps lines of notice() */
        cli_answer_end();
    free(path);
    return !ok ? cli_fail(&e) : fits ? 0 : 1;
}
