/* bench.c - `aerie bench`: lines of the benchmark as they come, as a table or as JSON. */
#include "repl/cli/cli.h"

#include "engine/tools/bench.h"
#include "models/checkpoint/hub.h"

#include <math.h>

static void about(void *arg, const char *device)
{
    const struct printer *to = cli_answer(arg, 0);
    print_line(to, ST_TEXT, "%s{device}\f%s{version}", device, AERIE_VERSION);
    print_note(to, ST_TEXT, "%-26s %10s %9s %10s %5s %9s %-8s %s", "name", "ms", "+-", "MB", "R",
               "", "", "what");
    cli_answer_end();
    out_flush();
}

/* In text a value is "-" or empty, and in JSON null, where it is not known. */
static void tell(void *arg, const struct bench_line *l)
{
    char ms[24] = "-", spread[24] = "-", mb[16] = "-", ratio[16] = "-", value[16] = "";
    bool timed = l->runs > 0;
    if (timed) {
        snprintf(ms, sizeof ms, "%.4f", l->ms);
        snprintf(spread, sizeof spread, "%.4f", l->spread);
    }
    if (l->bytes > 0)
        snprintf(mb, sizeof mb, "%.2f", l->bytes * 1e-6);
    if (l->ratio > 0)
        snprintf(ratio, sizeof ratio, "%.2f", l->ratio);
    if (l->unit)
        snprintf(value, sizeof value, l->value < 1000 ? "%.2f" : "%.0f", l->value);
    const struct printer *to = cli_answer(arg, 0);
    print_line(to, ST_TEXT,
               "%-26s{name} %10s %9s %10s %5s %9s %-8s %s\f%g{ms}%g{spread}%d{runs}%g{bytes}"
               "%g{experts}%g{ratio}%g{value}%s{unit}%s{shape}",
               l->name, ms, spread, mb, ratio, value, l->unit ? l->unit : "", l->shape,
               timed ? l->ms : NAN, timed ? l->spread : NAN, l->runs,
               l->bytes > 0 ? l->bytes : NAN, l->experts > 0 ? l->experts : NAN,
               l->ratio > 0 ? l->ratio : NAN, l->unit ? l->value : NAN, l->unit, l->shape);
    cli_answer_end();
    out_flush();
}

bool cli_bench_name(int i, struct help_word *w)
{
    const char *name = bench_part(i, &w->help);
    snprintf(w->name, sizeof w->name, "%s", name ? name : "");
    return name != NULL;
}

int cli_bench(struct cli *c)
{
    struct err e = {0};
    FREED(free_at) char *title = hub_title(c->opt.engine.model ? c->opt.engine.model : "");
    FREED(free_at) char *name = xasprintf("%.24s", title); /* room in a line */
    const struct bench_opts opts = {
        .pattern = (const char *const *)c->word,
        .n_pattern = c->n_word,
        .engine = c->opt.engine,
        .model_name = name,
        .synthetic = c->synthetic,
        .library = c->cublas,
        .brief = c->brief,
        .about = about,
        .tell = tell,
        .face = cli_face,
        .arg = c,
    };
    bool ok = c->synthetic && c->model_given
                  ? err_set(&e, ERR_USAGE, "--synthetic and -m name two models; expected one")
                  : bench_run(&opts, &e);
    return ok ? 0 : cli_fail(&e);
}
