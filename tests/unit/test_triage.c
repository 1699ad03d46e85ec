/* test_triage.c - `aerie triage` names the cause of a low acceptance: the bundled model drafts with
 * heads, settings and faults that were spoilt in one way each, and the cause must come first or
 * second. A healthy head is called healthy. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cmocka.h>
#include <jansson.h>

#include "engine/remote/upkeep.h"
#include "kernels/kernels.h"
#include "repl/compare/triage.h"
#include "tests/few.h"
#include "tests/scratch.h"

#define TARGET "models/nestling/target"
#define DRAFT "models/nestling/draft"

enum { HIDDEN = 256, VOCAB = 4096, DRAFT_VOCAB = 2048 };

static char *here; /* a folder for the logs and the heads */

/* ---- a checkpoint that can be changed -------------------------------------------------------- */

struct file {
    json_t *head; /* the names, shapes and places of the tensors */
    struct buf data;
};

static void file_read(struct file *f, const char *path)
{
    struct buf all = {0};
    struct err e;
    json_error_t why;
    uint64_t n;
    assert_true(buf_read_file(&all, path, 1u << 28, &e));
    memcpy(&n, all.p, sizeof n);
    *f = (struct file){.head = json_loadb(all.p + 8, (size_t)n, 0, &why)};
    assert_non_null(f->head);
    buf_add(&f->data, all.p + 8 + n, all.n - 8 - (size_t)n);
    buf_free(&all);
}

static char *file_tensor(struct file *f, const char *name, size_t *n)
{
    json_t *at = json_object_get(json_object_get(f->head, name), "data_offsets");
    assert_non_null(at);
    size_t from = (size_t)json_integer_value(json_array_get(at, 0));
    *n = (size_t)json_integer_value(json_array_get(at, 1)) - from;
    return f->data.p + from;
}

static void file_add(struct file *f, const char *name, const char *type, int rows, int columns,
                     const void *data, size_t n)
{
    size_t at = f->data.n;
    json_object_set_new(f->head, name, json_pack("{s:s, s:[i,i], s:[I,I]}", "dtype", type, "shape",
                                                 rows, columns, "data_offsets", (json_int_t)at,
                                                 (json_int_t)(at + n)));
    buf_add(&f->data, data, n);
}

static void file_write(struct file *f, const char *path)
{
    char *head = json_dumps(f->head, JSON_COMPACT);
    uint64_t n = (strlen(head) + 7) / 8 * 8;
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    fwrite(&n, sizeof n, 1, out);
    fprintf(out, "%-*s", (int)n, head);
    fwrite(f->data.p, 1, f->data.n, out);
    assert_int_equal(fclose(out), 0);
    free(head);
    json_decref(f->head);
    buf_free(&f->data);
}

/* ---- spoilt weights -------------------------------------------------------------------------- */

/* Row r of the table becomes row r + by. */
static void rotate(char *table, size_t n, size_t by)
{
    char *copy = xmalloc(n);
    memcpy(copy, table, n);
    memcpy(table, copy + by, n - by);
    memcpy(table + n - by, copy, by);
    free(copy);
}

/* Numbers that look like weights: bf16 of both signs below 2^-4. */
static void scramble(char *weights, size_t n, uint64_t seed)
{
    for (size_t i = 0; i + 1 < n; i += 2) {
        uint64_t r = mix64(seed ^ mix64(i));
        uint16_t v = (uint16_t)(0x3c00 | (r & 0x80ff));
        memcpy(weights + i, &v, sizeof v);
    }
}

static void own_embedding(struct file *f, size_t by, bool random)
{
    struct file target;
    size_t n;
    file_read(&target, TARGET "/model.safetensors");
    char *rows = file_tensor(&target, "model.embed_tokens.weight", &n);
    if (by)
        rotate(rows, n, by * HIDDEN * 2);
    if (random)
        scramble(rows, n, 7);
    file_add(f, "embed_tokens.weight", "BF16", VOCAB, HIDDEN, rows, n);
    json_decref(target.head);
    buf_free(&target.data);
}

static void spoil_ids(struct file *f)
{
    size_t n;
    char *rows = file_tensor(f, "lm_head.weight", &n);
    rotate(rows, n, 300 * HIDDEN * 2);
}

static void spoil_tokenizer(struct file *f)
{
    own_embedding(f, 11, false);
    spoil_ids(f);
}

static void spoil_embedding(struct file *f)
{
    own_embedding(f, 0, true);
}

static void spoil_norm_weight(struct file *f)
{
    size_t n;
    char *w = file_tensor(f, "midlayer.hidden_norm.weight", &n);
    for (size_t i = 0; i < n; i += 2)
        memcpy(w + i, "\x80\x3f", 2); /* 1 */
}

static void spoil_all(struct file *f)
{
    static const char *const name[] = {"fc.weight", "midlayer.self_attn.q_proj.weight",
                                       "midlayer.self_attn.v_proj.weight",
                                       "midlayer.mlp.down_proj.weight"};
    for (size_t i = 0; i < sizeof name / sizeof *name; i++) {
        size_t n;
        char *w = file_tensor(f, name[i], &n);
        scramble(w, n, i);
    }
}

/* ---- seeds ----------------------------------------------------------------------------------- */

#define STORY "Tell me a story about a fox."

static const struct seed {
    const char *name;
    const char *config;         /* merged into the head's config.json; NULL: as it is */
    void (*spoil)(struct file *f);
    const char *flags, *prompt; /* of the session */
    const char *cause, *or;     /* one of them must come first or second */
    bool more;                  /* with AERIE_TEST_LONG only */
} seeds[] = {
    {"layers", "{\"eagle_config\":{\"eagle_aux_hidden_state_layer_ids\":[2,4,6]}}", NULL, "", STORY,
     "layers", NULL, false},
    {"far layers", "{\"eagle_config\":{\"eagle_aux_hidden_state_layer_ids\":[0,2,3]}}", NULL, "",
     STORY, "layers", NULL, true},
    {"layers by option", NULL, NULL, "--eagle-capture 5,4,2", STORY, "layers", NULL, true},
    {"norm", "{\"norm_before_residual\":true}", NULL, "", STORY, "norm", NULL, false},
    {"norm of the output", "{\"norm_output\":true}", NULL, "", STORY, "norm", NULL, true},
    {"epsilon", "{\"rms_norm_eps\":0.1}", NULL, "", STORY, "norm", NULL, true},
    {"norm weight", NULL, spoil_norm_weight, "", STORY, "norm", NULL, true},
    {"template", NULL, NULL, "--raw", "Once upon a time there was a fox", "template", NULL, false},
    {"pages", NULL, NULL, "--bug 26512 -p check=off", STORY, "pages", NULL, false},
    {"cells", NULL, NULL, "--kv fp8", STORY, "quantized", NULL, false},
    {"context", "{\"max_position_embeddings\":64}", NULL, "", STORY, "context", NULL, false},
    {"theta", "{\"rope_theta\":1000000}", NULL, "", STORY, "rope", NULL, false},
    {"scaling", "{\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":8}}", NULL, "", STORY,
     "rope", NULL, true},
    {"ids", NULL, spoil_ids, "", STORY, "ids", NULL, false},
    {"window", "{\"sliding_window\":4,\"use_sliding_window\":true}", NULL, "", STORY, "window",
     NULL, false},
    {"window by setting", NULL, NULL, "-p draft.window=6", STORY, "window", "context", true},
    {"sampling", NULL, NULL, "-p temperature=1.3 --seed 5", STORY, "sampling", NULL, false},
    {"penalties", NULL, NULL, "-p repetition_penalty=1.6 -p max_tokens=120", STORY, "sampling",
     NULL, false},
    {"hot sampling", NULL, NULL, "-p temperature=2.5 --seed 5", STORY, "sampling", NULL, true},
    {"tokenizer", NULL, spoil_tokenizer, "", STORY, "tokenizer", NULL, false},
    {"embedding", NULL, spoil_embedding, "", STORY, "embedding", NULL, false},
    {"another head", NULL, spoil_all, "", STORY, "other head", NULL, false},
};

static void make_head(const struct seed *s, const char *folder)
{
    json_error_t why;
    char *config = xasprintf("%s/config.json", folder);
    char *weights = xasprintf("%s/model.safetensors", folder);
    struct file f;
    mkdir(folder, 0700);
    json_t *c = json_load_file(DRAFT "/config.json", 0, &why);
    json_t *change = json_loads(s->config ? s->config : "{}", 0, &why);
    assert_true(c && change);
    json_object_update_recursive(c, change);
    assert_int_equal(json_dump_file(c, config, JSON_COMPACT), 0);
    json_decref(c);
    json_decref(change);
    file_read(&f, DRAFT "/model.safetensors");
    if (s->spoil)
        s->spoil(&f);
    file_write(&f, weights);
    free(config);
    free(weights);
}

/* Runs a command of aerie with a log of its own; what it prints. *rc: its status. */
static char *aerie(const char *args, int *rc)
{
    const char *path = getenv("AERIE");
    char *line = xasprintf("HOME=%s XDG_DATA_HOME=%s XDG_CONFIG_HOME=%s XDG_STATE_HOME=%s %s "
                           "</dev/null 2>%s/err %s", here, here, here, here, path ? path
                           : "build/aerie", here, args);
    struct buf out = {0};
    char piece[4096];
    size_t n;
    FILE *p = popen(line, "r");
    assert_non_null(p);
    while ((n = fread(piece, 1, sizeof piece, p)) > 0)
        buf_add(&out, piece, n);
    int status = pclose(p);
    *rc = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    free(line);
    return out.p ? out.p : xstrdup("");
}

/* The session of a seed, and its triage as JSON. */
static json_t *triage_of(const struct seed *s, int *rc)
{
    json_error_t why;
    char *folder = xasprintf("%s/head", here);
    if (s->config || s->spoil)
        make_head(s, folder);
    char *ask = xasprintf("run -q --device cpu --threads 1 %s%s %s -p draft.steps=3 -p "
                          "max_tokens=%d '%s'", s->config || s->spoil ? "--draft " : "",
                          s->config || s->spoil ? folder : "", s->flags,
                          rounds(72, 200), s->prompt);
    free(aerie(ask, rc));
    char *said = aerie("triage last -q --device cpu --threads 1 --json", rc);
    json_t *j = json_loads(said, 0, &why);
    if (!j)
        fail_msg("%s: no JSON: %.300s", s->name, said);
    free(said);
    free(ask);
    free(folder);
    return j;
}

static const char *cause_at(json_t *j, size_t i)
{
    const char *c = json_string_value(
        json_object_get(json_array_get(json_object_get(j, "causes"), i), "cause"));
    return c ? c : "none";
}

static bool names(const struct seed *s, const char *cause)
{
    return strcmp(cause, s->cause) == 0 || (s->or && strcmp(cause, s->or) == 0);
}

static void test_seeded_causes_are_named_first_or_second(void **state)
{
    (void)state;
    int n = 0, named = 0;
    for (size_t i = 0; i < sizeof seeds / sizeof *seeds; i++) {
        const struct seed *s = &seeds[i];
        int rc;
        if (s->more && !rounds(0, 1))
            continue;
        json_t *j = triage_of(s, &rc);
        bool found = names(s, cause_at(j, 0)) || names(s, cause_at(j, 1));
        n++;
        named += found;
        print_message("# %-20s %s, %s%s\n", s->name, cause_at(j, 0), cause_at(j, 1),
                      found ? "" : "  NOT NAMED");
        json_decref(j);
    }
    assert_true(n >= 12 && named >= n - n / 12);
}

static void test_a_healthy_head_is_called_healthy(void **state)
{
    (void)state;
    static const struct seed healthy = {.name = "healthy", .flags = "", .prompt = STORY};
    int rc;
    json_t *j = triage_of(&healthy, &rc);
    assert_string_equal(json_string_value(json_object_get(j, "verdict")), "healthy");
    assert_int_equal(rc, 0);
    json_t *m = json_object_get(j, "measured");
    assert_true(json_integer_value(json_object_get(m, "same")) ==
                json_integer_value(json_object_get(m, "logged")));
    assert_true(json_integer_value(json_object_get(m, "logged")) > 10);
    json_decref(j);
}

/* The replies of a session are run once, within the last turn's context. */
static void test_all_turns_are_measured_together(void **state)
{
    (void)state;
    int rc;
    char *turns = xasprintf("%s/turns", here);
    FILE *f = fopen(turns, "w");
    assert_non_null(f);
    for (int i = 0; i < rounds(0, 500); i++) /* more pages of a window than its pool has */
        fprintf(f, "%d and ", i);
    fputs(rounds(0, 1) ? "so on.\n" : "Name three colours.\n/undo\n", f);
    fputs("Who are you?\nHow are you?\n", f);
    assert_int_equal(fclose(f), 0);
    char *ask = xasprintf("--plain -q --device cpu --threads 1 <%s", turns);
    free(aerie(ask, &rc));
    assert_int_equal(rc, 0);
    char *said = aerie("triage last -q --device cpu --threads 1 --json", &rc);
    json_error_t why;
    json_t *j = json_loads(said, 0, &why), *m = json_object_get(j, "measured");
    json_int_t own = json_integer_value(json_object_get(m, "other_messages"));
    if (!j || json_integer_value(json_object_get(m, "replies")) != own + 3)
        fail_msg("%.600s", said);
    assert_int_equal(json_integer_value(json_object_get(m, "tokens")),
                     json_integer_value(json_object_get(m, "reply_tokens")));
    assert_int_equal(json_integer_value(json_object_get(m, "same")),
                     json_integer_value(json_object_get(m, "logged")));
    assert_true(json_integer_value(json_object_get(m, "logged")) > 4);
    json_decref(j);
    free(said);
    free(ask);
    free(turns);
}

/* ---- a GPU ----------------------------------------------------------------------------------- */

static struct {
    struct kernels k;
    int open, most; /* devices that are open, and were at the same time */
    size_t left;    /* free memory */
} gpu;

static struct kdev *gpu_open(const struct k_opts *o, struct err *e)
{
    gpu.most = max_int(gpu.most, ++gpu.open);
    return kernels_cpu.open(o, e);
}

static void gpu_close(struct kdev *d)
{
    gpu.open--;
    kernels_cpu.close(d);
}

static void gpu_memory(struct kdev *, size_t *free_bytes, size_t *total_bytes)
{
    *free_bytes = gpu.left;
    *total_bytes = (size_t)80 << 30;
}

static size_t gpu_footprint(struct kdev *, const struct tensor *t)
{
    return t->quantize ? t->bytes / 2 : t->bytes;
}

/* The triage of the latest session, in this process on the CPU's kernels with memory of their
 * own. */
static void triage_last(struct triage *t)
{
    struct err e = {0};
    char *path = xasprintf("%s/aerie/sessions.db", here);
    FREED(session_row_free) struct session_row row = {0};
    struct hdb *db = hdb_open(path, &e);
    assert_true(db && hdb_find(db, "last", &row, &e));
    struct triage_ask a = {.db = db, .session = row.id, .name = "last"};
    a.how.engine.device = "cpu";
    a.how.engine.threads = 1;
    a.how.engine.backend = &gpu.k;
    gpu.most = 0;
    if (!triage_session(&a, t, &e))
        fail_msg("%s", e.msg);
    assert_int_equal(gpu.open, 0);
    hdb_close(db);
    free(path);
}

/* A GPU never holds two copies of the weights. If the unquantized weights do not fit, triage still
 * measures everything else; if no weights fit, triage reports what the log says. */
static void test_a_gpu_with_little_memory(void **state)
{
    (void)state;
    int rc;
    struct triage *t = xcalloc(1, sizeof *t);
    gpu.k = kernels_cpu;
    gpu.k.open = gpu_open;
    gpu.k.close = gpu_close;
    gpu.k.memory = gpu_memory;
    gpu.k.footprint = gpu_footprint;
    gpu.left = (size_t)8 << 30;
    free(aerie("run -q --device cpu --threads 1 --bug 26512 -p check=off -p draft.steps=3 "
               "-p max_tokens=48 '" STORY "'", &rc));
    triage_last(t);
    assert_true(t->rule[0] && t->rule_again && !t->no_re[0]);
    assert_int_equal(gpu.most, 1);
    accepted_free(&t->log);

    free(aerie("run -q --device cpu --threads 1 --weights fp8 -p draft.steps=3 -p max_tokens=24 "
               "'" STORY "'", &rc));
    int tries = 0;
    for (gpu.left = (size_t)388 << 20; tries == 0 || t->no_re[0]; gpu.left += (size_t)4 << 20) {
        if (tries++)
            accepted_free(&t->log);
        *t = (struct triage){0};
        triage_last(t);
        assert_true(t->log.drafts.cycles > 0 && tries < 100);
        assert_true(!t->no_re[0] || strstr(t->no_re, "of GPU memory"));
    }
    assert_true(tries > 1 && t->weights[0] && t->re.tokens > 0 && !t->plain.known);
    accepted_free(&t->log);
    gpu.left = (size_t)8 << 30;
    *t = (struct triage){0};
    triage_last(t);
    assert_true(t->plain.known);
    accepted_free(&t->log);
    free(t);
}

static void expect_error(const char *args, const char *says)
{
    int rc;
    free(aerie(args, &rc));
    struct buf err = {0};
    struct err e;
    char *path = xasprintf("%s/err", here);
    assert_true(buf_read_file(&err, path, 1 << 20, &e));
    assert_int_not_equal(rc, 0);
    if (!strstr(err.n ? err.p : "", says))
        fail_msg("%s: expected \"%s\" in \"%s\"", args, says, err.n ? err.p : "");
    free(path);
    buf_free(&err);
}

static void test_bad_input_is_one_line(void **state)
{
    (void)state;
    int rc;
    expect_error("triage", "triage");
    expect_error("triage 4711", "4711");
    expect_error("triage http://127.0.0.1:1", "127.0.0.1:1");
    expect_error("triage a b", "triage");
    free(aerie("run -q --device cpu --no-spec -p max_tokens=8 hello", &rc));
    expect_error("triage last -q", "nothing was drafted");
}

/* Rates of counters alone: those of wrong layers (vllm#50170), of an EAGLE3 head that works (vLLM's
 * tests), and of a head that works on some of the text. */
static void test_counters_of_a_server_name_causes(void **state)
{
    (void)state;
    static const struct {
        uint64_t accepted[4];
        int is; /* a triage_verdict.is */
        enum triage_cause first;
    } seen[] = {{{1, 36, 1, 0}, TRIAGE_CAUSE, CAUSE_LAYERS},
                {{1, 730, 521, 355}, TRIAGE_HEALTHY, N_CAUSES},
                {{1, 106, 73, 42}, TRIAGE_CAUSE, CAUSE_TEMPLATE}};
    for (size_t i = 0; i < sizeof seen / sizeof *seen; i++) {
        struct triage t = {.server = true, .per_depth = true, .temperature = NAN};
        struct triage_verdict v;
        t.log.drafts.cycles = 1000;
        t.log.drafts.drafted = 3000;
        for (int d = 1; d < 4; d++)
            t.log.drafts.depth[d] = (struct depth_stat){1000, seen[i].accepted[d]};
        triage_judge(&t, &v);
        assert_int_equal(v.is, seen[i].is);
        if (v.is == TRIAGE_CAUSE)
            assert_int_equal(v.cause[0].cause, seen[i].first);
        t.per_depth = false; /* of the same server without counts by position nothing is said */
        triage_judge(&t, &v);
        assert_int_equal(v.is, TRIAGE_UNKNOWN);
    }
}

/* ---- servers --------------------------------------------------------------------------------- */

static void page_of(const char *name, struct draft_totals *t)
{
    char *path = xasprintf("tests/exchanges/%s", name);
    struct buf page = {0};
    struct err e;
    assert_true(buf_read_file(&page, path, 1 << 20, &e));
    assert_true(drafts_read(page.p, page.n, t));
    buf_free(&page);
    free(path);
}

static void test_counters_of_servers_are_read(void **state)
{
    (void)state;
    struct draft_totals t;
    page_of("vllm-metrics", &t);
    assert_true(t.drafts == 580 && t.drafted == 2707 && t.accepted == 789);
    int64_t sum = 0;
    for (int i = 0; i < t.depths; i++)
        sum += t.at[i];
    assert_true(sum == t.accepted && t.depths > 0 && t.length == 0);
    page_of("sglang-metrics", &t);
    assert_true(t.drafts == -1 && t.depths == 0 && t.length >= 1);
    assert_false(drafts_read("", 0, &t) && t.drafts >= 0);
}

/* A server's facts: `drafts` cycles, of which at[d] accepted at depth d + 1. */
static struct triage server_of(int drafts, const int *at, int n)
{
    struct triage t = {.server = true, .temperature = NAN, .per_depth = true};
    t.log.drafts.cycles = (uint64_t)drafts;
    for (int i = 0; i < n; i++) {
        t.log.drafts.depth[i + 1].drafted = (uint64_t)drafts;
        t.log.drafts.depth[i + 1].accepted = (uint64_t)at[i];
        t.log.drafts.drafted += (uint64_t)drafts;
        t.log.drafts.accepted += (uint64_t)at[i];
    }
    return t;
}

static bool named(const struct triage *t, enum triage_cause c)
{
    struct triage_verdict *v = xcalloc(1, sizeof *v);
    triage_judge(t, v);
    bool first = v->is == TRIAGE_CAUSE && (v->cause[0].cause == c || v->cause[1].cause == c);
    free(v);
    return first;
}

/* The rates that others published for these causes (vllm#50170, sglang#10846, speculators#684). */
static void test_fingerprints_of_counters_are_named(void **state)
{
    (void)state;
    struct triage_verdict *v = xcalloc(1, sizeof *v);
    struct triage t = server_of(1000, (const int[]){730, 521, 355}, 3);
    triage_judge(&t, v);
    assert_int_equal(v->is, TRIAGE_HEALTHY);
    t = server_of(1000, (const int[]){36, 1, 0}, 3);
    assert_true(named(&t, CAUSE_LAYERS));
    t = server_of(1000, (const int[]){3, 0, 0}, 3);
    assert_true(named(&t, CAUSE_PAGES));
    t = server_of(1000, (const int[]){290, 62, 12}, 3);
    assert_true(named(&t, CAUSE_LAYERS) && named(&t, CAUSE_NORM));
    t = server_of(1000, (const int[]){740, 500, 100, 5}, 4);
    assert_true(named(&t, CAUSE_ROPE));
    t = server_of(10, (const int[]){7, 5, 3}, 3);
    triage_judge(&t, v);
    assert_int_equal(v->is, TRIAGE_TOO_FEW);
    t = server_of(1000, (const int[]){730, 521, 355}, 3);
    struct triage_arm arm[TRIAGE_ARMS] = {{"cold", {300, 900, 450, 200}},
                                          {"warm", {300, 900, 60, 40}},
                                          {"long", {300, 900, 440, 200}}};
    memcpy(t.arm, arm, sizeof arm);
    assert_true(named(&t, CAUSE_PAGES) && named(&t, CAUSE_STALE));
    t.arm[1].drafts = t.arm[0].drafts;
    t.arm[2].drafts = (struct some_drafts){300, 900, 90, 80};
    assert_true(named(&t, CAUSE_CONTEXT) && named(&t, CAUSE_WINDOW));
    t = (struct triage){.server = true, .temperature = NAN, .length = 1.01};
    assert_true(named(&t, CAUSE_LAYERS));
    t.length = 2.4;
    triage_judge(&t, v);
    assert_int_equal(v->is, TRIAGE_HEALTHY);
    free(v);
}

/* A head that works here, and a session of a server whose drafts were accepted as rarely as those
 * of one reading of the head would be. */
static void test_a_session_of_a_server_is_judged_by_a_head_here(void **state)
{
    (void)state;
    struct triage *t = xcalloc(1, sizeof *t);
    *t = server_of(100, (const int[]){31, 4, 1}, 3);
    t->server = false;
    t->temperature = 0;
    t->re = (struct redraft){.n = 3, .tokens = 200, .embed_alike = NAN, .embed_other = NAN,
                             .r = {{.of = READ_AS_IS, .tokens = 200, .hits = 188},
                                   {.of = READ_NORM, .tokens = 200, .hits = 60, .lost = 128,
                                    .what = "a norm"},
                                   {.of = READ_ROPE, .tokens = 200, .hits = 170, .lost = 18,
                                    .what = "a rope"}}};
    assert_true(named(t, CAUSE_NORM) && named(t, CAUSE_PAGES));
    free(t);
}

static int open_scratch(void **state)
{
    (void)state;
    here = scratch_folder();
    return 0;
}

static int close_scratch(void **state)
{
    (void)state;
    scratch_remove(here);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_seeded_causes_are_named_first_or_second),
        cmocka_unit_test(test_a_healthy_head_is_called_healthy),
        cmocka_unit_test(test_all_turns_are_measured_together),
        cmocka_unit_test(test_a_gpu_with_little_memory),
        cmocka_unit_test(test_bad_input_is_one_line),
        cmocka_unit_test(test_counters_of_a_server_name_causes),
        cmocka_unit_test(test_counters_of_servers_are_read),
        cmocka_unit_test(test_fingerprints_of_counters_are_named),
        cmocka_unit_test(test_a_session_of_a_server_is_judged_by_a_head_here),
    };
    return cmocka_run_group_tests(tests, open_scratch, close_scratch);
}
