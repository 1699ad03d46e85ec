/* test_dump.c - dumps of other engines, made of the reference tensors of a golden folder: every
 * form, what is spoilt in it, and what is refused. */
#include "tests/ckpt.h"
#include "tests/torch_kit.h"

#include "engine/tools/canary.h"
#include "engine/tools/dump.h"
#include "engine/tools/flashinfer.h"
#include "engine/tools/torch_file.h"
#include "models/models.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define G "tests/golden/"

static char *dir;
static struct {
    int n, layers, width, vocab; /* tokens, layers, hidden size, vocabulary */
    int64_t *ids;
    float *hidden, *logits; /* (layers + 1, n, width), (n, vocab) */
} ref;

static void *tensor(struct safetensors *st, const char *name, const struct tensor **t)
{
    struct err e;
    *t = st_find(st, name);
    CHECK(*t);
    void *p = xmalloc((*t)->bytes);
    CHECK(st_read(st, *t, p, &e));
    return p;
}

static void open_reference(const char *folder)
{
    char path[200];
    struct err e;
    const struct tensor *t;
    snprintf(path, sizeof path, "%s/golden.safetensors", folder);
    struct safetensors *st = st_open(path, &e);
    CHECK(st);
    int32_t *ids = tensor(st, "input_ids", &t);
    ref.n = (int)t->dim[0];
    ref.ids = xcalloc((size_t)ref.n, sizeof *ref.ids);
    for (int i = 0; i < ref.n; i++)
        ref.ids[i] = ids[i];
    free(ids);
    ref.hidden = tensor(st, "hidden_states", &t);
    ref.layers = (int)t->dim[0] - 1;
    ref.width = (int)t->dim[2];
    ref.logits = tensor(st, "logits", &t);
    ref.vocab = (int)t->dim[1];
    st_close(st);
}

static void close_reference(void)
{
    free(ref.ids);
    free(ref.hidden);
    free(ref.logits);
}

/* ---- dumps ----------------------------------------------------------------------------------- */

/* Rows [from, from + n) of boundary b. */
static const float *states(int b, int from)
{
    return ref.hidden + ((size_t)b * (size_t)ref.n + (size_t)from) * (size_t)ref.width;
}

/* A copy with the last row of n multiplied by `by`. */
static float *spoilt(const float *x, int n, int width, float by)
{
    float *y = xmalloc((size_t)n * (size_t)width * sizeof *y);
    memcpy(y, x, (size_t)n * (size_t)width * sizeof *y);
    for (int i = 0; i < width; i++)
        y[(size_t)(n - 1) * (size_t)width + (size_t)i] *= by;
    return y;
}

struct made {
    bool half, no_ids;
    bool late; /* logits are in the file of the next pass, as the hooks of SGLang write them */
    int bad_layer, bad_pass; /* whose output is spoilt; -1: none */
};

static const float *logits_of(int row)
{
    return ref.logits + (size_t)row * (size_t)ref.vocab;
}

/* What one pass over tokens [from, from + n) recorded. */
static void pass(const struct made *m, struct pt *p, int number, int from, int n)
{
    int64_t position[64], len = from + n;
    void (*put)(struct pt *, const char *, const float *, int64_t, int64_t) =
        m->half ? pt_halves : pt_floats;
    CHECK(n <= 64);
    for (int i = 0; i < n; i++)
        position[i] = from + i;
    pt_begin(p);
    if (m->late && from > 0) { /* what ended after the file of the pass before was written */
        put(p, "model", states(ref.layers, from - 1), 1, ref.width);
        put(p, "logits_processor", logits_of(from - 1), 1, ref.vocab);
    }
    if (!m->no_ids)
        pt_wholes(p, "model.forward_batch_info.input_ids", ref.ids + from, n);
    pt_wholes(p, "model.forward_batch_info.positions", position, n);
    pt_wholes(p, "model.forward_batch_info.seq_lens", &len, 1);
    for (int l = 0; l + 1 < ref.layers; l++) {
        char name[64];
        bool bad = number == m->bad_pass && l == m->bad_layer;
        float *x = spoilt(states(l + 1, from), n, ref.width, bad ? 1.3f : 1);
        snprintf(name, sizeof name, "model.layers.%d", l);
        put(p, name, x, n, ref.width);
        free(x);
    }
    put(p, "model.norm", states(ref.layers, from), n, ref.width);
    if (!m->late)
        put(p, "logits_processor", logits_of(from + n - 1), 1, ref.vocab);
}

/* PassNNNNN.pt: a prompt but for its last tokens, then two of them together, then one by one. */
static void passes(const struct made *m)
{
    int from = 0;
    for (int number = 0; from < ref.n; number++) {
        struct pt p;
        char path[300];
        int n = number == 0 ? ref.n - 4 : number == 1 ? 2 : 1;
        pass(m, &p, number, from, n);
        snprintf(path, sizeof path, "%s/Pass%05d.pt", dir, number);
        pt_write(&p, path);
        from += n;
    }
}

/* One file of the dumper. */
static void value(int step, const char *name, struct pt *p)
{
    static int index;
    char path[400];
    pt_text(p, "meta");
    buf_str(&p->pickle, "}(");
    pt_text(p, "step");
    pt_int(p, step);
    pt_text(p, "dims");
    buf_str(&p->pickle, "Nu");
    snprintf(path, sizeof path,
             "%s/step=%d___rank=0___dump_index=%d___name=%s___recompute_status=disabled.pt", dir,
             step, ++index, name);
    pt_write(p, path);
}

static void whole_value(int step, const char *name, const int64_t *x, int n)
{
    struct pt p;
    pt_begin(&p);
    pt_wholes(&p, "value", x, n);
    value(step, name, &p);
}

static void float_value(int step, const char *name, const float *x, int n, int width)
{
    struct pt p;
    pt_begin(&p);
    pt_halves(&p, "value", x, n, width);
    value(step, name, &p);
}

static bool compared(const char *model, struct dump_report *r, struct err *e)
{
    struct dump_opts o = {.engine = {.model = model, .device = "cpu", .threads = 1}, .path = dir};
    *e = (struct err){0};
    return dump_compare(&o, r, e);
}

/* `aerie dump` of the folder, with these options, ends with this status and says the words. */
static void program_says(const char *options, int status, const char *words)
{
    char line[600];
    FREED(buf_free) struct buf out = {0};
    snprintf(line, sizeof line, "%s dump %s --threads 1 %s 2>/dev/null", getenv("AERIE"), dir,
             options);
    FILE *p = popen(line, "r"); /* NOLINT(cert-env33-c): the program that was built, its own files */
    assert_non_null(p);
    for (int c; (c = fgetc(p)) != EOF;)
        buf_char(&out, (char)c);
    int got = pclose(p);
    if (!WIFEXITED(got) || WEXITSTATUS(got) != status || !strstr(buf_text(&out), words))
        fail_msg("%s: status %x, expected \"%s\": %s", line, got, words, buf_text(&out));
}

static void must_refuse(const char *model, const char *words)
{
    struct dump_report r;
    struct err e;
    if (compared(model, &r, &e) || !strstr(e.msg, words))
        fail_msg("expected \"%s\": %s", words, e.msg);
    assert_null(strchr(e.msg, '\n'));
    dump_report_free(&r);
}

static int setup(void **state)
{
    (void)state;
    dir = scratch_folder();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    scratch_remove(dir);
    return 0;
}

/* ---- what agrees, and what does not ---------------------------------------------------------- */

static void test_every_module_of_the_reference_agrees(void **state)
{
    (void)state;
    for (int half = 0; half < 2; half++) {
        struct dump_report r;
        struct err e;
        passes(&(struct made){.half = half, .late = half, .bad_layer = -1});
        if (!compared(G "llama-b", &r, &e))
            fail_msg("%s", e.msg);
        assert_int_equal(r.s.rows, ref.n);
        assert_int_equal(r.s.n, 1);
        assert_int_equal(r.n, ref.layers + 1); /* layers but the last, norm, logits */
        assert_int_equal(r.first, -1);
        assert_string_equal(r.type, half ? "bf16" : "float32");
        dump_report_free(&r);
        program_says("-m " G "llama-b", 0, "no module differs");
    }
}

static void test_the_module_whose_output_is_spoilt_is_named(void **state)
{
    (void)state;
    for (int number = 0; number < 3; number++) {
        struct dump_report r;
        struct err e;
        int last = number == 0 ? ref.n - 5 : ref.n - 4 + number;
        char name[64];
        passes(&(struct made){.half = number == 1, .late = number == 2, .bad_layer = 1,
                              .bad_pass = number});
        assert_false(compared(G "llama-b", &r, &e));
        assert_int_equal(e.kind, ERR_NEGATIVE);
        assert_true(r.first >= 0);
        const struct dump_module *m = &r.module[r.first];
        snprintf(name, sizeof name, "model.layers.%d", 1);
        assert_string_equal(m->name, name);
        assert_int_equal(m->pass, number);
        assert_int_equal(m->position, last);
        assert_int_equal(m->far, 1);
        assert_true(fabs(m->worst - 0.3) < 0.05);
        assert_true(m->band < 0.05);
        assert_true(r.last_good >= 0 && r.module[r.last_good].far == 0);
        dump_report_free(&r);
        if (number == 0) {
            program_says("-m " G "llama-b", 1, "first    model.layers.1: relative L2 error 0.3");
            program_says("-m " G "llama-b --json", 1, "\"first\":\"model.layers.1\"");
        }
    }
}

static void test_the_dumper_s_files_are_aligned_by_their_names(void **state)
{
    (void)state;
    struct dump_report r;
    struct err e;
    int64_t position[64];
    for (int i = 0; i < ref.n; i++)
        position[i] = i;
    for (int step = 0, from = 0; step < 2; step++) {
        int n = step ? 3 : ref.n - 3;
        float *bad = spoilt(states(1, from), n, ref.width, 1.5f);
        whole_value(step, "input_ids", ref.ids + from, n);
        whole_value(step, "positions", position + from, n);
        float_value(step, "non_intrusive__model.layers.0.output", step ? bad : states(1, from), n,
                    ref.width);
        float_value(step, "non_intrusive__model.layers.1.input_layernorm.output.1", states(1, from),
                    n, ref.width);
        float_value(step, "non_intrusive__model.norm.output.0", states(ref.layers, from), n,
                    ref.width);
        float_value(step, "my_own_name", states(0, from), n, ref.width);
        free(bad);
        from += n;
    }
    /* a symbolic link whose target is missing counts as a file that was not read, if dump files
     * have such names */
    FREED(free_at) char *other = xasprintf("%s/notes", dir);
    FREED(free_at) char *link = xasprintf("%s/step=1___rank=0___dump_index=99___name=x.pt", dir);
    assert_true(symlink("nowhere", other) == 0 && symlink("nowhere", link) == 0);
    assert_false(compared(G "llama-b", &r, &e));
    assert_int_equal(r.d.refused, 1);
    assert_non_null(strstr(r.d.why, "name=x.pt: No such file or directory"));
    assert_true(unlink(other) == 0 && unlink(link) == 0);
    assert_int_equal(r.n, 3);
    assert_int_equal(r.d.files, 13);
    assert_string_equal(r.module[r.first].name, "non_intrusive__model.layers.0.output");
    assert_int_equal(r.module[r.first].pass, 1);
    assert_int_equal(r.module[r.first].position, ref.n - 1);
    assert_int_equal(r.n_skipped, 1);
    assert_string_equal(r.skipped[0], "my_own_name");
    dump_report_free(&r);
}

/* Two requests in one pass, one of which goes on after two of its tokens were rejected, and is then
 * computed again from its fourth token on, as after a retraction. */
static void test_requests_go_on_where_their_positions_say(void **state)
{
    (void)state;
    struct dump_report r;
    struct err e;
    int n = 6;
    int64_t ids[8], position[8], len[2] = {n, 2};
    for (int i = 0; i < 8; i++) {
        ids[i] = ref.ids[i < n ? i : i - n];
        position[i] = i < n ? i : i - n;
    }
    whole_value(0, "input_ids", ids, 8);
    whole_value(0, "positions", position, 8);
    whole_value(0, "seq_lens", len, 2);
    whole_value(1, "input_ids", (int64_t[]){ref.ids[n], 7, 7}, 3);
    whole_value(1, "positions", (int64_t[]){n, n + 1, n + 2}, 3);
    whole_value(2, "input_ids", ref.ids + n + 1, 2);
    whole_value(2, "positions", (int64_t[]){n + 1, n + 2}, 2);
    whole_value(3, "input_ids", ref.ids, 1);
    whole_value(3, "positions", (int64_t[]){20}, 1);
    whole_value(4, "input_ids", ref.ids + 3, 3);
    whole_value(4, "positions", (int64_t[]){3, 4, 5}, 3);
    float_value(2, "non_intrusive__model.layers.0.output", states(1, n + 1), 2, ref.width);
    float_value(4, "non_intrusive__model.layers.0.output", states(1, 3), 3, ref.width);
    if (!compared(G "llama-b", &r, &e))
        fail_msg("%s", e.msg);
    assert_int_equal(r.s.n, 2);
    assert_int_equal(r.s.rows, 16);
    assert_int_equal(r.s.missing, 1);
    assert_non_null(strstr(r.s.first_missing, "position 20"));
    assert_int_equal(r.module[0].rows, 5);
    assert_int_equal(r.first, -1); /* all agree */
    dump_report_free(&r);
}

/* As a folder without permission is, which the superuser could read: no file can be opened. */
static void test_a_folder_that_cannot_be_read_is_not_called_empty(void **state)
{
    (void)state;
    struct rlimit was, none;
    struct err e = {0};
    struct dump d;
    passes(&(struct made){.bad_layer = -1});
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &was), 0);
    none = (struct rlimit){0, was.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    bool ok = dump_open(&d, dir, &e);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &was), 0);
    if (ok || e.kind != ERR_USAGE || !strstr(e.msg, "cannot open ") ||
        !strstr(e.msg, strerror(EMFILE)))
        fail_msg("%s", e.msg);
}

static void test_other_models_and_missing_ids_are_refused(void **state)
{
    (void)state;
    passes(&(struct made){.no_ids = true, .bad_layer = -1});
    must_refuse(G "llama-b", "no pass has both input_ids and positions");
    passes(&(struct made){.bad_layer = -1});
    must_refuse(G "gptoss-a", "of another model");
    must_refuse(G "none", "none");
    scratch_drop(dir);
    must_refuse(G "llama-b", "cannot open");
    CHECK(mkdir(dir, 0700) == 0);
    must_refuse(G "llama-b", "no file step=");
    whole_value(0, "input_ids", ref.ids + 4, 2);
    whole_value(0, "positions", (int64_t[]){4, 5}, 2);
    must_refuse(G "llama-b", "tokens 0 to 3 are not in the dump");
}

/* ---- FlashInfer's records -------------------------------------------------------------------- */

enum { PAGE = 4, HEADS = 4, KV = 2, DIM = 8, POOL = 9, W = 6 };

/* Two requests, with 3 rows behind 7 cells and 1 row behind 5, in pages out of order. */
struct call {
    int window;      /* that the result follows; 0: none */
    int bad_page;    /* in place of the last page index; 0: the right one */
    int64_t last[2];
    bool hnd, no_plan, no_output;
};

static const int64_t qo[] = {0, 3, 4}, kv_at[] = {0, 3, 5};

static float cache(int which, int64_t page, int64_t cell, int head, int i)
{
    return sinf((float)(which * 911 + page * 97 + cell * 31 + head * 13 + i));
}

static float query(int row, int head, int i)
{
    return cosf((float)(row * 57 + head * 11 + i));
}

static void record_at(char path[400], const char *name, const char *part)
{
    snprintf(path, 400, "%s/20260101_000000_000_pid7_%s_call0001", dir, name);
    mkdir(path, 0700);
    snprintf(path + strlen(path), 400 - strlen(path), "/%s", part);
}

static void record_meta(const char *name, const char *inputs, bool done)
{
    char path[400], line[600];
    record_at(path, name, "metadata.jsonl");
    snprintf(line, sizeof line, "{\"function_name\":\"%s\",\"process_id\":7,\"self_id\":99,"
             "\"input_metadata\":{%s},\"execution_status\":\"%s\"}\n", name, inputs,
             done ? "completed" : "inputs_saved");
    FILE *f = fopen(path, "w");
    CHECK(f && fputs("{\"execution_status\":\"inputs_saved\"}\n", f) >= 0 && fputs(line, f) >= 0 &&
          fclose(f) == 0);
}

static void result_of(const struct call *c, const int64_t *index, float *out)
{
    for (int row = 0; row < 4; row++)
        for (int h = 0; h < HEADS; h++) {
            int b = row < 3 ? 0 : 1, len = (int)((kv_at[b + 1] - kv_at[b] - 1) * PAGE + c->last[b]);
            int at = row - (int)qo[b] + len - (int)(qo[b + 1] - qo[b]);
            double sum = 0, add[DIM] = {0};
            for (int k = c->window ? max_int(0, at - c->window + 1) : 0; k <= at; k++) {
                double dot = 0;
                int64_t page = index[kv_at[b] + k / PAGE];
                for (int i = 0; i < DIM; i++)
                    dot += (double)query(row, h, i) *
                           (double)cache(0, page, k % PAGE, h / (HEADS / KV), i);
                double x = exp(dot / sqrt(DIM));
                sum += x;
                for (int i = 0; i < DIM; i++)
                    add[i] += x * (double)cache(1, page, k % PAGE, h / (HEADS / KV), i);
            }
            for (int i = 0; i < DIM; i++)
                out[(row * HEADS + h) * DIM + i] = (float)(add[i] / sum);
        }
}

static void put_cache(struct pt *p, const struct call *c)
{
    static float x[POOL * PAGE * KV * DIM];
    int64_t dims[] = {POOL, c->hnd ? KV : PAGE, c->hnd ? PAGE : KV, DIM};
    for (int which = 0; which < 2; which++) {
        float *to = x;
        for (int page = 0; page < POOL; page++)
            for (int a = 0; a < dims[1]; a++)
                for (int b = 0; b < dims[2]; b++)
                    for (int i = 0; i < DIM; i++)
                        *to++ = cache(which, page, c->hnd ? b : a, c->hnd ? a : b, i);
        pt_text(p, which ? "arg_2__1" : "arg_2__0");
        int at = pt_storage(p, x, sizeof x);
        pt_view(p, "FloatStorage", at, POOL * PAGE * KV * DIM, 0, 4, dims,
                (int64_t[]){PAGE * KV * DIM, dims[2] * DIM, DIM, 1});
    }
}

static void records(const struct call *c)
{
    static const char wrapper[] = "BatchPrefillWithPagedKVCacheWrapper";
    int64_t index[] = {5, 1, 7, 2, 8};
    char path[400], name[80], inputs[200];
    float q[4 * HEADS * DIM], out[4 * HEADS * DIM];
    struct pt p;
    for (int i = 0; i < 4 * HEADS * DIM; i++)
        q[i] = query(i / (HEADS * DIM), i / DIM % HEADS, i % DIM);
    result_of(c, index, out);
    index[4] = c->bad_page ? c->bad_page : index[4];
    snprintf(name, sizeof name, "%s.__init__", wrapper);
    record_meta(name, c->hnd ? "\"kwarg_kv_layout\":\"HND\"" : "", true);
    snprintf(name, sizeof name, "%s.plan", wrapper);
    pt_begin(&p);
    pt_wholes(&p, "arg_1", qo, 3);
    pt_wholes(&p, "arg_2", kv_at, 3);
    pt_wholes(&p, "kwarg_paged_kv_indices", index, 5);
    pt_wholes(&p, "arg_4", c->last, 2);
    record_at(path, name, "inputs.pt");
    pt_write(&p, path);
    snprintf(inputs, sizeof inputs, "\"arg_5\":%d,\"arg_6\":%d,\"arg_7\":%d,\"arg_8\":%d,"
             "\"kwarg_causal\":true,\"kwarg_window_left\":%d", HEADS, KV, DIM, PAGE, W - 1);
    record_meta(c->no_plan ? "other" : name, inputs, true);
    snprintf(name, sizeof name, "%s.run", wrapper);
    pt_begin(&p);
    pt_text(&p, "arg_1");
    int at = pt_storage(&p, q, sizeof q);
    pt_view(&p, "FloatStorage", at, 4 * HEADS * DIM, 0, 3, (int64_t[]){4, HEADS, DIM},
            (int64_t[]){HEADS * DIM, DIM, 1});
    put_cache(&p, c);
    record_at(path, name, "inputs.pt");
    pt_write(&p, path);
    pt_begin(&p);
    pt_floats(&p, "result", out, 4, HEADS * DIM);
    record_at(path, name, "outputs.pt");
    pt_write(&p, path);
    record_meta(name, "", !c->no_output);
}

static void test_calls_of_flashinfer(void **state)
{
    (void)state;
    static const struct {
        struct call call;
        enum fi_verdict verdict;
        const char *words; /* in why or like */
        int row;
    } cases[] = {
        {{.window = W, .last = {2, 2}}, FI_AGREES, NULL, -1},
        {{.window = W, .last = {2, 2}, .hnd = true}, FI_AGREES, NULL, -1},
        {{.window = 0, .last = {2, 2}}, FI_DIFFERS, "of no window", 0},
        {{.window = W - 1, .last = {2, 2}}, FI_DIFFERS, "one key shorter", 0},
        {{.window = W + 1, .last = {2, 2}}, FI_DIFFERS, "one key longer", 0},
        {{.window = W, .last = {2, 2}, .bad_page = 3}, FI_DIFFERS, NULL, 3},
        {{.window = W, .last = {2, 2}, .bad_page = POOL}, FI_BROKEN, "page 9 of a pool of 9", -1},
        {{.window = W, .last = {2, 0}}, FI_BROKEN, "last_page_len is not 1 to", -1},
        {{.window = W, .last = {2, 2}, .no_plan = true}, FI_SKIPPED, "no record of its plan", -1},
        {{.window = W, .last = {2, 2}, .no_output = true}, FI_NO_OUTPUT, NULL, -1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct fi_report r;
        struct err e = {0};
        const char *words = cases[i].words;
        records(&cases[i].call);
        assert_true(fi_is(dir));
        bool ok = fi_compare(dir, NULL, &r, &e);
        if (r.n != 1 || r.v[0].verdict != cases[i].verdict ||
            (words && !strstr(r.v[0].like ? r.v[0].like : r.v[0].why, words)) ||
            (cases[i].row >= 0 && r.v[0].row != cases[i].row))
            fail_msg("case %zu: %s: %s, %s %s, row %d", i, e.msg,
                     r.n ? fi_word(r.v[0].verdict) : "none", r.n ? r.v[0].why : "",
                     r.n && r.v[0].like ? r.v[0].like : "", r.n ? r.v[0].row : -1);
        assert_int_equal(ok, cases[i].verdict != FI_DIFFERS && cases[i].verdict != FI_BROKEN);
        fi_free(&r);
        if (cases[i].verdict == FI_DIFFERS && words)
            program_says("", 1, words);
        else if (cases[i].verdict == FI_NO_OUTPUT)
            program_says("--json", 0, "\"no_output\":1");
        scratch_empty(dir);
    }
}

/* ---- kv_canary ------------------------------------------------------------------------------- */

static void put_violation(FILE *f, const char *tag, const char *why, int slot, int position,
                          int token, uint64_t hash)
{
    fprintf(f, "[2026-01-01 00:00:00 TP0] kv_canary violation: launch_tag=%s fail_reason=%s "
            "slot_idx=%d position=%d stored_token=%d expected_token=-1 "
            "stored_chain_hash=0x%016llx expected_aux=0x%016x\n", tag, why, slot, position, token,
            (unsigned long long)hash, 0x2100);
}

static void test_lines_of_kv_canary(void **state)
{
    (void)state;
    struct canary c;
    struct err e = {0};
    struct buf why = {0};
    uint64_t hash = 0x1234;
    char path[300];
    snprintf(path, sizeof path, "%s/server.log", dir);
    FILE *f = fopen(path, "w");
    CHECK(f && fputs("[2026-01-01] server is ready\n", f) >= 0);
    for (int i = 0; i < 3; i++) { /* a piece of one other sequence */
        put_violation(f, "HEAD_K_FULL", "verify_position+verify_token", 160 + i, 40 + i, 7 + i,
                      hash);
        hash = canary_next(hash, 7 + i, 40 + i);
    }
    put_violation(f, "TAIL_K_SWA", "write_position", 53504, 512, 1299, hash);
    put_violation(f, "TAIL_K_SWA", "nonsense", 1, 2, 3, 4);
    put_violation(f, "TAIL_K_OTHER", "write_token", 1, 2, 3, 4);
    CHECK(fputs("  total_violations=9 ring_overflow=True step_when_pumped=7\n", f) >= 0);
    CHECK(fputs("kv_canary violation: launch_tag=TAIL_K_SWA fail_reason=write_token slot_idx=x", f)
          >= 0 && fclose(f) == 0);
    assert_true(canary_is(path));
    if (!canary_read(&c, path, NULL, &e))
        fail_msg("%s", e.msg);
    assert_int_equal(c.n, 4);
    assert_int_equal(c.total, 4);
    assert_int_equal(c.damaged, 3);
    assert_true(c.overflowed);
    assert_int_equal(canary_piece(&c, 0), 3);
    assert_int_equal(canary_piece(&c, 3), 1);
    assert_int_equal(c.v[3].pool, POOL_SWA);
    assert_int_equal(c.v[3].slot, 53504);
    assert_int_equal(c.v[3].expected_aux, 8448);
    assert_int_equal(c.v[3].line, 5);
    assert_non_null(strstr(canary_means(&c.v[3]), "I9"));
    assert_non_null(strstr(canary_means(&c.v[0]), "I15"));
    canary_reasons(c.v[0].reasons, &why);
    assert_string_equal(why.p, "verify_position+verify_token");
    buf_free(&why);
    canary_free(&c);
    ck_write_text(dir, "server.log", "nothing of the kind\n");
    assert_false(canary_read(&c, path, NULL, &e));
    assert_non_null(strstr(e.msg, "has no line"));
}

/* SGLang's own hash, of three numbers that its Python gives for them. */
static void test_the_chain_s_hash(void **state)
{
    (void)state;
    assert_true(canary_next(UINT64_C(0xC0FFEE1234567890), 1299, 512) ==
                UINT64_C(0x60AB413155D85E9A));
}

/* ---- files ----------------------------------------------------------------------------------- */

static struct torch_file *reopened(struct pt *p, struct err *e)
{
    char path[300];
    snprintf(path, sizeof path, "%s/Pass00000.pt", dir);
    pt_write(p, path);
    *e = (struct err){0};
    return torch_open(path, e);
}

static void must_not_open(struct pt *p, const char *words)
{
    struct err e;
    struct torch_file *f = reopened(p, &e);
    if (f || !strstr(e.msg, words))
        fail_msg("expected \"%s\": %s", words, e.msg);
    assert_null(strchr(e.msg, '\n'));
}

static void test_tensors_are_views_of_storages(void **state)
{
    (void)state;
    struct pt p;
    struct err e;
    float x[12], y[6];
    for (int i = 0; i < 12; i++)
        x[i] = (float)i;
    pt_begin(&p);
    int at = pt_storage(&p, x, sizeof x);
    pt_text(&p, "turned");
    pt_view(&p, "FloatStorage", at, 12, 1, 2, (int64_t[]){2, 3}, (int64_t[]){1, 4});
    pt_text(&p, "lists");
    buf_str(&p.pickle, "](");
    pt_view(&p, "FloatStorage", at, 12, 11, 1, (int64_t[]){1}, (int64_t[]){INT64_MAX});
    pt_view(&p, "FloatStorage", at, 12, 0, 2, (int64_t[]){0, 5}, (int64_t[]){9, 9});
    buf_str(&p.pickle, "e");
    pt_text(&p, "weight"); /* a parameter with attributes */
    buf_str(&p.pickle, "ctorch._utils\n_rebuild_parameter_with_state\n(");
    pt_view(&p, "FloatStorage", at, 12, 3, 1, (int64_t[]){1}, (int64_t[]){1});
    buf_str(&p.pickle, "\x88" "ccollections\nOrderedDict\n)R}tR");
    struct torch_file *f = reopened(&p, &e);
    if (!f)
        fail_msg("%s", e.msg);
    assert_int_equal(torch_count(f), 4);
    assert_true(torch_floats(f, torch_find(f, "weight"), 0, 1, y, &e) && y[0] == 3);
    assert_true(torch_floats(f, torch_find(f, "turned"), 0, 6, y, &e));
    const float want[] = {1, 5, 9, 2, 6, 10};
    assert_memory_equal(y, want, sizeof want);
    assert_true(torch_floats(f, torch_find(f, "turned"), 4, 1, y, &e) && y[0] == 6);
    assert_true(torch_floats(f, torch_find(f, "lists.0"), 0, 1, y, &e) && y[0] == 11);
    assert_int_equal(torch_find(f, "lists.1")->count, 0);
    torch_close(f);
}

/* Of a storage of more than 64 MiB a part is read, if the tensor's elements follow each other; else
 * all of it, with its CRC, which is wrong here. And an archive whose end has its numbers in the
 * 64-bit record. */
static void test_large_storages_and_archives(void **state)
{
    (void)state;
    enum { WIDTH = 4096, ROWS = 4100 };
    struct pt p;
    struct err e;
    float y[3];
    struct buf all = {0};
    char path[300];
    pt_begin(&p);
    p.wide = true;
    pt_floats(&p, "x", (const float[]){1, 2}, 1, 2);
    struct torch_file *f = reopened(&p, &e);
    if (!f)
        fail_msg("%s", e.msg);
    assert_true(torch_floats(f, torch_find(f, "x"), 0, 2, y, &e) && y[0] == 1 && y[1] == 2);
    torch_close(f);
    pt_begin(&p);
    p.wide = true;
    pt_end(&p, &all);
    all.p[all.n - 22 - 20] ^= 1; /* the locator of the 64-bit record */
    ck_write(dir, "Pass00000.pt", all.p, all.n);
    snprintf(path, sizeof path, "%s/Pass00000.pt", dir);
    assert_null(torch_open(path, &e));
    assert_non_null(strstr(e.msg, "lacks its 64-bit part"));
    buf_free(&all);

    float *x = xcalloc((size_t)WIDTH * ROWS, sizeof *x);
    x[5] = 3;
    x[5 + (size_t)WIDTH * 4000 + 7] = 4;
    pt_begin(&p);
    p.no_crc = true;
    int at = pt_storage(&p, x, (size_t)WIDTH * ROWS * sizeof *x);
    free(x);
    pt_text(&p, "rows");
    pt_view(&p, "FloatStorage", at, (int64_t)WIDTH * ROWS, 5, 3, (int64_t[]){ROWS - 1, 1, WIDTH},
            (int64_t[]){WIDTH, 9, 1});
    pt_text(&p, "turned");
    pt_view(&p, "FloatStorage", at, (int64_t)WIDTH * ROWS, 0, 2, (int64_t[]){WIDTH, ROWS},
            (int64_t[]){1, WIDTH});
    f = reopened(&p, &e);
    if (!f)
        fail_msg("%s", e.msg);
    assert_true(torch_floats(f, torch_find(f, "rows"), 0, 2, y, &e) && y[0] == 3 && y[1] == 0);
    assert_true(torch_floats(f, torch_find(f, "rows"), (int64_t)WIDTH * 4000 + 6, 3, y, &e));
    assert_true(y[0] == 0 && y[1] == 4 && y[2] == 0);
    assert_false(torch_floats(f, torch_find(f, "turned"), 0, 1, y, &e));
    assert_non_null(strstr(e.msg, "checksum"));
    torch_close(f);
}

/* FlashInfer's pages of keys and values have five dimensions. */
static void test_safetensors_of_five_dimensions(void **state)
{
    (void)state;
    static const char head[] = "{\"kv\":{\"dtype\":\"F32\",\"shape\":[1,2,1,1,2],"
                               "\"data_offsets\":[0,16]}}";
    struct buf all = {0};
    struct err e;
    const uint64_t n = sizeof head - 1;
    const float x[] = {1, 2, 3, 4};
    float y[4];
    buf_add(&all, &n, sizeof n);
    buf_add(&all, head, n);
    buf_add(&all, x, sizeof x);
    ck_write(dir, "inputs.safetensors", all.p, all.n);
    buf_free(&all);
    char *path = xasprintf("%s/inputs.safetensors", dir);
    struct torch_file *f = torch_open(path, &e);
    const struct torch_entry *t = f ? torch_find(f, "kv") : NULL;
    if (!t)
        fail_msg("%s", e.msg);
    assert_true(t->n_dim == 5 && t->count == 4 && t->dim[4] == 2 && t->stride[1] == 2);
    assert_true(torch_floats(f, t, 0, 4, y, &e));
    assert_memory_equal(y, x, sizeof x);
    torch_close(f);
    unlink(path);
    free(path);
}

static void test_what_is_no_tensor_is_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *pickle, *words;
    } cases[] = {
        {"cos\nsystem\n(X\x04\0\0\0true", "it names os system, which is no part of a tensor"},
        {"cbuiltins\neval\n", "builtins eval"},
        {"\x93", "opcode 0x93 (STACK_GLOBAL)"},
        {"\x81", "opcode 0x81 (NEWOBJ)"},
        {"i", "opcode 0x69 (INST)"},
        {"X\xff\xff\xff\x7f", "a text of more than 1 MiB"},
        {"h\x09", "a memo that nothing was put into"},
        {"ccollections\nOrderedDict\n(K\x01tR", "a call of collections OrderedDict"},
        {"ttt", "no mark on the stack"},
        {"Q", "a persistent id that is no storage"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pt p;
        pt_begin(&p);
        buf_add(&p.pickle, cases[i].pickle, i == 0 ? 19 : strlen(cases[i].pickle));
        must_not_open(&p, cases[i].words);
    }
    struct pt p;
    float x = 1;
    pt_begin(&p);
    pt_text(&p, "minus"); /* a view whose elements are the storage's, negated */
    pt_view(&p, "FloatStorage", pt_storage(&p, &x, 4), 1, 0, 1, (int64_t[]){1}, (int64_t[]){1});
    p.pickle.n -= 2;
    buf_str(&p.pickle, "}");
    pt_text(&p, "neg");
    buf_str(&p.pickle, "\x88stR");
    must_not_open(&p, "a tensor that is to be negated or conjugated");
}

static void test_hostile_sizes_are_refused(void **state)
{
    (void)state;
    static const struct {
        int64_t count, first, dim[2], stride[2];
        const char *words;
    } cases[] = {
        {4, 0, {2, 2}, {2, 2}, "ends at element 4 of a storage of 4"},
        {4, 3, {2, 1}, {1, 1}, "ends at element 4"},
        {5, 0, {1, 1}, {1, 1}, "claims 5 elements of float32, its member has 16 bytes"},
        {4, 0, {INT64_MAX, 2}, {0, 0}, "no sizes"},
        {4, 0, {1 << 30, 1}, {0, 0}, "more than the file has bytes"},
        {4, 0, {2, 1}, {INT64_MAX, 1}, "ends at element"},
        {4, 2, {2, 1}, {INT64_MAX, 1}, "beyond 64 bits"},
        {4, 0, {-1, 1}, {1, 1}, "no sizes"},
        {4, 0, {2, 1}, {-1, 1}, "no sizes"},
        {4, -1, {1, 1}, {1, 1}, "ends at element"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pt p;
        pt_begin(&p);
        pt_text(&p, "x");
        int at = pt_storage(&p, "0123456789abcdef", 16);
        pt_view(&p, "FloatStorage", at, cases[i].count, cases[i].first, 2, cases[i].dim,
                cases[i].stride);
        must_not_open(&p, cases[i].words);
    }
    struct pt p;
    pt_begin(&p);
    p.method = 8;
    must_not_open(&p, "compressed (method 8)");
    pt_begin(&p);
    buf_str(&p.pickle, "0");
    must_not_open(&p, "opcode 0x30 (POP)");
}

/* A list that holds the list before it twice, 40 times over, is small, and has 2^40 values. */
static void test_lists_of_lists_end(void **state)
{
    (void)state;
    struct pt p;
    pt_begin(&p);
    pt_text(&p, "x");
    buf_add(&p.pickle, "]q\0", 3);
    for (char i = 1; i < 40; i++)
        buf_add(&p.pickle, (char[]){'h', (char)(i - 1), '\x86', 'q', i}, 5);
    must_not_open(&p, "deeper than 12");
}

/* Every byte of a file in turn, changed: a line, or the same tensors. */
static void test_damage_is_a_line(void **state)
{
    (void)state;
    struct pt p;
    struct buf all = {0};
    float x[4] = {1, 2, 3, 4};
    char path[300];
    snprintf(path, sizeof path, "%s/Pass00000.pt", dir);
    pt_begin(&p);
    pt_floats(&p, "x", x, 2, 2);
    pt_end(&p, &all);
    for (size_t i = 0; i < all.n; i++) {
        struct err e = {0};
        float y[4];
        all.p[i] ^= 1 << i % 8;
        ck_write(dir, "Pass00000.pt", all.p, all.n);
        struct torch_file *f = torch_open(path, &e);
        const struct torch_entry *t = f ? torch_find(f, "x") : NULL;
        if (!f)
            assert_true(e.kind && e.msg[0]);
        if (t && !t->text && t->count == 4 && torch_floats(f, t, 0, 4, y, &e))
            assert_true(t->dim[0] != 2 || t->first != 0 || t->stride[0] != 2 ||
                        memcmp(x, y, sizeof x) == 0);
        torch_close(f);
        all.p[i] ^= 1 << i % 8;
        if (i % 7 == 0) { /* and cut there */
            ck_write(dir, "Pass00000.pt", all.p, i);
            f = torch_open(path, &e);
            assert_null(f);
        }
    }
    buf_free(&all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_every_module_of_the_reference_agrees, setup, teardown),
        cmocka_unit_test_setup_teardown(test_the_module_whose_output_is_spoilt_is_named, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_the_dumper_s_files_are_aligned_by_their_names, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_requests_go_on_where_their_positions_say, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_other_models_and_missing_ids_are_refused, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_a_folder_that_cannot_be_read_is_not_called_empty,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(test_calls_of_flashinfer, setup, teardown),
        cmocka_unit_test_setup_teardown(test_lines_of_kv_canary, setup, teardown),
        cmocka_unit_test(test_the_chain_s_hash),
        cmocka_unit_test_setup_teardown(test_tensors_are_views_of_storages, setup, teardown),
        cmocka_unit_test_setup_teardown(test_large_storages_and_archives, setup, teardown),
        cmocka_unit_test_setup_teardown(test_safetensors_of_five_dimensions, setup, teardown),
        cmocka_unit_test_setup_teardown(test_what_is_no_tensor_is_refused_by_name, setup, teardown),
        cmocka_unit_test_setup_teardown(test_hostile_sizes_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(test_lists_of_lists_end, setup, teardown),
        cmocka_unit_test_setup_teardown(test_damage_is_a_line, setup, teardown),
    };
    open_reference(G "llama-b");
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    close_reference();
    return rc;
}
