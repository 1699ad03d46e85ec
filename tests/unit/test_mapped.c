/* test_mapped.c - memory that is a file's (kernels/mapped.h): files that are cut, written to or
 * deleted while they are mapped, models that use their weights there, and the CPU's buffers that
 * are filled without being written (kernels/cpu/memory.c).
 */
#include "kernels/kernels.h"
#include "kernels/mapped.h"
#include "kernels/sanitizers.h"
#include "tests/model_kit.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>

/* ---- a file of a few pages, last written to long ago ----------------------------------------- */

enum { PAGES = 5 };

static size_t page;
static char *dir, *path;

static void age(int fd, long seconds)
{
    struct timespec t[2] = {{.tv_sec = time(NULL) - seconds}, {.tv_sec = time(NULL) - seconds}};
    assert_int_equal(futimens(fd, t), 0);
}

static int setup(void **state)
{
    (void)state;
    page = (size_t)sysconf(_SC_PAGESIZE);
    dir = scratch_folder();
    path = xasprintf("%s/file", dir);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    scratch_remove(dir);
    free(path);
    return 0;
}

/* Opens the file anew: each page holds its number, from 1. */
static int make_file(void)
{
    char *all = xmalloc(PAGES * page);
    for (size_t i = 0; i < PAGES; i++)
        memset(all + i * page, (int)i + 1, page);
    ck_write(dir, "file", all, PAGES * page);
    free(all);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    age(fd, 100);
    return fd;
}

/* cmocka puts its own handler back before each test. */
static void on_bus(int sig, siginfo_t *info, void *context)
{
    (void)context;
    if (mapped_fault(sig, info))
        return;
    signal(sig, SIG_DFL);
    raise(sig);
}

static struct mapped *map(int fd)
{
    struct err e = {0};
    struct sigaction sa = {.sa_sigaction = on_bus, .sa_flags = SA_SIGINFO};
    assert_int_equal(sigaction(SIGBUS, &sa, NULL), 0);
    struct mapped *m = mapped_open(fd, path, &e);
    assert_non_null(m);
    assert_int_equal(mapped_size(m), PAGES * page);
    assert_true(mapped_check(&e));
    return m;
}

static void assert_refused(const char *why)
{
    struct err e = {0};
    assert_false(mapped_check(&e));
    assert_int_equal(e.kind, ERR_MODEL);
    if (!strstr(e.msg, why) || !strstr(e.msg, path))
        fail_msg("\"%s\" lacks \"%s\" or the path", e.msg, why);
}

static void test_a_file_that_stays_is_fine(void **state)
{
    (void)state;
    struct err e = {0};
    int fd = make_file();
    struct mapped *m = map(fd), *again = map(fd);
    close(fd); /* the mapping does not need it */
    for (size_t i = 0; i < PAGES; i++)
        assert_int_equal(mapped_base(m)[i * page + 7], i + 1);
    unlink(path); /* deleted or replaced: the old file is still there for who has it mapped */
    assert_true(mapped_check(&e));
    mapped_close(m);
    assert_int_equal(mapped_base(again)[0], 1);
    mapped_close(again);
    assert_true(mapped_check(&e));
    mapped_close(NULL);
}

static void *read_all(void *arg)
{
    const struct mapped *m = arg;
    uintptr_t sum = 0;
    for (size_t i = mapped_size(m); i-- > 0;)
        sum += (unsigned char)mapped_base(m)[i];
    return (void *)sum;
}

/* Eight threads read behind the new end at once: zeros, and the check says so, also when the file
 * has its old size again. */
static void test_a_file_that_is_cut_reads_as_zeros(void **state)
{
    (void)state;
    pthread_t thread[8];
    int fd = make_file();
    struct mapped *m = map(fd);
    assert_int_equal(ftruncate(fd, (off_t)(2 * page)), 0);
    for (size_t i = 0; i < 8; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, read_all, m), 0);
    for (size_t i = 0; i < 8; i++) {
        void *sum;
        pthread_join(thread[i], &sum);
        assert_int_equal((uintptr_t)sum, 3 * page);
    }
    assert_refused("was cut from");
    assert_int_equal(ftruncate(fd, (off_t)(PAGES * page)), 0);
    age(fd, 100);
    struct err e = {0};
    assert_false(mapped_check(&e));
    mapped_close(m);
    assert_true(mapped_check(&e));
    m = map(fd); /* what is there now */
    mapped_close(m);
    close(fd);
}

static void test_a_file_that_is_written_to_is_noticed(void **state)
{
    (void)state;
    int fd = make_file();
    struct mapped *m = map(fd);
    assert_int_equal(pwrite(fd, "x", 1, 9), 1);
    assert_refused("was written to");
    mapped_close(m);
    m = map(fd);
    age(fd, 50);
    assert_refused("was written to");
    mapped_close(m);
    m = map(fd);
    assert_int_equal(ftruncate(fd, (off_t)(9 * page)), 0);
    assert_refused("was written to");
    mapped_close(m);
    close(fd);
}

/* A SIGBUS that no mapping of this kind raised ends the process, as ever. */
static void test_other_bus_errors_are_still_fatal(void **state)
{
    (void)state;
    for (int sent = 0; sent < 2; sent++) {
        int fd = make_file(), status = 0;
        struct mapped *m = map(fd);
        pid_t child = fork();
        if (child == 0) {
            const volatile char *other = mmap(NULL, page * PAGES, PROT_READ, MAP_SHARED, fd, 0);
            if (sent)
                raise(SIGBUS);
            else if (ftruncate(fd, 0) == 0 && mapped_base(m)[0] == 0 && other[0] == 0)
                _exit(1);
            _exit(0);
        }
        assert_true(child > 0 && waitpid(child, &status, 0) == child);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
        mapped_close(m);
        close(fd);
    }
}

static void test_trust_needs_a_settled_file_of_ones_own(void **state)
{
    (void)state;
    const char *why;
    int fd = make_file();
    if (!mapped_trusted(fd, &why)) /* a temporary folder on a file system that is not known */
        assert_non_null(strstr(why, "file system"));
    else
        assert_null(why);
    age(fd, 0);
    assert_false(mapped_trusted(fd, &why));
    age(fd, 100);
    assert_int_equal(fchmod(fd, 0666), 0);
    assert_false(mapped_trusted(fd, &why));
    assert_non_null(why);
    close(fd);
    fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    assert_false(mapped_trusted(fd, &why));
    assert_non_null(strstr(why, "file system"));
    close(fd);
}

/* ---- models ---------------------------------------------------------------------------------- */

static void assert_same_model(struct model *a, struct model *b)
{
    assert_string_equal(a->sha, b->sha);
    assert_int_equal(a->bytes, b->bytes);
    for (int i = 0; i < a->cfg.n_layer; i++) {
        int n;
        struct tensor *x = layer_tensors(&a->layer[i], &n), *y = layer_tensors(&b->layer[i], &n);
        for (int k = 0; k < n; k++) {
            assert_int_equal(x[k].bytes, y[k].bytes);
            if (x[k].data)
                assert_memory_equal(x[k].data, y[k].data, x[k].bytes);
        }
    }
    assert_memory_equal(a->embed.data, b->embed.data, a->embed.bytes);
    assert_memory_equal(a->head.data, b->head.data, a->head.bytes);
}

static void load_both(const char *folder)
{
    struct loading how = {.use = READ_MAP};
    struct model copied, mapped;
    struct err e = {0};
    assert_true(model_load(&copied, folder, NULL, &e));
    assert_true(model_load(&mapped, folder, &how, &e));
    assert_same_model(&copied, &mapped);
    model_free(&copied);
    assert_true(mapped_check(&e));
    model_free(&mapped);
}

static void test_a_mapped_model_is_the_copied_one(void **state)
{
    (void)state;
    load_both("models/nestling/target");
    load_both(OSS);
    load_both(G3);
    load_both("tests/golden/phi3-b");     /* parts of a matrix are mapped, too */
    load_both("tests/golden/qwen3moe-b"); /* experts are not */
    for (int shards = 1; shards <= 5; shards += 2) {
        struct ck c = ck_load(OSS, ST);
        char *folder = scratch_folder();
        ck_save(&c, folder, shards);
        load_both(folder);
        scratch_remove(folder);
        ck_free(&c);
    }
}

static void test_small_or_missing_files_are_not_mapped_by_themselves(void **state)
{
    (void)state;
    const char *why;
    assert_false(model_mappable("models/nestling/target", &why));
    assert_string_equal(why, "they are less than 64 MB");
    assert_false(model_mappable("models", &why));
    assert_string_equal(why, "the files cannot be read");
}

/* Data that begin at an odd byte: what is not aligned is copied, bytes need no alignment. */
static void test_unaligned_tensors_are_copied(void **state)
{
    (void)state;
    const char *const folders[] = {OSS, G3};
    for (size_t f = 0; f < 2; f++)
        for (size_t pad = 1; pad <= 3; pad++) {
            struct buf all = ck_read(folders[f], ST), config = ck_read(folders[f], "config.json");
            char *folder = scratch_folder(), spaces[] = "   ";
            uint64_t n = ck_u64(all.p);
            struct buf out = {0};
            for (int i = 0; i < 8; i++)
                buf_add(&out, &(char){(char)((n + pad) >> (8 * i))}, 1);
            buf_add(&out, all.p + 8, n);
            buf_add(&out, spaces, pad);
            buf_add(&out, all.p + 8 + n, all.n - 8 - n);
            ck_write(folder, ST, out.p, out.n);
            ck_write(folder, "config.json", config.p, config.n);
            load_both(folder);
            scratch_remove(folder);
            buf_free(&all), buf_free(&config), buf_free(&out);
        }
}

/* ---- buffers that are filled ----------------------------------------------------------------- */

static void assert_bytes(const char *p, size_t n, int byte)
{
    for (size_t i = 0; i < n; i++)
        if (p[i] != (char)byte)
            fail_msg("byte %zu is %d, expected %d", i, p[i], (char)byte);
}

static size_t resident(void)
{
    size_t all, in = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_true(f && fscanf(f, "%zu %zu", &all, &in) == 2);
    fclose(f);
    return in * page;
}

static void test_a_filled_buffer_holds_the_byte_and_takes_writes(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 4096, (1 << 20) - 1, 1 << 20, (3 << 20) + 5,
                                   (9 << 20) + 4096};
    static const int bytes[] = {0xff, 0, 0x5a, 0xff};
    struct err e = {0};
    struct kdev *d = kernels_cpu.open(&(struct k_opts){.threads = 1}, &e);
    assert_non_null(d);
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        size_t n = sizes[s];
        kbuf a = kernels_cpu.alloc(d, n, "a", &e), b = kernels_cpu.alloc(d, n, "b", &e);
        assert_true(a.p && b.p && (uintptr_t)a.p % 64 == 0);
        for (size_t k = 0; k < 4; k++) {
            kernels_cpu.fill(d, a, (uint8_t)bytes[k]);
            kernels_cpu.fill(d, b, (uint8_t)bytes[k]);
            assert_bytes(a.p, n, bytes[k]);
            memset((char *)a.p + n / 3, 0x11, n / 2); /* seen here only */
            assert_bytes(a.p, n / 3, bytes[k]);
            assert_bytes((char *)a.p + n / 3, n / 2, 0x11);
            assert_bytes((char *)a.p + n / 3 + n / 2, n - n / 3 - n / 2, bytes[k]);
            assert_bytes(b.p, n, bytes[k]);
        }
        size_t from = n / 7, part = n / 2; /* a part of a buffer */
        kernels_cpu.fill(d, kbuf_at(a, from, part), 0);
        assert_bytes((char *)a.p + from, part, 0);
        assert_bytes(a.p, from < n / 3 ? from : n / 3, 0xff);
        kernels_cpu.release(d, a);
        kernels_cpu.release(d, b);
    }
    kernels_cpu.close(d);
}

#if HAS_ASAN || HAS_TSAN || defined(KERNELS_POISON)
enum { BUFFERS_ARE_WRITTEN = 1 };
#else
enum { BUFFERS_ARE_WRITTEN = 0 };
#endif

static void test_filling_takes_no_memory(void **state)
{
    (void)state;
    if (BUFFERS_ARE_WRITTEN)
        skip();
    enum { BYTES = 400 << 20 };
    struct err e = {0};
    struct kdev *d = kernels_cpu.open(&(struct k_opts){.threads = 1}, &e);
    kbuf b = kernels_cpu.alloc(d, BYTES, "cells", &e);
    assert_non_null(b.p);
    size_t was = resident();
    kernels_cpu.fill(d, b, 0xff);
    for (size_t i = 0; i < BYTES; i += 40 << 20)
        assert_bytes((char *)b.p + i, 64, 0xff);
    assert_true(resident() < was + BYTES / 8);
    kernels_cpu.release(d, b);
    kernels_cpu.close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_file_that_stays_is_fine),
        cmocka_unit_test(test_a_file_that_is_cut_reads_as_zeros),
        cmocka_unit_test(test_a_file_that_is_written_to_is_noticed),
        cmocka_unit_test(test_other_bus_errors_are_still_fatal),
        cmocka_unit_test(test_trust_needs_a_settled_file_of_ones_own),
        cmocka_unit_test(test_a_mapped_model_is_the_copied_one),
        cmocka_unit_test(test_small_or_missing_files_are_not_mapped_by_themselves),
        cmocka_unit_test(test_unaligned_tensors_are_copied),
        cmocka_unit_test(test_a_filled_buffer_holds_the_byte_and_takes_writes),
        cmocka_unit_test(test_filling_takes_no_memory),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
