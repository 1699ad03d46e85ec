/* A file of torch.save(): the archive, or, behind "p", its pickle alone in an archive that is
 * whole. What is read has tensors within their storages, and the same elements when it is read in
 * parts; what is refused has one line. */
#include "engine/tools/torch_file.h"

#include "tests/fuzz/fuzz.h"
#include "tests/torch_kit.h"

const int fuzz_inputs = 3000;

static void read_tensor(struct torch_file *f, const struct torch_entry *t)
{
    struct err e = {0};
    CHECK(t->count >= 0 && t->n_dim <= TORCH_DIMS);
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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static struct fuzz_file file;
    if (n == 0 || data[0] != 'p') {
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
