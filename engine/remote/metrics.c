/* metrics.c - the Prometheus text format: see metrics.h. */
#include "engine/remote/metrics.h"

#include "kernels/ascii.h"

#include <math.h>

static bool name_char(char c)
{
    return ascii_alnum(c) || c == '_' || c == ':';
}

/* The end of a label set whose first byte is after the brace; NULL: it does not end. */
static char *labels_end(char *p)
{
    bool quoted = false;
    for (; *p; p++) {
        if (quoted && *p == '\\' && p[1])
            p++;
        else if (*p == '"')
            quoted = !quoted;
        else if (*p == '}' && !quoted)
            return p;
    }
    return NULL;
}

/* strtod() reads more than the format has (hexadecimal, "nan(x)") and depends on the locale only in
 * programs that set LC_NUMERIC, which aerie does not. */
static bool read_value(const char *p, double *out)
{
    char *end;
    while (*p == ' ' || *p == '\t')
        p++;
    *out = strtod(p, &end);
    if (end == p)
        return false;
    while (*end == ' ' || *end == '\t')
        end++;
    if (*end == '-' || ascii_digit(*end)) /* a time stamp */
        strtoll(end, &end, 10);
    while (*end == ' ' || *end == '\t')
        end++;
    return *end == '\0';
}

/* Cuts "vllm:name" or "sglang_name" at the prefix. */
static void split_name(struct metric *metric, char *name)
{
    static const char *const under[] = {"sglang_", "vllm_", "llamacpp_"};
    char *colon = strchr(name, ':');
    metric->name = name;
    metric->prefix = "";
    if (colon) {
        *colon = '\0';
        metric->prefix = name;
        metric->name = colon + 1;
        return;
    }
    for (size_t i = 0; i < LEN(under); i++) {
        size_t n = strlen(under[i]);
        if (strncmp(name, under[i], n) == 0) {
            name[n - 1] = '\0';
            metric->prefix = name;
            metric->name = name + n;
        }
    }
}

static bool read_sample(char *line, struct metric *metric)
{
    char *name = line, *p = line;
    while (name_char(*p))
        p++;
    char *name_end = p;
    while (*p == ' ' || *p == '\t')
        p++;
    metric->labels = "";
    if (*p == '{') {
        char *end = labels_end(p + 1);
        if (!end)
            return false;
        *end = '\0';
        metric->labels = p + 1;
        p = end + 1;
    } else if (p == name_end) {
        return false;
    }
    if (name_end == name || !read_value(p, &metric->value))
        return false;
    *name_end = '\0';
    split_name(metric, name);
    return true;
}

bool metrics_read(struct metrics *metrics, const char *page, size_t n, struct err *e)
{
    *metrics = (struct metrics){.text = xmalloc(n + 1)};
    if (n)
        memcpy(metrics->text, page, n);
    metrics->text[n] = '\0';
    for (char *line = metrics->text, *stop = metrics->text + n, *next; line < stop; line = next) {
        char *end = memchr(line, '\n', (size_t)(stop - line));
        next = end ? end + 1 : stop;
        if (end)
            *end = '\0';
        size_t len = strlen(line); /* a NUL inside a line ends it */
        if (len && line[len - 1] == '\r')
            line[len - 1] = '\0';
        line += strspn(line, " \t");
        if (!*line || *line == '#')
            continue;
        if (metrics->n == METRICS_MOST) {
            metrics_free(metrics);
            return err_set(e, ERR_MODEL, "the server reports more than %d metrics", METRICS_MOST);
        }
        MAKE_ROOM(metrics->at, metrics->n);
        if (read_sample(line, &metrics->at[metrics->n]))
            metrics->n++;
        else
            metrics->n_bad++;
    }
    return true;
}

void metrics_free(struct metrics *metrics)
{
    FREE(metrics->at, metrics->text);
    *metrics = (struct metrics){0};
}

/* The value after label=" up to the closing quote; *out may be NULL. Returns its end. */
static const char *read_label_value(const char *p, struct buf *out)
{
    for (; *p && *p != '"'; p++) {
        char c = *p;
        if (c == '\\' && p[1])
            c = *++p == 'n' ? '\n' : *p;
        if (out)
            buf_char(out, c);
    }
    return *p ? p + 1 : p;
}

bool metric_label(const struct metric *metric, const char *label, struct buf *out)
{
    size_t n = strlen(label);
    for (const char *p = metric->labels; *p;) {
        p += strspn(p, " \t,");
        const char *name = p;
        while (name_char(*p))
            p++;
        bool found = (size_t)(p - name) == n && memcmp(name, label, n) == 0;
        p += strspn(p, " \t");
        if (*p != '=')
            return false;
        p++;
        p += strspn(p, " \t");
        if (*p != '"')
            return false;
        p = read_label_value(p + 1, found ? out : NULL);
        if (found)
            return true;
    }
    return false;
}

const char *metric_pair(const char **at, size_t *n)
{
    const char *p = *at + strspn(*at, ", \t"), *end = p;
    for (bool quoted = false; *end && (quoted || *end != ','); end++) {
        if (quoted && *end == '\\' && end[1])
            end++;
        else if (*end == '"')
            quoted = !quoted;
    }
    *at = end;
    *n = (size_t)(end - p);
    return *n ? p : NULL;
}

static bool label_is(const struct metric *metric, const char *label, const char *value)
{
    FREED(buf_free) struct buf got = {0};
    return !label ||
           (metric_label(metric, label, &got) && strcmp(buf_text(&got), value) == 0);
}

bool metrics_value(const struct metrics *metrics, const char *name, const char *label,
                   const char *value, enum metrics_join join, double *out, int *count)
{
    int found = 0;
    double all = 0;
    FOR_EACH(const struct metric, metric, metrics->at, metrics->n) {
        if (strcmp(metric->name, name) != 0 || !label_is(metric, label, value))
            continue;
        all = found == 0 ? metric->value : join == METRICS_SUM ? all + metric->value
              : fmax(all, metric->value);
        found++;
    }
    if (count)
        *count = found;
    if (found)
        *out = all;
    return found > 0;
}
