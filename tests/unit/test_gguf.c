/* test_gguf.c - the container of GGUF files: values, tensors, parts, and everything that is
 * refused. */
#include "tests/gguf_kit.h"
#include "tests/model_kit.h"

static char *folder, *path;

static int setup(void **state)
{
    (void)state;
    folder = scratch_folder();
    path = xasprintf("%s/x.gguf", folder);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    scratch_remove(folder);
    free(path);
    return 0;
}

static struct gguf *open_bytes(const char *p, size_t n, struct err *e)
{
    ck_write(folder, "x.gguf", p, n);
    return gguf_open(path, e);
}

/* Opens and frees a file that must open. */
static struct gguf *open_file(struct buf b)
{
    struct err e = {0};
    struct gguf *g = open_bytes(b.p, b.n, &e);
    buf_free(&b);
    if (!g)
        fail_msg("%s", e.msg);
    return g;
}

/* Opens and frees a file that must be refused with a message that names the file and says this. */
static void refused(struct buf b, const char *says)
{
    struct err e = {0};
    struct gguf *g = open_bytes(b.p, b.n, &e);
    buf_free(&b);
    if (g || e.kind != ERR_MODEL || !strstr(e.msg, says) || !strstr(e.msg, "x.gguf") ||
        strpbrk(e.msg, "\n\r\033"))
        fail_msg("\"%s\", expected \"%s\"", g ? "it was opened" : e.msg, says);
}

/* ---- what is read ---- */

static int64_t int_of(const struct gguf *g, const char *key)
{
    struct err e = {0};
    int64_t v = 0;
    if (!gguf_int(g, key, INT64_MIN, INT64_MAX, &v, &e))
        fail_msg("%s", e.msg);
    return v;
}

static void test_values_of_every_type(void **state)
{
    (void)state;
    struct gguf *g = open_file(gw_sample());
    struct err e = {0};
    assert_int_equal(int_of(g, "a.u8"), 200);
    assert_int_equal(int_of(g, "a.i8"), -3);
    assert_int_equal(int_of(g, "a.u16"), 60000);
    assert_int_equal(int_of(g, "a.i16"), -300);
    assert_int_equal(int_of(g, "a.i32"), -70000);
    assert_int_equal(int_of(g, "a.u64"), 1ll << 40);
    assert_int_equal(int_of(g, "a.i64"), -(1ll << 40));
    assert_int_equal(int_of(g, "a.bool"), 1);
    double x = 0;
    assert_true(gguf_real(g, "a.f32", &x, &e) && x == 1.5);
    assert_true(gguf_real(g, "a.f64", &x, &e) && x == 1.5);
    bool yes = false;
    assert_true(gguf_bool(g, "a.bool", &yes, &e) && yes);
    struct gguf_text t = {0}, *v = NULL;
    assert_true(gguf_string(g, "general.architecture", &t, &e));
    assert_true(t.n == 5 && !memcmp(t.p, "llama", 5));
    size_t n = 0;
    int64_t *i = NULL;
    assert_true(gguf_ints(g, "a.ints", -2, 3, &i, &n, &e) && n == 3 && i[1] == -2 && i[2] == 3);
    free(i);
    assert_true(gguf_ints(g, "a.bools", 0, 1, &i, &n, &e) && n == 2 && i[0] == 1 && !i[1]);
    free(i);
    assert_true(gguf_ints(g, "a.u8", 0, 255, &i, &n, &e) && n == 1 && i[0] == 200);
    free(i);
    float *f = NULL;
    assert_true(gguf_reals(g, "a.reals", &f, &n, &e) && n == 2 && f[0] == 1.5f && f[1] == -2);
    free(f);
    assert_true(gguf_strings(g, "a.strings", &v, &n, &e) && n == 3);
    assert_true(v[0].n == 3 && !v[1].n && v[2].n == 5 && !memcmp(v[2].p, "three", 5));
    free(v);
    assert_true(gguf_strings(g, "a.none", &v, &n, &e) && n == 0);
    free(v);
    gguf_close(g);
}

static void test_an_absent_key_keeps_the_default(void **state)
{
    (void)state;
    struct gguf *g = open_file(gw_sample());
    struct err e = {0};
    int64_t i = 7, *is = NULL;
    double x = 8;
    bool b = true;
    struct gguf_text t = {"x", 1};
    size_t n = 9;
    assert_false(gguf_has(g, "b"));
    assert_true(gguf_has(g, "a.none"));
    assert_true(gguf_int(g, "b", 0, 1, &i, &e) && i == 7);
    assert_true(gguf_real(g, "b", &x, &e) && x == 8);
    assert_true(gguf_bool(g, "b", &b, &e) && b);
    assert_true(gguf_string(g, "b", &t, &e) && t.n == 1);
    assert_true(gguf_ints(g, "b", 0, 1, &is, &n, &e) && !is && n == 9);
    gguf_close(g);
}

static void test_a_value_of_another_kind_is_refused_by_key(void **state)
{
    (void)state;
    struct gguf *g = open_file(gw_sample());
    int64_t i, *is;
    double x;
    bool b;
    struct gguf_text t, *ts;
    float *f;
    size_t n;
    struct err e[8] = {0};
    assert_false(gguf_int(g, "a.f32", 0, 9, &i, &e[0]));
    assert_false(gguf_int(g, "a.u8", 0, 199, &i, &e[1]));
    assert_false(gguf_real(g, "a.u8", &x, &e[2]));
    assert_false(gguf_bool(g, "a.u8", &b, &e[3]));
    assert_false(gguf_string(g, "a.strings", &t, &e[4]));
    assert_false(gguf_strings(g, "a.ints", &ts, &n, &e[5]));
    assert_false(gguf_reals(g, "a.ints", &f, &n, &e[6]));
    assert_false(gguf_ints(g, "a.ints", -1, 3, &is, &n, &e[7]));
    const char *const key[] = {"a.f32",     "a.u8",   "a.u8",   "a.u8",
                               "a.strings", "a.ints", "a.ints", "a.ints"};
    for (int k = 0; k < 8; k++)
        assert_true(e[k].kind == ERR_MODEL && strstr(e[k].msg, key[k]) &&
                    strstr(e[k].msg, "x.gguf"));
    gguf_close(g);
}

static void test_tensors_have_row_major_shapes(void **state)
{
    (void)state;
    struct gguf *g = open_file(gw_sample());
    const struct gguf_tensor *t = gguf_find(g, "token_embd.weight");
    assert_int_equal(g->n_tensor, 3);
    assert_ptr_equal(t, &g->tensor[0]);
    assert_true(t->type == DT_F32 && t->n_dim == 2 && t->dim[0] == 3 && t->dim[1] == 4);
    assert_true(t->bytes == 48 && t->at % 32 == 0);
    assert_int_equal(g->tensor[1].at, t->at + 64);
    assert_int_equal(g->tensor[1].bytes, 36);
    assert_null(gguf_find(g, "output.weight"));
    char got[4], want[4] = {0, 7, 14, 21};
    FILE *f = fopen(path, "rb");
    assert_true(f && fseek(f, (long)t->at, SEEK_SET) == 0 && fread(got, 1, 4, f) == 4);
    fclose(f);
    assert_memory_equal(got, want, 4);
    gguf_close(g);
}

/* ---- what is refused ---- */

/* The sample with `n` bytes at a place replaced. */
static struct buf with(size_t at, uint64_t v, int n)
{
    struct buf b = gw_sample();
    for (int i = 0; i < n; i++)
        b.p[at + (size_t)i] = (char)(v >> (8 * i));
    return b;
}

static void test_beginnings(void **state)
{
    (void)state;
    refused(with(0, 'X', 1), "does not begin with \"GGUF\"");
    refused(with(4, 1, 4), "version 1 of the format");
    refused(with(4, 0, 4), "version 0 of the format");
    refused(with(4, 4, 4), "version 4 of the format");
    refused(with(4, 0x03000000, 4), "big-endian");
    refused(with(8, UINT64_MAX, 8), "negative number of tensors");
    refused(with(16, 1ull << 63, 8), "negative number of keys");
    refused(with(8, 1 << 20, 8), "claims 1048576 tensors");
    refused(with(16, 1 << 20, 8), "claims 1048576 keys");
    struct buf two = with(4, 2, 4);
    gguf_close(open_file(two));
}

static struct buf one_key(const char *key, int type, uint64_t v, int bytes)
{
    struct gw w = {0};
    gw_key(&w, key, type);
    gw_little(&w.keys, v, bytes);
    return gw_bytes(&w);
}

static void test_metadata(void **state)
{
    (void)state;
    refused(one_key("k", 13, 0, 4), "key k has a value of the unknown type 13");
    refused(one_key("", GW_U32, 0, 4), "is empty");
    refused(one_key("a\033b", GW_U32, 0, 4), "control characters");
    char longest[1026] = {0};
    memset(longest, 'k', 1024);
    gguf_close(open_file(one_key(longest, GW_U32, 0, 4)));
    longest[1024] = 'k';
    refused(one_key(longest, GW_U32, 0, 4), "more than 1024 bytes");
    refused(one_key("k", GW_STRING, 1, 8), "key k needs 1 bytes");
    refused(one_key("k", GW_STRING, UINT64_MAX, 8), "key k needs 18446744073709551615 bytes");
    refused(one_key("general.alignment", GW_U32, 0, 4), "general.alignment is not a power of two");
    refused(one_key("general.alignment", GW_U32, 24, 4), "general.alignment is not a power of two");
    refused(one_key("general.alignment", GW_U64, 32, 8), "general.alignment is not a power of two");
    struct gw w = {0};
    gw_u32(&w, "k", 1);
    gw_u32(&w, "j", 1);
    gw_u32(&w, "k", 1);
    refused(gw_bytes(&w), "key k is there twice");
    gw_array(&w, "k", GW_ARRAY, 0);
    refused(gw_bytes(&w), "array of arrays");
    gw_array(&w, "k", 77, 0);
    refused(gw_bytes(&w), "unknown type");
    gw_array(&w, "k", GW_U64, 1ull << 61);
    refused(gw_bytes(&w), "elements");
    gw_array(&w, "k", GW_STRING, 2);
    gw_text(&w.keys, "x");
    refused(gw_bytes(&w), "key k");
}

/* A file of one tensor; dims in row-major order. */
static struct buf one_tensor(const char *name, int type, int n_dim, int64_t a, int64_t b,
                             size_t bytes)
{
    struct gw w = {0};
    char *zeros = xcalloc(bytes, 1);
    gw_tensor(&w, name, type, n_dim, (const int64_t[]){a, b, 1, 1, 1}, zeros, bytes);
    free(zeros);
    return gw_bytes(&w);
}

static void test_tensors(void **state)
{
    (void)state;
    gguf_close(open_file(one_tensor("t", GGUF_Q4_0, 2, 2, 32, 36)));
    gguf_close(open_file(one_tensor("t", GGUF_F32, 2, 0, 32, 0)));
    refused(one_tensor("t", GGUF_Q4_0, 2, 2, 33, 36), "tensor t has rows of 33 elements");
    refused(one_tensor("t", 4, 1, 32, 0, 99), "tensor t has type 4, which was removed");
    refused(one_tensor("t", 37, 1, 32, 0, 99), "tensor t has type 37, which was removed");
    refused(one_tensor("t", 18, 1, 256, 0, 99),
            "tensor t has type IQ3_XXS, which aerie does not read");
    refused(one_tensor("t", 9, 1, 32, 0, 99), "tensor t has type Q8_1");
    refused(one_tensor("t", 43, 1, 32, 0, 99), "tensor t has type 43, which is unknown");
    refused(one_tensor("t", INT32_MAX, 1, 32, 0, 99), "which is unknown");
    refused(one_tensor("t", GGUF_F32, 5, 1, 1, 4), "tensor t has 5 dimensions");
    refused(one_tensor("t", GGUF_F32, 0, 1, 1, 4), "tensor t has 0 dimensions");
    refused(one_tensor("t", GGUF_F32, 2, -1, 4, 4), "tensor t has a negative dimension");
    refused(one_tensor("t", GGUF_F32, 2, 1ll << 40, 1ll << 40, 4), "size in bytes overflows");
    refused(one_tensor("t", GGUF_F32, 2, 1ll << 31, 1ll << 31, 4), "size in bytes overflows");
    refused(one_tensor("t", GGUF_F32, 2, 4, 4, 63), "is it complete?");
    refused(one_tensor("", GGUF_F32, 1, 1, 1, 4), "is empty");
    refused(one_tensor("a\nb", GGUF_F32, 1, 1, 1, 4), "control characters");
    refused(one_tensor("a123456789b123456789c123456789d123456789e123456789f1234567890123", GGUF_F32,
                       1, 1, 1, 4),
            "more than 63 bytes");
    struct gw w = {0};
    for (int i = 0; i < 2; i++)
        gw_tensor(&w, "t", GGUF_F32, 1, (const int64_t[]){1}, "abcd", 4);
    refused(gw_bytes(&w), "tensor t is there twice");
}

static void test_offsets(void **state)
{
    (void)state;
    for (int k = 0; k < 3; k++) {
        struct gw w = {0};
        gw_tensor(&w, "a", GGUF_F32, 1, (const int64_t[]){1}, "abcd", 4);
        gw_tensor(&w, "b", GGUF_F32, 1, (const int64_t[]){1}, "abcd", 4);
        w.infos.p[w.infos.n - 8] = (char)(k == 0 ? 0 : k == 1 ? 4 : 64);
        refused(gw_bytes(&w), "tensor b starts at byte");
    }
}

/* A file that ends early, at any byte, is refused; only what fills up the last tensor may lack. */
static void test_a_file_cut_at_any_byte_is_refused(void **state)
{
    (void)state;
    struct buf b = gw_sample();
    for (size_t n = 0; n < b.n; n++) {
        struct buf cut = {0};
        buf_add(&cut, b.p, n);
        refused(cut, "x.gguf");
    }
    buf_free(&b);
}

/* Every bit of the header changed: an answer, never a crash, and what opens lies in the file. */
static void test_every_bit_of_a_header_may_change(void **state)
{
    (void)state;
    struct buf b = gw_sample();
    struct gguf *g = open_file(gw_sample());
    size_t head = (size_t)g->tensor[0].at;
    gguf_close(g);
    int opened = 0, was_refused = 0;
    for (size_t i = 0; i < head * 8; i++) {
        struct err e = {0};
        b.p[i / 8] = (char)(b.p[i / 8] ^ (1 << i % 8));
        g = open_bytes(b.p, b.n, &e);
        b.p[i / 8] = (char)(b.p[i / 8] ^ (1 << i % 8));
        assert_true(g || (e.kind == ERR_MODEL && strstr(e.msg, "x.gguf") && !strchr(e.msg, '\n')));
        g ? opened++ : was_refused++;
        for (int t = 0; g && t < g->n_tensor; t++)
            assert_true(g->tensor[t].at <= b.n &&
                        g->tensor[t].bytes <= b.n - g->tensor[t].at);
        gguf_close(g);
    }
    assert_true(opened > 1000 && was_refused > 1000);
    buf_free(&b);
}

/* ---- parts ---- */

/* Writes part `no` of `count`, which says that it is `says_no` of `says_count`, with one tensor. */
static void write_part(int no, int count, int says_no, int says_count, int total)
{
    struct gw w = {0};
    char name[64], tensor[8];
    snprintf(name, sizeof name, "m-%05d-of-%05d.gguf", no + 1, count);
    snprintf(tensor, sizeof tensor, "t%d", no);
    gw_int(&w, "split.no", GW_U16, says_no);
    gw_int(&w, "split.count", GW_U16, says_count);
    gw_int(&w, "split.tensors.count", GW_I32, total);
    gw_tensor(&w, tensor, GGUF_F32, 1, (const int64_t[]){1}, "abcd", 4);
    struct buf b = gw_bytes(&w);
    ck_write(folder, name, b.p, b.n);
    buf_free(&b);
}

/* Opens part `no` of three and returns the message, or "". */
static const char *open_part_of(int no)
{
    static struct err e;
    e = (struct err){0};
    char *p = xasprintf("%s/m-%05d-of-00003.gguf", folder, no + 1);
    struct gguf *g = gguf_open(p, &e);
    if (g) {
        assert_int_equal(g->n_file, 3);
        assert_int_equal(g->n_tensor, 3);
        assert_int_equal(gguf_find(g, "t2")->file, 2);
    }
    assert_true(g || e.kind == ERR_MODEL);
    gguf_close(g);
    free(p);
    return e.msg;
}

static void test_parts(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++)
        write_part(i, 3, i, 3, 3);
    assert_string_equal(open_part_of(0), "");
    assert_non_null(strstr(open_part_of(1), "is part 2 of 3 of a model, expected the first part"));
    write_part(2, 3, 1, 3, 3);
    assert_non_null(strstr(open_part_of(0), "do not say that it is part 3 of 3"));
    write_part(2, 3, 2, 4, 3);
    assert_non_null(strstr(open_part_of(0), "do not say that it is part 3 of 3"));
    write_part(2, 3, 2, 3, 3);
    write_part(0, 3, 0, 3, 4);
    assert_non_null(strstr(open_part_of(0), "split.tensors.count is 4, but the parts have 3"));
    write_part(0, 3, 0, 3, 3);
    char *last = xasprintf("%s/m-00003-of-00003.gguf", folder);
    int32_t claims = 1 << 20; /* as many as a model may have; two parts before have one each */
    FILE *f = fopen(last, "r+b");
    assert_true(f && !fseek(f, 8, SEEK_SET) && fwrite(&claims, sizeof claims, 1, f) == 1);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(truncate(last, 32 << 20), 0); /* room for so many entries, without blocks */
    assert_non_null(strstr(open_part_of(0), "claims 1048576 tensors, expected at most 1048574"));
    assert_int_equal(unlink(last), 0);
    assert_non_null(strstr(open_part_of(0), "cannot open"));
    free(last);
    struct gw w = {0};
    gw_int(&w, "split.no", GW_U16, 0);
    gw_int(&w, "split.count", GW_U16, 2);
    refused(gw_bytes(&w), "expected a name that ends in -00001-of-00002.gguf");
    gw_int(&w, "split.count", GW_U64, 1 << 20);
    refused(gw_bytes(&w), "split.count");
    gw_int(&w, "split.no", GW_U16, 1); /* of 1, which a file without split.count says */
    refused(gw_bytes(&w), "split.no");
}

static void test_what_is_no_file_is_refused(void **state)
{
    (void)state;
    struct err e = {0};
    assert_false(gguf_is(folder));
    assert_null(gguf_open(folder, &e));
    assert_non_null(strstr(e.msg, "not a regular file"));
    assert_false(gguf_is("no/such/file"));
    assert_null(gguf_open("no/such/file", &e));
    assert_non_null(strstr(e.msg, "cannot open"));
    struct buf b = gw_sample();
    ck_write(folder, "blob", b.p, b.n);
    buf_free(&b);
    char *blob = xasprintf("%s/blob", folder);
    assert_true(gguf_is(blob));
    free(blob);
}

/* Writes the seeds of tests/fuzz/corpus/gguf. */
static int write_seeds(const char *dir)
{
    const char *const name[] = {"values", "llama", "gpt-oss"};
    for (int i = 0; i < 3; i++) {
        struct buf b = i ? gw_small(name[i]) : gw_sample();
        ck_write(dir, name[i], b.p, b.n);
        buf_free(&b);
    }
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 3 && !strcmp(argv[1], "--seeds"))
        return write_seeds(argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values_of_every_type),
        cmocka_unit_test(test_an_absent_key_keeps_the_default),
        cmocka_unit_test(test_a_value_of_another_kind_is_refused_by_key),
        cmocka_unit_test(test_tensors_have_row_major_shapes),
        cmocka_unit_test(test_beginnings),
        cmocka_unit_test(test_metadata),
        cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_offsets),
        cmocka_unit_test(test_a_file_cut_at_any_byte_is_refused),
        cmocka_unit_test(test_every_bit_of_a_header_may_change),
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_what_is_no_file_is_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
