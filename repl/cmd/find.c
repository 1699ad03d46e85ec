/* find.c - /help WORDS: a search over commands, settings, topics and the manual page.
 *
 * A word counts by how few documents have it, and by where it stands: in a name, a title or a text.
 * A setting whose whole name is in the question is an answer although other words are missing.
 * Endings are cut (copies, copied, copying), and a word may begin another one (accept, acceptance).
 * Of each document the line that has most of the words is shown. Main thread only. */
#include <math.h>

#include "repl/cmd/cmd.h"
#include "repl/cmd/help_text.h"

#include "kernels/ascii.h"
#include "kernels/lines.h"

enum { MAX_WORD = 24, MAX_QUERY = 16, MAX_SHOWN = 8, LINE_CELLS = 72,
       NAME_TIMES = 5 /* a word counts in a name, against one in a text */ };

struct word_of {
    char s[MAX_WORD + 1]; /* lower case, without its ending */
    int n;
    enum { CUT_NONE, CUT_E, CUT_MORE } cut; /* its ending */
};
struct query {
    struct word_of word[MAX_QUERY];
    double weight[MAX_QUERY]; /* the rarer, the more; 0: no document has it */
    int n;
};
enum document_kind { OF_TOPIC, OF_COMMAND, OF_SETTING, OF_MANUAL };
/* What is searched, in the order in which equals are listed. */
struct document {
    enum document_kind kind;
    const char *name, *title;
    const char *text[2]; /* lines */
    double favour;
};
struct hit {
    int document;
    double score;
    const char *line; /* the best line of its texts; NULL: its title has as much */
    size_t n;
};

/* ---- documents ----------------------------------------------------------------------------- */

static int n_documents(const struct help_on *h)
{
    return help_n_topic + h->n_table + settings_count() + help_n_manual;
}

static struct document document_at(const struct help_on *h, int i)
{
    if (i < help_n_topic) {
        const struct topic *t = &help_topics[i];
        return (struct document){OF_TOPIC, t->name, t->title, {t->text, t->example}, 1.1};
    }
    i -= help_n_topic;
    if (i < h->n_table) {
        const struct cmd *c = &h->table[i];
        return (struct document){OF_COMMAND, c->name, c->help, {c->args, c->example}, 1};
    }
    i -= h->n_table;
    if (i < settings_count()) {
        const struct option *s = settings_at(i);
        return (struct document){OF_SETTING, s->name, s->help, {s->range, ""}, 0.9};
    }
    const struct man_part *m = &help_manual[i - settings_count()];
    return (struct document){OF_MANUAL, m->tag, m->section, {m->text, ""}, 0.8};
}

/* ---- words --------------------------------------------------------------------------------- */

static bool ends_in(const struct word_of *w, const char *end)
{
    int n = (int)strlen(end);
    return w->n >= n + 3 && memcmp(w->s + w->n - n, end, (size_t)n) == 0;
}

/* copies, copied, copying: copi; stepping: step; saved, saves: sav. */
static void cut_ending(struct word_of *w)
{
    bool twice = ends_in(w, "ing") || ends_in(w, "ed");
    int all = w->n;
    w->cut = ends_in(w, "e") ? CUT_E : CUT_NONE;
    w->n -= ends_in(w, "ing") ? 3 : ends_in(w, "ed") || ends_in(w, "es") ? 2 : ends_in(w, "s") ||
            ends_in(w, "e");
    if (twice && w->n > 3 && w->s[w->n - 1] == w->s[w->n - 2] && w->s[w->n - 1] != 's')
        w->n--;
    if (w->n > 2 && w->s[w->n - 1] == 'y')
        w->s[w->n - 1] = 'i';
    w->s[w->n] = '\0';
    if (w->n < all && w->cut == CUT_NONE)
        w->cut = CUT_MORE;
}

/* Reads the next word of text[0, n). Returns what is behind it; NULL: there is none. */
static const char *next_word(const char *s, const char *end, struct word_of *w)
{
    while (s < end && !ascii_alnum(*s))
        s++;
    if (s == end)
        return NULL;
    for (w->n = 0; s < end && (ascii_alnum(*s) || *s == '_'); s++)
        if (w->n < MAX_WORD)
            w->s[w->n++] = ascii_lower(*s);
    w->s[w->n] = '\0';
    cut_ending(w);
    return s;
}

/* Words that most questions have and no answer is about, and small numbers. */
static bool says_nothing(const struct word_of *w)
{
    if (w->n < 4 && strspn(w->s, "0123456789") == (size_t)w->n)
        return true;
    static const char words[] =
        " a an the i is ar be am do doe did how what which can could my me it in of on for to "
        "with and or from thi that by at as not you your there if aeri help wa when so get hav "
        "ha into want through up down out over one two all ani som no now then her thei than "
        "mor most veri just about between us doe without through onli been onc ";
    char padded[MAX_WORD + 3] = " ";
    memcpy(padded + 1, w->s, (size_t)w->n);
    memcpy(padded + 1 + w->n, " ", 2);
    return strstr(words, padded) != NULL;
}

static double alike(const struct word_of *a, const struct word_of *b)
{
    int n = min_int(a->n, b->n);
    bool differ = a->n == b->n && a->cut != CUT_MORE && b->cut != CUT_MORE && a->cut != b->cut;
    if (differ || memcmp(a->s, b->s, (size_t)n) != 0) /* differ: past and paste, plan and plane */
        return 0;
    return a->n == b->n ? 1 : n >= 4 && 2 * n > max_int(a->n, b->n) ? 0.6 : 0;
}

static void read_query(const char *text, struct query *q)
{
    struct word_of w;
    const char *end = text + strlen(text);
    for (const char *s = text; q->n < MAX_QUERY && (s = next_word(s, end, &w)) != NULL;)
        if (!says_nothing(&w))
            q->word[q->n++] = w;
}

/* ---- scores -------------------------------------------------------------------------------- */

/* have[i] becomes at least how well s[0, n) has the word i, times `times`. */
static void look_in(const struct query *q, const char *s, size_t n, double times, double *have)
{
    struct word_of w;
    for (const char *p = s, *end = s + n; (p = next_word(p, end, &w)) != NULL;)
        for (int i = 0; i < q->n; i++)
            have[i] = fmax(have[i], times * alike(&q->word[i], &w));
}

static double sum_of(const struct query *q, const double *have)
{
    double sum = 0;
    for (int i = 0; i < q->n; i++)
        sum += q->weight[i] * have[i];
    return sum;
}

/* The line of the document that has most; returns how much. */
static double best_line(const struct query *q, const struct document *d, struct hit *h)
{
    double title[MAX_QUERY] = {0}, best;
    look_in(q, d->title, strlen(d->title), 1, title);
    best = sum_of(q, title);
    for (int t = 0; t < 2; t++)
        FOR_LINES(l, d->text[t]) {
            double have[MAX_QUERY] = {0}, sum;
            look_in(q, l.p, l.n, 1, have);
            sum = sum_of(q, have);
            if (sum > best || (!h->line && sum > 0 && sum >= best)) {
                best = sum;
                h->line = l.p;
                h->n = l.n;
            }
        }
    return best;
}

/* As look_in(), in each part of a name such as draft.steps or top_p. Returns whether all parts are
 * words of the question. */
static bool look_in_parts(const struct query *q, const char *name, double times, double *have)
{
    bool whole = *name != '\0';
    for (const char *s = name; *s; s += *s != '\0') {
        double part[MAX_QUERY] = {0};
        size_t n = strcspn(s, "._");
        look_in(q, s, n, 1, part);
        whole = whole && ANY(i, q->n, part[i] == 1);
        for (int i = 0; i < q->n; i++)
            have[i] = fmax(have[i], times * part[i]);
        s += n;
    }
    return whole;
}

/* Returns whether the question has the whole name. */
static bool look_at(const struct query *q, const struct document *d, double *have)
{
    look_in(q, d->text[0], strlen(d->text[0]), 1, have);
    look_in(q, d->text[1], strlen(d->text[1]), 0.5, have);
    look_in(q, d->title, strlen(d->title), 3, have);
    look_in(q, d->name, strlen(d->name), NAME_TIMES, have);
    return look_in_parts(q, d->name, NAME_TIMES, have);
}

/* A word's weight: the logarithm of all documents over those that have it. */
static void weigh(const struct help_on *on, struct query *q)
{
    int found[MAX_QUERY] = {0}, n = n_documents(on);
    for (int i = 0; i < n; i++) {
        struct document d = document_at(on, i);
        double have[MAX_QUERY] = {0};
        look_at(q, &d, have);
        for (int j = 0; j < q->n; j++)
            found[j] += have[j] > 0;
    }
    for (int j = 0; j < q->n; j++)
        q->weight[j] = found[j] ? log(1.0 + (double)n / found[j]) : 0;
}

static double score(const struct help_on *on, const struct query *q, int i, struct hit *h)
{
    struct document d = document_at(on, i);
    double have[MAX_QUERY] = {0}, all = 0, part = 0;
    *h = (struct hit){.document = i};
    bool whole = look_at(q, &d, have) && d.kind == OF_SETTING;
    for (int j = 0; j < q->n; j++) {
        all += q->weight[j];
        part += q->weight[j] * fmin(have[j], 1);
    }
    if (part == 0)
        return 0;
    part = whole ? 1 : part / all;
    double line = best_line(q, &d, h);
    if (whole)
        line = fmax(line, sum_of(q, have) / NAME_TIMES);
    h->score = d.favour * (sum_of(q, have) + 2 * line) * part * part;
    return h->score;
}

/* ---- the answer ---------------------------------------------------------------------------- */

/* A line, or as much of it as fits around its first word of the question. */
static void cut_line(const struct query *q, const char *s, size_t n, struct buf *out)
{
    struct word_of w;
    const char *end = s + n, *at = s;
    while (s < end && *s == ' ')
        s++;
    for (const char *p = s; (p = next_word(p, end, &w)) != NULL;) {
        bool of_query = false;
        for (int i = 0; i < q->n; i++)
            of_query |= q->weight[i] > 0 && alike(&q->word[i], &w) > 0;
        if (of_query) {
            at = p;
            break;
        }
    }
    if (at - s > LINE_CELLS - 20 && end - s > LINE_CELLS) {
        s = at - 40;
        while (s < at && *s != ' ')
            s++;
        buf_str(out, "…");
    }
    int cells;
    size_t fits = text_fit(s, (size_t)(end - s), LINE_CELLS, &cells);
    if (s + fits < end)
        fits = text_fit(s, (size_t)(end - s), LINE_CELLS - 2, &cells);
    const char *blank = s + fits < end ? memrchr(s, ' ', fits + 1) : NULL;
    buf_add(out, s, blank && blank > at ? (size_t)(blank - s) : fits);
    if (s + fits < end)
        buf_str(out, " …");
}

static void say_hit(const struct help_on *on, const struct query *q, const struct hit *h,
                    const struct printer *to)
{
    struct document d = document_at(on, h->document);
    static const char *const kind[] = {"topic", "command", "setting", "manual"};
    bool manual = d.kind == OF_MANUAL, command = d.kind == OF_COMMAND;
    FREED(buf_free) struct buf line = {0};
    if (h->line && !command)
        cut_line(q, h->line, h->n, &line);
    print_add(to, ST_KEY, "%s%s", manual ? "man aerie" : command ? "/" : "", manual ? "" : d.name);
    print_tab(to, 15);
    print_note(to, ST_TEXT, " %s%s%s", d.title, manual && *d.name ? ": " : "",
               manual ? d.name : "");
    if (line.n)
        print_note(to, ST_DIM, "    %s", line.p);
    print_line(to, ST_TEXT, "\f%s{kind}%s{name}%s{title}%s{line}", kind[d.kind], d.name, d.title,
               line.n ? line.p : d.title);
}

/* Puts a hit among the best. Returns how many there are then. */
static int keep_hit(struct hit *best, int n, struct hit h)
{
    int at = n;
    while (at > 0 && best[at - 1].score < h.score)
        at--;
    if (at == MAX_SHOWN)
        return n;
    n += n < MAX_SHOWN;
    memmove(best + at + 1, best + at, (size_t)(n - at - 1) * sizeof *best);
    best[at] = h;
    return n;
}

bool help_find(const struct help_on *on, const struct printer *to)
{
    struct query q = {.n = 0};
    struct hit best[MAX_SHOWN], h;
    int n = 0;
    read_query(on->words, &q);
    weigh(on, &q);
    for (int i = 0; i < n_documents(on); i++)
        if (score(on, &q, i, &h) > 0)
            n = keep_hit(best, n, h);
    while (n > 1 && best[n - 1].score < 0.2 * best[0].score)
        n--;
    if (n == 0)
        return false;
    print_open(to, NULL, '{');
    print_open(to, "found", '[');
    for (int i = 0; i < n; i++)
        say_hit(on, &q, &best[i], to);
    print_close(to, ']');
    print_close(to, '}');
    print_note(to, ST_DIM, "%s NAME shows one of them whole", on->app ? "/help" : "aerie help");
    return true;
}
