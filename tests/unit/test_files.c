/* Files from outside: only a regular file is read, and nothing else is ever waited for. */
#include "kernels/base.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char dir[64], path[96];

static int begin(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/aerie-files-XXXXXX");
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/file", dir);
    alarm(200); /* a test that waits for the other end of a FIFO dies here */
    return 0;
}

static int end(void **state)
{
    (void)state;
    alarm(0);
    unlink(path);
    return rmdir(dir);
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
    refused("/proc/self/maps", "is larger than 1000 bytes"); /* a size of 0, and much to read */
    assert_false(buf_read_file(&b, path, 8, &e));
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_a_fifo_is_refused_at_once),
        TEST(test_devices_and_folders_are_refused),
        TEST(test_a_regular_file_is_read_whole),
    };
    return cmocka_run_group_tests_name("files", tests, NULL, NULL);
}
