/* What aerie dump reads. A file of torch.save(): the archive, or, behind "p", its pickle alone in an
 * archive that is whole: tensors within their storages, and the same elements when they are read in
 * parts. Behind "a", ids and positions of passes: every row is aligned, missing or unclear, and
 * those aligned continue their request. Behind "f", the metadata and vectors of FlashInfer's plan:
 * any verdict, within the time of its sizes. Behind "k", a line of kv_canary. What is refused has
 * one line. */
#include "engine/tools/canary.h"
#include "engine/tools/dump.h"
#include "engine/tools/flashinfer.h"
#include "engine/tools/torch_file.h"

#include "tests/fuzz/fuzz.h"
#include "tests/torch_kit.h"

const int fuzz_inputs = 3000;

static void read_tensor(struct torch_file *f, const struct torch_entry *t)
{
    struct err e = {0};
    CHECK(t->count >= 0 && t->n_dim <= TENSOR_DIMS);
    if (t->count > 1 << 16)
        return;
    size_t n = (size_t)t->count;
    float *all = xcalloc(n + 1, sizeof *all), *one = xcalloc(n + 1, sizeof *one);
    int64_t *whole = xcalloc(n + 1, sizeof *whole);
    if (!torch_floats(f, t, 0, t->count, all, &e)) {
        fuzz_message(&e);
    } else {
        CHECK(torch_floats(f, t, t->count / 2, t->count - t->count / 2, one, &e));
        CHECK(!memcmp(one, all + t->count / 2, (n - n / 2) * sizeof *one));
    }
    if (!torch_wholes(f, t, whole, &e))
        fuzz_message(&e);
    free(all);
    free(one);
    free(whole);
}

static void open_one(const char *path)
{
    struct err e = {0};
    struct torch_file *f = torch_open(path, &e);
    if (!f) {
        fuzz_message(&e);
        CHECK(!strchr(e.msg, '\n'));
        return;
    }
    for (int i = 0; i < torch_count(f); i++) {
        const struct torch_entry *t = torch_at(f, i);
        fuzz_clean(t->name, strlen(t->name), false);
        CHECK(torch_find(f, t->name));
        if (t->text)
            fuzz_clean(t->text, strlen(t->text), false);
        else
            read_tensor(f, t);
    }
    torch_close(f);
}

/* ---- "a": passes ----------------------------------------------------------------------------- */

static void put_file(const char *folder, const char *name, const void *p, size_t n)
{
    char path[200];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    CHECK(f && (n == 0 || fwrite(p, 1, n, f) == n) && fclose(f) == 0);
}

static const char *folder_of(const char *name)
{
    static char path[100];
    snprintf(path, sizeof path, "%s/%s", fuzz_folder(), name);
    mkdir(path, 0700);
    return path;
}

static void put_pass(const char *folder, int number, const uint8_t *data, size_t n, int rows)
{
    struct pt p;
    struct buf all = {0};
    char name[32];
    int64_t id[8], pos[8], len[8];
    for (int i = 0; i < rows; i++) {
        id[i] = (size_t)i < n ? data[i] : 1;
        pos[i] = (size_t)(rows + i) < n ? data[rows + i] % 16 : i;
        len[i] = (size_t)(2 * rows + i) < n ? data[2 * rows + i] % 16 : 0;
    }
    pt_begin(&p);
    pt_wholes(&p, "x.input_ids", id, rows);
    pt_wholes(&p, "x.positions", pos, rows);
    if (n % 3)
        pt_wholes(&p, "x.seq_lens", len, rows);
    if (n % 5 == 0)
        pt_wholes(&p, "x.req_pool_indices", len, rows);
    pt_end(&p, &all);
    snprintf(name, sizeof name, "Pass%05d.pt", number);
    put_file(folder, name, all.p, all.n);
    buf_free(&all);
}

static void check_sequence(const struct dump_sequence *q, int64_t *rows)
{
    int known = 0;
    for (int i = 0; i < q->n; i++) {
        const struct dump_rows *w = &q->rows[i];
        CHECK(w->n > 0 && w->position <= known && (i == 0 || w->pass > q->rows[i - 1].pass));
        known = w->position + w->n;
        *rows += w->n;
    }
    CHECK(known == q->length);
}

static void align_passes(const uint8_t *data, size_t n)
{
    const char *folder = folder_of("passes");
    struct dump d;
    struct dump_sequences s;
    struct err e = {0};
    int64_t rows = 0, all = 0;
    for (int i = 0; i < 3; i++) {
        int k = n ? 1 + data[0] % 8 : 1;
        size_t used = n < 1 + 3 * (size_t)k ? n : 1 + 3 * (size_t)k;
        put_pass(folder, i, data + (n > 0), used - (n > 0), k);
        all += k;
        data += used;
        n -= used;
    }
    CHECK(dump_open(&d, folder, &e) && d.n == 3);
    if (dump_align(&d, &s, &e)) {
        for (int i = 0; i < s.n; i++)
            check_sequence(&s.v[i], &rows);
        CHECK(rows == s.rows && s.rows + s.missing + s.unclear == all);
        dump_sequences_free(&s);
    } else {
        fuzz_message(&e);
    }
    dump_close(&d);
}

/* ---- "f": a plan of FlashInfer --------------------------------------------------------------- */

static void put_vectors(const char *folder, const uint8_t *data, size_t n)
{
    struct pt p;
    struct buf all = {0};
    int64_t v[32] = {0, 1, 0, 1, 0, 1};
    size_t left = n / 2 < 32 ? n / 2 : 32;
    for (size_t i = 0; i < left; i++)
        v[i] = (int16_t)(data[2 * i] | data[2 * i + 1] << 8);
    pt_begin(&p);
    pt_wholes(&p, "arg_1", v, 2 + (int64_t)(n & 1));
    pt_wholes(&p, "arg_2", v + 4, 2 + (int64_t)(n & 1));
    pt_wholes(&p, "arg_3", v + 8, 4);
    pt_wholes(&p, "arg_4", v + 12, 1 + (int64_t)(n & 1));
    if (n & 2)
        pt_wholes(&p, "arg_10", v + 16, 8);
    pt_end(&p, &all);
    put_file(folder, "inputs.pt", all.p, all.n);
    buf_free(&all);
}

static void put_call(const char *folder)
{
    struct pt p;
    struct buf all = {0};
    float x[64];
    for (int i = 0; i < 64; i++)
        x[i] = (float)(i % 7) - 3;
    pt_begin(&p);
    pt_floats(&p, "arg_1", x, 1, 4);
    pt_text(&p, "arg_2");
    int at = pt_storage(&p, x, sizeof x);
    pt_view(&p, "FloatStorage", at, 64, 0, 5, (int64_t[]){4, 2, 2, 1, 4},
            (int64_t[]){16, 8, 4, 4, 1});
    pt_end(&p, &all);
    put_file(folder, "inputs.pt", all.p, all.n);
    buf_free(&all);
    pt_begin(&p);
    pt_floats(&p, "result", x, 1, 4);
    pt_end(&p, &all);
    put_file(folder, "outputs.pt", all.p, all.n);
    buf_free(&all);
}

static void judge_plan(const uint8_t *data, size_t n)
{
    static const char run[] = "{\"function_name\":\"BatchPrefillWithPagedKVCacheWrapper.run\","
                              "\"process_id\":1,\"self_id\":2,\"execution_status\":\"completed\"}\n";
    static const char begin[] = "{\"function_name\":\"BatchPrefillWithPagedKVCacheWrapper.plan\","
                                "\"process_id\":1,\"self_id\":2,\"input_metadata\":{";
    const uint8_t *end = n ? memchr(data, 0, n) : NULL;
    size_t text = end ? (size_t)(end - data) : n, rest = end ? n - text - 1 : 0;
    char folder[100];
    struct buf meta = {0};
    struct fi_report r;
    struct err e = {0};
    snprintf(folder, sizeof folder, "%s", folder_of("calls"));
    buf_str(&meta, begin);
    if (text)
        buf_add(&meta, data, text);
    buf_str(&meta, "}}\n");
    put_file(folder_of("calls/a"), "metadata.jsonl", meta.p, meta.n);
    put_vectors(folder_of("calls/a"), end ? end + 1 : data, rest);
    put_file(folder_of("calls/b"), "metadata.jsonl", run, sizeof run - 1);
    put_call(folder_of("calls/b"));
    if (!fi_compare(folder, NULL, &r, &e)) {
        fuzz_message(&e);
        CHECK(!strchr(e.msg, '\n'));
    }
    for (int i = 0; i < r.n; i++)
        CHECK(!strchr(r.v[i].why, '\n') && r.v[i].verdict <= FI_SKIPPED);
    fi_free(&r);
    buf_free(&meta);
}

/* ---- "k": a line of kv_canary ---------------------------------------------------------------- */

static void take_line(const uint8_t *data, size_t n)
{
    struct canary_line l;
    bool damaged;
    const char *text = fuzz_tail(data, n);
    if (!canary_take(text, n, &l, &damaged))
        return;
    struct buf why = {0};
    CHECK(!damaged && l.slot >= 0 && l.reasons > 0 && l.reasons < 64);
    fuzz_clean(l.tag, strlen(l.tag), false);
    canary_reasons(l.reasons, &why);
    CHECK(why.n > 0 && *canary_means(&l));
    buf_free(&why);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static struct fuzz_file file;
    char kind = n ? (char)data[0] : 0;
    if (kind == 'a')
        align_passes(data + 1, n - 1);
    else if (kind == 'f')
        judge_plan(data + 1, n - 1);
    else if (kind == 'k')
        take_line(data + 1, n - 1);
    if (kind == 'a' || kind == 'f' || kind == 'k')
        return 0;
    if (kind != 'p') {
        open_one(fuzz_file(&file, data, n));
        return 0;
    }
    struct pt p = {0};
    struct buf all = {0};
    float x[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    buf_add(&p.pickle, data + 1, n - 1);
    buf_char(&p.pickle, '.');
    pt_storage(&p, x, sizeof x);
    pt_storage(&p, x, 8);
    pt_end(&p, &all);
    open_one(fuzz_file(&file, all.p, all.n));
    buf_free(&all);
    return 0;
}
