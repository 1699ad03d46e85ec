/* opts.c - see opts.h: the rows of the options of opening. */
#include "engine/opts.h"

#define AT(field) .at = offsetof(struct engine_opts, field)

/* In the order of --help. */
static const struct option table[] = {
    {"model", "PATH", "folder, GGUF file, or ORG/NAME in the hub's cache",
     OPT_TEXT, AT(model), .change = true},
    {"draft", "DIR|ngram|none", "draft's folder or GGUF; ngram: context lookup",
     OPT_TEXT, AT(draft), .change = true},
    {"require_draft", "", "fail when the draft does not fit the model",
     OPT_FLAG, AT(require_draft)},
    {"eagle_capture", "LIST", "layer boundaries that an EAGLE3 head reads: 2,4,5",
     OPT_TEXT, AT(capture), .may = MAY_STEP, .change = true, .line = 5, .log = "capture",
     .unset = ""},
    {"device", "auto|cpu|cuda", "where to compute (auto: CUDA if there is a GPU)",
     OPT_NAME, AT(device), .may = MAY_ROUND, .change = true, .line = 10, .log = "backend"},
    {"precision", "bf16|f32", "CUDA: type of activations and KV cells (bf16)",
     OPT_NAME, AT(precision), .may = MAY_ROUND, .change = true, .line = 11},
    {"kv", "auto|fp8", "fp8: keys and values in 8 bits",
     OPT_NAME, AT(kv), .may = MAY_ROUND, .change = true, .line = 12},
    {"weights", "stored|fp8", "fp8: quantize bf16 matrices to 8 bits on loading",
     OPT_NAME, AT(quant.weights), .may = MAY_LOGITS, .change = true, .line = 8, .unset = "stored"},
    {"draft_weights", "stored|fp8", "fp8: the draft model in 8 bits (default: --weights)",
     OPT_NAME, AT(quant.draft_weights), .may = MAY_STEP, .change = true, .line = 9, .unset = ""},
    {"load", "auto|map|copy", "CPU: use weights in the mapped files, or copy them",
     OPT_NAME, AT(load)},
    {"threads", "N", "CPU threads (default: all cores)",
     OPT_INT, AT(threads), 1, 1024, .change = true},
    {"raw", "", "no chat format: continue the text as it stands",
     OPT_FLAG, AT(raw), .may = MAY_PROMPT, .change = true, .line = 6, .unset = "0"},
    {"context", "N", "longest context in tokens",
     OPT_INT, AT(context), 16, 1 << 24, .may = MAY_NUMBER | MAY_STEP | MAY_PROMPT | MAY_END,
     .change = true, .line = 2, .unset = "0"},
    {"page_size", "N", "tokens a page: 1, 2, 4 .. 64 (default 16)",
     OPT_POW2, AT(page_size), 1, 64, .may = MAY_NUMBER, .change = true, .line = 1, .unset = "0"},
    {"full_pages", "N", "pages of the full pool (default: enough)",
     OPT_INT, AT(full_pages), 3, 1 << 28, .may = MAY_NUMBER, .change = true, .line = 3,
     .unset = "0", .follows = true},
    {"swa_pages", "N", "pages of the sliding-window pool (default: enough)",
     OPT_INT, AT(swa_pages), 3, 1 << 28, .may = MAY_NUMBER, .change = true, .line = 4, .unset = "0",
     .follows = true},
    /* of no flag: the program sets them */
    {"date", "", "",
     OPT_TEXT, AT(date), .may = MAY_PROMPT, .line = 7, .unset = "", .follows = true},
    {"rows", "", "",
     OPT_INT, AT(rows), 1, 1 << 24, .may = MAY_STEP, .line = 13, .follows = true},
    {"lanes", "", "",
     OPT_INT, AT(lanes), 1, 32},
    {"page_size_before", "", "",
     OPT_POW2, AT(was.page_size), 1, 64},
    {"full_pages_before", "", "",
     OPT_INT, AT(was.full_pages), 3, 1 << 28},
    {"swa_pages_before", "", "",
     OPT_INT, AT(was.swa_pages), 3, 1 << 28},
};
enum { N = LEN(table) };

int opts_count(void)
{
    return N;
}

const struct option *opts_at(int i)
{
    CHECK(i >= 0 && i < N);
    return &table[i];
}

static bool same_name(const char *name, const char *as)
{
    while (*name && (*name == *as || (*name == '_' && *as == '-')))
        name++, as++;
    return !*name && !*as;
}

const struct option *opts_find(const char *name)
{
    for (int i = 0; i < N; i++)
        if (same_name(table[i].name, name))
            return &table[i];
    return NULL;
}

static const char *log_name(const struct option *t)
{
    return t->log ? t->log : t->name;
}

const struct option *opts_logged_as(const char *name)
{
    for (int i = 0; i < N; i++)
        if (table[i].line && strcmp(log_name(&table[i]), name) == 0)
            return &table[i];
    return NULL;
}

/* "auto, cpu or cuda" of "auto|cpu|cuda" */
static void list_words(const char *words, struct buf *out)
{
    int count = 1, i = 0;
    for (const char *s = words; *s; s++)
        count += *s == '|';
    for (size_t n; *words; words += n + (words[n] == '|')) {
        n = strcspn(words, "|");
        FREED(free_at) char *word = xasprintf("%.*s", (int)n, words);
        buf_or(out, i++, count, word);
    }
}

bool opts_check(const struct engine_opts *o, struct err *e)
{
    FOR_EACH(const struct option, t, table, N) {
        const char *value =
            t->kind == OPT_NAME ? *(const char *const *)((const char *)o + t->at) : NULL;
        struct buf flag = {0}, words = {0};
        if (!value || word_index(t->range, value) >= 0)
            continue;
        for (const char *c = t->name; *c; c++)
            buf_char(&flag, *c == '_' ? '-' : *c);
        list_words(t->range, &words);
        err_set(e, ERR_USAGE, "--%s cannot be \"%.80s\"; expected %s", flag.p, value, words.p);
        buf_free(&flag);
        buf_free(&words);
        return false;
    }
    return true;
}

void opts_key(const struct engine_opts *o, struct buf *out)
{
    for (int i = 0; i < N; i++) {
        option_print(&table[i], o, out);
        buf_char(out, '|');
    }
    buf_printf(out, "%p", (const void *)o->backend);
}

/* Whether the field has a value of its own: 0, false and NULL stand for the default. */
static bool is_given(const struct option *t, const struct engine_opts *o)
{
    const void *at = (const char *)o + t->at;
    return t->kind == OPT_FLAG                            ? *(const bool *)at
           : t->kind == OPT_NAME || t->kind == OPT_TEXT ? *(const char *const *)at != NULL
                                                         : *(const int *)at != 0;
}

void opts_print(const struct engine_opts *o, struct buf *out)
{
    for (int line = 1; line <= N; line++)
        FOR_EACH(const struct option, t, table, N) {
            bool given = is_given(t, o);
            if (t->line != line || (!given && !t->unset))
                continue;
            buf_printf(out, "%s=", log_name(t));
            if (given)
                option_print(t, o, out);
            else
                buf_str(out, t->unset);
            buf_char(out, '\n');
        }
}

/* The value of a name in lines that are cut into texts; NULL: none, or an empty one. */
static const char *value_of(const char *lines, const char *end, const char *name)
{
    size_t n = strlen(name);
    for (const char *at = lines; at < end; at += strlen(at) + 1)
        if (strncmp(at, name, n) == 0 && at[n] == '=')
            return at[n + 1] ? at + n + 1 : NULL;
    return NULL;
}

void opts_read(struct engine_opts *o, const struct engine_opts *asked, char *lines)
{
    const char *end = lines + strlen(lines);
    for (char *at = lines; (at = strchr(at, '\n'));)
        *at++ = '\0';
    FOR_EACH(const struct option, t, table, N) {
        const struct engine_opts *from = is_given(t, asked) ? asked : NULL;
        const char *text = t->line && !from ? value_of(lines, end, log_name(t)) : NULL;
        void *at = (char *)o + t->at;
        int number = 0;
        if (from && t->kind == OPT_FLAG)
            *(bool *)at = true;
        else if (t->kind == OPT_NAME || t->kind == OPT_TEXT)
            *(const char **)at = from ? *(const char *const *)((const char *)from + t->at) : text;
        else if (t->kind == OPT_FLAG)
            *(bool *)at = text && strcmp(text, "0") != 0;
        else if (from)
            *(int *)at = *(const int *)((const char *)from + t->at);
        else
            *(int *)at = text && int_at(&text, &number) ? number : 0;
    }
}
