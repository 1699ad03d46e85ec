/* triage_print.c - the facts and the verdict of a triage, as text and as JSON. See triage.h. */
#include "repl/compare/triage.h"

#include <math.h>

enum { DEPTHS = 16, MARKS = 24, SHOWN = 4 };

/* Published rates, of all steps by position, and lengths, 1 + accepted/steps: the bonus token
 * counts, so a length of 1 means that no guess was accepted. */
static const struct {
    const char *model, *setup, *source;
    double length;
    double at[5];
    int n;
} published[] = {
    {"Llama-3.1-8B", "K 3, MT-Bench, greedy", "vLLM's tests", 2.60, {.730, .521, .355}, 3},
    {"Qwen3-8B", "K 3, MT-Bench, greedy", "vLLM's tests", 2.26, {.654, .399, .202}, 3},
    {"gpt-oss-20b", "K 3, MT-Bench, greedy", "vLLM's tests", 2.56, {.717, .512, .334}, 3},
    {"wrong layers", "Llama-3.3-70B, K 3", "vllm#50170", 1.04, {.036, .001, 0}, 3},
    {"Llama-3.3-70B", "K 3", "vllm#50170", 2.77, {.751, .567, .453}, 3},
    {"Qwen3-30B-A3B", "K 5, T 0.6", "speculators#610", 2.16, {.586, .299, .149, .079, .042}, 5},
    {"Llama-3.1-8B", "K 5, SGLang: tokens/verify passes, the first token too", "sglang#4247", 4.68,
     {0}, 0},
    {"Llama-3.1-8B", "tree, tau = accepted + 1", "the EAGLE-3 paper", 6.13, {0}, 0},
};
enum { N_PUBLISHED = LEN(published), BESIDE = 4 };

/* ---- numbers --------------------------------------------------------------------------------- */

/* The published rates at a position, in columns of people's table only. */
static void print_beside(int depth, const struct printer *to)
{
    for (int i = 0; i < BESIDE && !to->json; i++)
        if (depth <= published[i].n)
            print_add(to, ST_DIM, " %9.3f", published[i].at[depth - 1]);
    print_end(to);
}

static void print_depths(const struct triage *t, const struct printer *to)
{
    const struct draft_sums *s = &t->log.drafts;
    static const char *const beside[BESIDE] = {"Llama 8B", "Qwen3 8B", "gpt-oss", "bad layer"};
    print_add(to, ST_HEAD, "%6s %7s %8s %6s %6s", "depth", "drafted", "accepted", "of all",
              "after");
    for (int i = 0; i < BESIDE; i++)
        print_add(to, ST_DIM, " %9s", beside[i]);
    print_end(to);
    print_open(to, "positions", '[');
    for (int d = 1; d <= DEPTHS && s->depth[d].drafted && t->per_depth; d++) {
        PRINT_IN(to, NULL, '{');
        print_add(to, ST_TEXT, "%6d{position} %7lu{drafted} %8lu{accepted} %6.3f{of_cycles} "
                  "%6.3f{of_before}", d, s->depth[d].drafted, s->depth[d].accepted,
                  accepted_at(s, d), accepted_after(s, d));
        print_beside(d, to);
    }
    print_close(to, ']');
    print_add(to, ST_TEXT, "%6s %7lu{drafted} %8lu{accepted} %6.2f{length} %6s", "length",
              s->drafted, s->accepted, draft_sums_mal(s), "");
    for (int i = 0; i < BESIDE && !to->json; i++)
        print_add(to, ST_DIM, " %9.2f", published[i].length);
    print_end(to);
    print_note(to, ST_DIM, "length = 1 + accepted/cycles (%lu cycles): the bonus token counts, as "
               "in vLLM; SGLang: tokens/verify passes", (unsigned long)s->cycles);
    print_note(to, ST_DIM, "of all: of all cycles; after: of those in which the depth before "
               "was accepted");
    print_note(to, ST_DIM, "beside: EAGLE3 heads of Llama-3.1-8B, Qwen3-8B and gpt-oss-20b (vLLM's "
               "tests: K 3, greedy, MT-Bench)");
    print_note(to, ST_DIM, "bad layer: a head that reads wrong layers (vllm#50170)");
}

static void one_group(const char *name, const struct some_drafts *d, const struct printer *to)
{
    print_line(to, ST_TEXT, "  %-28s{name} %6lu{cycles} cycles  position 1 %.2f{position_1}  rate "
               "%.2f{rate}  length %.2f{length}", name, d->cycles, ratio(d->first, d->cycles),
               ratio(d->accepted, d->drafted), 1 + ratio(d->accepted, d->cycles));
}

static void print_arms(const struct triage *t, const struct printer *to)
{
    PRINT_IN(to, "requests", '[');
    for (int i = 0; i < TRIAGE_ARMS; i++)
        if (t->arm[i].name)
            one_group(t->arm[i].name, &t->arm[i].drafts, to);
}

static void print_groups(const struct accepted *a, const struct printer *to)
{
    char name[48];
    print_open(to, "contexts", '[');
    for (int k = 0; k < DRAFT_RANGES; k++)
        if (a->range[k].cycles) {
            snprintf(name, sizeof name, "context from %d", draft_range_first(k));
            one_group(name, &a->range[k], to);
        }
    print_close(to, ']');
    print_open(to, "window", '[');
    for (int i = 0; i < N_EDGES; i++)
        if (a->edge[i].cycles)
            one_group(edge_name[i], &a->edge[i], to);
    print_close(to, ']');
    PRINT_IN(to, "kinds", '[');
    for (int i = 0; i < N_KINDS; i++) {
        const struct kind_count *k = &a->kind[i];
        if (k->drafted + k->emitted)
            print_line(to, ST_TEXT, "  %-28s{kind} %6lu{drafted} drafted  rate %.2f{rate}  of its "
                       "tokens %.2f{share} were drafted", token_kind_name[i], k->drafted,
                       ratio(k->accepted, k->drafted), ratio(k->emitted - k->bonus, k->emitted));
    }
}

static void print_measured(const struct triage *t, const struct printer *to)
{
    const struct redraft *re = &t->re;
    if (!re->tokens) {
        if (t->no_re[0])
            print_line(to, ST_DIM, "not measured again: %s{not_measured}", t->no_re);
        return;
    }
    PRINT_IN(to, "measured", '{');
    print_add(to, ST_TEXT, "measured again: the head alone over %d{tokens}", re->tokens);
    if (re->tokens < t->reply_tokens || to->json) /* a sample */
        print_add(to, ST_TEXT, " of %d{reply_tokens}", t->reply_tokens);
    print_add(to, ST_TEXT, " tokens of %d{replies} repl%s: %d{right} first guesses right (%.1f %%)",
              t->replies + t->more, t->replies + t->more == 1 ? "y" : "ies", re->r[0].hits,
              100.0 * re->r[0].hits / re->tokens);
    if (t->more)
        print_add(to, ST_DIM, "; %d{other_messages} of the replies %s to messages of triage's own",
                  t->more, t->more == 1 ? "is" : "are");
    print_end(to);
    print_add(to, ST_TEXT, "\f%d{logged}%d{same}%d{readings}", re->logged, re->r[0].same, re->n);
    PRINT_IN(to, "tried", '[');
    for (int i = 1; i < re->n && to->json; i++) {
        const struct reading *r = &re->r[i];
        print_line(to, ST_TEXT, "\f%s{reading}%d{tokens}%d{right}%d{won}%d{lost}%d{cycles}"
                   "%g{longer}%g{longer_error}", r->what, r->tokens, r->hits, r->won, r->lost,
                   r->cycles, r->longer, r->error);
    }
}

/* For programs: people have them beside the rates. */
static void print_published(const struct printer *to)
{
    PRINT_IN(to, "published", '[');
    for (int i = 0; i < N_PUBLISHED && to->json; i++) {
        PRINT_IN(to, NULL, '{');
        print_add(to, ST_TEXT, "%s{model}%s{setup}%s{source}%g{length}", published[i].model,
                  published[i].setup, published[i].source, published[i].length);
        PRINT_IN(to, "positions", '[');
        for (int k = 0; k < published[i].n; k++)
            jput_real(to->json, published[i].at[k]);
    }
}

/* ---- causes ---------------------------------------------------------------------------------- */

static void print_cause(const struct cause_found *c, int rank, const struct printer *to)
{
    PRINT_IN(to, NULL, '{');
    print_add(to, rank == 1 && c->weight >= 30 ? ST_BOLD : ST_TEXT, "%2d{rank} %s{about}", rank,
              triage_cause_about(c->cause));
    print_facts(to, ST_DIM, "\f%s{cause}\f (%.0f{weight})", triage_cause_name(c->cause), c->weight);
    print_open(to, "evidence", '[');
    for (int pass = 0; pass < 2; pass++)
        FOR_EACH(const struct evidence, e, c->evidence, c->n)
            if (e->against == (pass == 1))
                print_line(to, e->against ? ST_DIM : ST_TEXT, "   %-8s%s{text}\f%d{against?}",
                           e->against ? "against" : "for", e->text, e->against);
    print_close(to, ']');
    if (c->confirm[0])
        print_facts(to, ST_TEXT, "   confirm %s{confirm}", c->confirm);
}

static void print_causes(const struct triage_verdict *v, const struct printer *to)
{
    int ruled_out = 0;
    print_open(to, "causes", '[');
    for (int i = 0; i < N_CAUSES; i++) {
        if (to->json || (i < SHOWN && v->cause[i].weight >= 10))
            print_cause(&v->cause[i], i + 1, to);
        else
            ruled_out++;
    }
    print_close(to, ']');
    if (ruled_out == 0 || to->json)
        return;
    print_add(to, ST_DIM, "less likely:");
    for (int i = N_CAUSES - ruled_out; i < N_CAUSES; i++)
        print_add(to, ST_DIM, "%s %s", i == N_CAUSES - ruled_out ? "" : ",",
                  triage_cause_name(v->cause[i].cause));
    print_end(to);
}

static const char *verdict_name(const struct triage_verdict *v)
{
    static const char *const name[] = {"too few", "healthy", "cause", "unknown"};
    return name[v->is];
}

void triage_print(const struct triage *t, const struct triage_verdict *v, const struct printer *to)
{
    const struct draft_sums *s = &t->log.drafts;
    const struct accepted *a = &t->log;
    PRINT_IN(to, NULL, '{');
    print_add(to, ST_HEAD, "TRIAGE");
    print_facts(to, ST_TEXT, "  %s{of}", t->of);
    print_facts(to, ST_TEXT, "%s{models}", t->who);
    print_add(to, ST_TEXT, "\f%lu{cycles}%lu{steps_without_drafts}%lu{looped_tokens}", s->cycles,
              a->plain, a->looped);
    if (t->launch[0])
        print_facts(to, ST_TEXT, "launch %s{launch}", t->launch);
    if (t->server && t->length > 0) {
        print_facts(to, ST_TEXT, "length %.2f{length}: tokens/verify passes (spec_accept_length); "
                               "the server reports no rates by position", t->length);
    } else {
        if (t->chats)
            print_line(to, ST_TEXT, "drafts of chats that triage sent, greedy");
        print_depths(t, to);
    }
    print_arms(t, to);
    print_groups(a, to);
    if (a->tokens && a->looped * 4 > a->tokens)
        print_note(to, ST_WARN, "%.0f %% of the tokens repeat what came before: acceptance in a "
                   "loop says nothing", 100 * ratio(a->looped, a->tokens));
    print_measured(t, to);
    print_published(to);
    print_facts(to, v->is == TRIAGE_HEALTHY ? ST_GOOD : v->is == TRIAGE_CAUSE ? ST_BAD : ST_WARN,
                "verdict  %s{text}\f%s{verdict}", v->text, verdict_name(v));
    if (v->is != TRIAGE_TOO_FEW)
        print_causes(v, to);
}
