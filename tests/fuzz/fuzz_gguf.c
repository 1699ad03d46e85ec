/* fuzz_gguf.c - GGUF files: the container, and the model that one holds.
 *
 * An input is a file. What opens as a container has tensors that lie in the file, and values that
 * every getter answers; what opens as a model can be read, from any offset, with the same bytes,
 * and has a config that is JSON.
 */
#include "tests/fuzz/fuzz.h"

#include "models/checkpoint/gguf.h"
#include "models/checkpoint/json.h"
#include "models/checkpoint/safetensors.h"

const int fuzz_inputs = 1500;

/* Asks for a value in every way; each answers, or refuses with a message. */
static void ask(const struct gguf *g, const char *key)
{
    int64_t i = 0, *is = NULL;
    double x;
    bool b;
    float *f = NULL;
    struct gguf_text t = {"", 0}, *ts = NULL;
    size_t n = 0, total = 0;
    struct err e[7] = {0};
    const bool ok[7] = {gguf_int(g, key, -1000, 1000, &i, &e[0]),
                        gguf_real(g, key, &x, &e[1]),
                        gguf_bool(g, key, &b, &e[2]),
                        gguf_string(g, key, &t, &e[3]),
                        gguf_ints(g, key, -1000, 1000, &is, &n, &e[4]),
                        gguf_reals(g, key, &f, &n, &e[5]),
                        gguf_strings(g, key, &ts, &n, &e[6])};
    CHECK(i >= -1000 && i <= 1000);
    for (int k = 0; k < 7; k++)
        if (!ok[k])
            fuzz_message(&e[k]);
    for (size_t k = 0; ts && k < n; k++)
        total += ts[k].n ? (unsigned char)ts[k].p[ts[k].n - 1] : 0; /* it can be read */
    CHECK(total <= 255 * n);
    free(is);
    free(f);
    free(ts);
}

static void open_container(const char *path, size_t size)
{
    struct err e = {0};
    struct gguf *g = gguf_open(path, &e);
    if (!g) {
        fuzz_message(&e);
        return;
    }
    const char *key;
    for (int i = 0; (key = gguf_key(g, i)); i++) {
        CHECK(gguf_has(g, key));
        ask(g, key);
    }
    for (int i = 0; i < g->n_tensor; i++) {
        const struct gguf_tensor *t = &g->tensor[i];
        CHECK(t->at <= size && t->bytes <= size - t->at && gguf_find(g, t->name) == t);
    }
    gguf_close(g);
}

/* Reads a tensor whole, and again from an offset. */
static void read_tensor(struct safetensors *s, const struct tensor *t, size_t offset)
{
    enum { MOST = 1 << 16 };
    struct err e = {0};
    size_t n = t->bytes < MOST ? t->bytes : MOST, from = n ? offset % n : 0;
    char *whole = xmalloc(n + 1), *part = xmalloc(n + 1);
    if (!st_read_part(s, t, 0, n, whole, &e))
        fuzz_message(&e); /* a scale that is not finite */
    else if (st_read_part(s, t, from, n - from, part, &e))
        CHECK(memcmp(whole + from, part, n - from) == 0);
    free(whole);
    free(part);
}

static void open_model(const char *path, size_t offset)
{
    struct err e = {0};
    struct safetensors *s = st_open(path, &e);
    if (!s) {
        fuzz_message(&e);
        return;
    }
    struct buf text = {0};
    char *named = st_config(s, &text, &e);
    CHECK(named && s->about);
    json_t *config = json_read(text.p, text.n, JSON_DEPTH, named, &e);
    CHECK(config);
    json_decref(config);
    for (int i = 0; i < st_count(s); i++)
        read_tensor(s, st_at(s, i), offset);
    free(named);
    buf_free(&text);
    st_close(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static struct fuzz_file file;
    const char *path = fuzz_file(&file, data, n);
    open_container(path, n);
    if (gguf_is(path))
        open_model(path, n ? data[n - 1] * 7 : 0);
    return 0;
}
