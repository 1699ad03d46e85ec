/* Input from outside: only a regular file is read, and nothing else is ever waited for; numbers in
 * text. */
#include "kernels/base.h"
#include "kernels/late.h"
#include "tests/scratch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char *dir, *path;

static int begin(void **state)
{
    (void)state;
    dir = scratch_folder();
    path = xasprintf("%s/file", dir);
    alarm(200); /* a test that waits for the other end of a FIFO dies here */
    return 0;
}

static int end(void **state)
{
    (void)state;
    alarm(0);
    free(path);
    scratch_remove(dir);
    return 0;
}

static void refused(const char *name, const char *why)
{
    struct err e = {0};
    struct buf b;
    assert_false(buf_read_file(&b, name, 1000, &e));
    assert_int_equal(e.kind, ERR_USAGE);
    assert_non_null(strstr(e.msg, name));
    assert_non_null(strstr(e.msg, why));
    assert_null(b.p);
}

static void test_a_fifo_is_refused_at_once(void **state)
{
    (void)state;
    assert_int_equal(mkfifo(path, 0600), 0);
    refused(path, "it is a FIFO; expected a regular file");
}

static void test_devices_and_folders_are_refused(void **state)
{
    (void)state;
    refused("/dev/zero", "it is a device");
    refused(dir, "it is a folder");
    refused("/no/such/file", "No such file");
}

static void test_a_regular_file_is_read_whole(void **state)
{
    (void)state;
    struct buf b;
    struct err e = {0};
    FILE *f = fopen(path, "w");
    fputs("some text", f);
    fclose(f);
    assert_true(buf_read_file(&b, path, 9, &e));
    assert_string_equal(b.p, "some text");
    buf_free(&b);
    refused("/proc/self/maps", "bytes: expected at most 1000"); /* a size of 0, and much to read */
    assert_false(buf_read_file(&b, path, 8, &e));
    assert_non_null(strstr(e.msg, " has 9 bytes: expected at most 8"));
}

/* A file of holes claims a size that no memory has. */
static void test_a_file_that_is_too_large_is_refused_before_it_is_read(void **state)
{
    (void)state;
    struct buf b;
    struct err e = {0};
    FILE *f = fopen(path, "w");
    assert_int_equal(ftruncate(fileno(f), (off_t)1 << 40), 0);
    fclose(f);
    uint64_t start = clock_ns();
    assert_false(buf_read_file(&b, path, 1 << 30, &e));
    assert_true(clock_ns() - start < 1000000000);
    assert_non_null(strstr(e.msg, " has 1099511627776 bytes: expected at most 1073741824"));
    assert_null(b.p);
}

/* A number that is no int is refused, and not another number. */
static void test_numbers_are_ints_or_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool ok;
        int value;
    } row[] = {{"0", true, 0},  {"007x", true, 7}, {"-3", true, -3},
               {"2147483647", true, INT32_MAX}, {"-2147483648", true, INT32_MIN},
               {"2147483648", false, 0}, {"-2147483649", false, 0}, {"4294967297", false, 0},
               {"18446744073709551617", false, 0}, {"99999999999999999999999999", false, 0},
               {"", false, 0}, {"-", false, 0}, {" 1", false, 0}, {"+1", false, 0},
               {"x", false, 0}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        const char *at = row[i].text;
        int v = 77;
        assert_int_equal(int_at(&at, &v), row[i].ok);
        assert_int_equal(v, row[i].ok ? row[i].value : 77);
        assert_int_equal(at - row[i].text, row[i].ok ? strspn(row[i].text, "-0123456789") : 0);
    }
}

static void test_an_address_is_two_numbers_with_a_full_stop(void **state)
{
    (void)state;
    static const char *const bad[] = {"", "9", "9.", ".2", "9.-2", "-9.2", "9. 2", "9,2",
                                      "4294967305.214", "9.4294967510"};
    int turn = 7, step = 8;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const char *at = bad[i];
        assert_false(address_at(&at, &turn, &step));
        assert_true(at == bad[i] && turn == 7 && step == 8);
    }
    const char *at = "9.214.3";
    assert_true(address_at(&at, &turn, &step));
    assert_string_equal(at, ".3");
    assert_int_equal(turn, 9);
    assert_int_equal(step, 214);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, begin, end)

static void test_a_library_without_a_function_is_one_line(void **state)
{
    struct {
        size_t (*length)(const char *);
        void (*none)(void);
    } call = {0};
    struct err e;
    (void)state;
    assert_false(late_load("libno-such-thing.so.7", (const char *[]){"strlen"}, &call, 1, &e));
    assert_non_null(strstr(e.msg, "cannot load a library: libno-such-thing.so.7: "));
    assert_false(late_load("libm.so.6", (const char *[]){"cos", "no_such"}, &call, 2, &e));
    assert_string_equal(e.msg, "libm.so.6 has no function no_such; expected a newer one");
    assert_true(late_load("libc.so.6", (const char *[]){"strlen"}, &call, 1, &e));
    assert_int_equal(call.length("five!"), 5);
}

/* A full disk, and a pipe that takes a part of the bytes before its reader closes it. */
static void test_a_write_that_fails_says_so(void **state)
{
    (void)state;
    static const char bytes[1 << 17];
    int full = open("/dev/full", O_WRONLY | O_CLOEXEC), end[2];
    assert_true(full >= 0);
    assert_false(write_fully(full, bytes, 1));
    assert_int_equal(errno, ENOSPC);
    close(full);
    assert_int_equal(pipe2(end, O_NONBLOCK | O_CLOEXEC), 0);
    assert_true(write_fully(end[1], bytes, 1000));
    assert_false(write_fully(end[1], bytes, sizeof bytes)); /* more than a pipe holds */
    assert_int_equal(errno, EAGAIN);
    signal(SIGPIPE, SIG_IGN);
    close(end[0]);
    assert_false(write_fully(end[1], bytes, 1));
    assert_int_equal(errno, EPIPE);
    signal(SIGPIPE, SIG_DFL);
    close(end[1]);
}

static void assert_sha256(const char *text, size_t times, const char *want)
{
    struct sha256 s;
    char hex[65];
    sha256_init(&s);
    for (size_t i = 0; i < times; i++)
        sha256_add(&s, text, strlen(text));
    sha256_end_hex(&s, hex);
    assert_string_equal(hex, want);
}

/* The examples of FIPS 180-2. */
static void test_sha256(void **state)
{
    (void)state;
    assert_sha256("", 1, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    assert_sha256("abc", 1, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    assert_sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 1,
                  "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    assert_sha256("aaaaa", 200000,
                  "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

/* The form in C, and the other one where the processor has it. */
static void test_sha256_has_two_forms(void **state)
{
    (void)state;
    sha256_blocks_fn *own = sha256_blocks_cpu();
    uint8_t abc[64] = {'a', 'b', 'c', 0x80, [63] = 24};
    uint32_t a[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                     0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19}, b[8];
    sha256_blocks_c(a, abc, 1);
    assert_int_equal(a[0], 0xba7816bf);
    assert_int_equal(a[7], 0xf20015ad);
    uint64_t bytes[5 * 8], rng = 5;
    for (int i = 0; own && i < 200; i++) {
        for (size_t k = 0; k < 40; k++)
            bytes[k] = rng = mix64(rng);
        memcpy(b, a, sizeof a);
        sha256_blocks_c(a, (const uint8_t *)bytes, (size_t)(i % 6));
        own(b, (const uint8_t *)bytes, (size_t)(i % 6));
        assert_memory_equal(a, b, sizeof a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_a_fifo_is_refused_at_once),
        TEST(test_devices_and_folders_are_refused),
        TEST(test_a_regular_file_is_read_whole),
        TEST(test_a_file_that_is_too_large_is_refused_before_it_is_read),
        cmocka_unit_test(test_numbers_are_ints_or_refused),
        cmocka_unit_test(test_an_address_is_two_numbers_with_a_full_stop),
        cmocka_unit_test(test_a_write_that_fails_says_so),
        cmocka_unit_test(test_sha256),
        cmocka_unit_test(test_sha256_has_two_forms),
        cmocka_unit_test(test_a_library_without_a_function_is_one_line),
    };
    return cmocka_run_group_tests_name("files", tests, NULL, NULL);
}
