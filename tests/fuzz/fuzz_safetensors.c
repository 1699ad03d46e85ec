/* A safetensors file, an index over two shards, or a folder with a config.json that may say how
 * matrices are
 * quantized: refused with a message, or every tensor readable; a matrix made of codes and scales
 * may have a number that is not finite. */
#include "models/checkpoint/safetensors.h"
#include "tests/fuzz/fuzz.h"

#include <fcntl.h>

const int fuzz_inputs = 1500;

static void read_all(struct safetensors *s)
{
    struct err e = {0};
    for (int i = 0; i < st_count(s); i++) {
        const struct tensor *t = st_at(s, i);
        CHECK(t->name[0] && t->bytes <= 1 << 20 && st_index(s, t) == i && st_find(s, t->name) == t);
        void *to = xmalloc(t->bytes ? t->bytes : 1);
        bool ok = st_read((struct safetensors *)s, t, to, &e);
        CHECK(ok || st_entry(t)->made);
        if (!ok)
            fuzz_message(&e);
        if (ok && t->bytes > 1)
            CHECK(st_read_part(s, t, 1, t->bytes - 1, to, &e));
        free(to);
    }
    CHECK(!st_find(s, "\1")); /* names have no control characters */
}

static void open_one(const char *path)
{
    struct err e = {0};
    struct safetensors *s = st_open(path, &e);
    if (s)
        read_all(s);
    else
        fuzz_message(&e);
    st_close(s);
}

/* One tensor of four bytes. */
static void write_shard(const char *name, const char *tensor)
{
    char head[128], path[128];
    int n = snprintf(head, sizeof head,
                     "{\"%s\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", tensor);
    uint64_t size = (uint64_t)n;
    snprintf(path, sizeof path, "%s/%s", fuzz_folder(), name);
    FILE *f = fopen(path, "w");
    CHECK(f && fwrite(&size, 8, 1, f) == 1 && fwrite(head, (size_t)n, 1, f) == 1 &&
          fwrite("\0\0\0", 4, 1, f) == 1);
    fclose(f);
}

static void open_index(const uint8_t *data, size_t n)
{
    static int fd;
    if (!fd) {
        char path[128];
        write_shard("a-1.safetensors", "a");
        write_shard("a-2.safetensors", "b");
        snprintf(path, sizeof path, "%s/model.safetensors.index.json", fuzz_folder());
        fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        CHECK(fd > 0);
    }
    CHECK(ftruncate(fd, 0) == 0 && pwrite(fd, data, n, 0) == (ssize_t)n);
    open_one(fuzz_folder());
}

static void write_part(int *fd, const char *name, const uint8_t *data, size_t n)
{
    if (!*fd) {
        char path[160];
        snprintf(path, sizeof path, "%s/coded", fuzz_folder());
        mkdir(path, 0700);
        snprintf(path, sizeof path, "%s/coded/%s", fuzz_folder(), name);
        *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        CHECK(*fd > 0);
    }
    CHECK(ftruncate(*fd, 0) == 0 && pwrite(*fd, data, n, 0) == (ssize_t)n);
}

/* "#", the text of config.json, a NUL, the file. */
static void open_folder(const uint8_t *data, size_t n)
{
    static int config, file;
    char path[160];
    const uint8_t *end = memchr(data, 0, n);
    size_t text = end ? (size_t)(end - data) : n;
    write_part(&config, "config.json", data, text);
    write_part(&file, "model.safetensors", data + text + (end != NULL), n - text - (end != NULL));
    snprintf(path, sizeof path, "%s/coded", fuzz_folder());
    open_one(path);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static struct fuzz_file file;
    if (n && data[0] == '#')
        open_folder(data + 1, n - 1);
    else if (n && data[0] == '{') /* an index is JSON; a file begins with its header's length, which
                                     is no "{" */
        open_index(data, n);
    else
        open_one(fuzz_file(&file, data, n));
    return 0;
}
