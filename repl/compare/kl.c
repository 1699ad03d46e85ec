/* kl.c - see kl.h. */
#include "repl/compare/kl.h"

#include <math.h>

#include "kernels/sort.h"

static void add_row(struct kl_sum *s, double r)
{
    s->n++;
    s->equal += r == 0;
    s->k3 += expm1(r) - r;
    s->abs += fabs(r);
    s->most = fmax(s->most, fabs(r));
}

static void keep_row(struct kl *k, double r)
{
    size_t n = (size_t)k->part[KL_ALL].n;
    MAKE_ROOM(k->abs, n);
    k->abs[n] = (float)fabs(r);
}

/* The depth of token i in its step; -1: it is the first token, -2: not known. */
static int depth_of(const struct ids *accepted, int i)
{
    if (i == 0)
        return -1;
    int at = 1;
    for (int s = 0; s < accepted->n; s++) {
        if (i <= at + accepted->v[s])
            return i - at;
        at += accepted->v[s] + 1;
    }
    return -2;
}

static void add_parts(struct kl *k, int row, int depth, double r)
{
    if (k->window > 0)
        add_row(&k->part[row < k->window ? KL_BELOW_WINDOW : KL_PAST_WINDOW], r);
    if (k->block > 1) {
        int at = row % k->block;
        add_row(&k->part[at == 0 ? KL_FIRST : at == k->block - 1 ? KL_LAST : KL_INSIDE], r);
    }
    if (depth > -2)
        add_row(&k->part[depth < 0 ? KL_PROMPT : KL_DEPTH + min_int(depth, KL_DEPTHS - 1)], r);
}

void kl_add(struct kl *k, const struct kl_reply *x)
{
    double k3 = 0;
    int n = 0;
    k->n_reply++;
    for (int i = 0; i < x->n; i++) {
        double r = (double)x->read[i] - (double)x->decoded[i];
        if (!isfinite(r)) {
            k->unknown++;
            continue;
        }
        if (k->part[KL_ALL].n == 0 || fabs(r) > k->part[KL_ALL].most) {
            k->most_reply = k->n_reply;
            k->most_token = i + 1;
            k->most_position = x->n_prompt + i;
        }
        keep_row(k, r);
        add_row(&k->part[KL_ALL], r);
        add_parts(k, x->n_prompt + i - 1, depth_of(&x->accepted, i), r);
        k3 += expm1(r) - r;
        n++;
    }
    if (n)
        k->k3_most = fmax(k->k3_most, k3 / n);
}

void kl_free(struct kl *k)
{
    free(k->abs);
    *k = (struct kl){0};
}

double kl_mean(const struct kl_sum *s)
{
    return s->n ? s->k3 / (double)s->n : 0;
}

double kl_below(struct kl *k, double share)
{
    int64_t n = k->part[KL_ALL].n;
    if (n == 0)
        return 0;
    sort_floats(k->abs, n);
    int64_t at = (int64_t)ceil(share * (double)n) - 1;
    return (double)k->abs[at < 0 ? 0 : at];
}

static void name_part(const struct kl *k, int part, char out[48])
{
    if (part >= KL_DEPTH)
        snprintf(out, 48, "depth %d%s of a step", part - KL_DEPTH,
                 part == N_KL_PARTS - 1 ? " and more" : "");
    else if (part == KL_BELOW_WINDOW)
        snprintf(out, 48, "window %d not yet full", k->window);
    else if (part == KL_PAST_WINDOW)
        snprintf(out, 48, "past the window %d", k->window);
    else if (part == KL_PROMPT)
        snprintf(out, 48, "last row of the prompt");
    else
        snprintf(out, 48, "%s a block of %d",
                 part == KL_FIRST ? "first row of" : part == KL_LAST ? "last row of" : "inside",
                 k->block);
}

static void print_part(const struct kl *k, int part, const struct printer *to)
{
    const struct kl_sum *s = &k->part[part];
    char name[48];
    if (s->n == 0)
        return;
    name_part(k, part, name);
    print_line(to, s->most > 0 ? ST_WARN : ST_TEXT,
               "  %-26s{row} %6ld{tokens} %10.3g{k3_mean} %10.3g{largest}\f%ld{equal}", name, s->n,
               kl_mean(s), s->most, s->equal);
}

void kl_print(struct kl *k, const struct printer *to)
{
    const struct kl_sum *s = &k->part[KL_ALL];
    double n = s->n ? (double)s->n : 1;
    print_add(to, ST_TEXT, "%d{replies} repl%s, ", k->n_reply, k->n_reply == 1 ? "y" : "ies");
    print_add(to, ST_TEXT, "%ld{tokens} token%s: %ld{equal} with equal log probabilities", s->n,
              plural((int)s->n), s->equal);
    print_add(to, ST_WARN, k->unknown ? ", %ld{unknown} with an unknown one" : "\f%ld{unknown}",
              k->unknown);
    print_end(to);
    print_facts(to, ST_TEXT, "k3          mean %.3g{k3_mean}, largest mean of a reply "
                "%.3g{k3_of_a_reply}", kl_mean(s), k->k3_most);
    print_add(to, ST_TEXT, "difference  mean %.3g{mean}, 99 %% at most %.3g{tail}, ", s->abs / n,
              kl_below(k, 0.99));
    print_add(to, ST_TEXT, "largest %.3g{largest}", s->most);
    print_add(to, ST_TEXT,
              s->most > 0 ? ": reply %d{largest_reply}, token %d{largest_token}, position "
                            "%d{largest_position}"
                          : "\f%d{largest_reply:0}%d{largest_token:0}%d{largest_position:0}",
              k->most_reply, k->most_token, k->most_position);
    print_end(to);
    print_note(to, ST_DIM, "  %-26s %6s %10s %10s", "row", "tokens", "k3 mean", "largest");
    PRINT_IN(to, "rows", '[');
    for (int part = KL_ALL + 1; part < N_KL_PARTS; part++)
        print_part(k, part, to);
}
