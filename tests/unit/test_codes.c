/* test_codes.c - which GPU code a build has for a GPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "kernels/base.h"
#include "kernels/cuda/codes.h"

#define DIST "120 80 90+ptx 90a" /* what `make CUDA=1` builds */

static void test_choice(void **unused)
{
    (void)unused;
    static const struct {
        const char *codes;
        int major, minor, compute; /* 0: none */
        bool specific, ptx;
    } t[] = {
        {DIST, 8, 0, 80, false, false},
        {DIST, 8, 6, 80, false, false},
        {DIST, 8, 9, 80, false, false},
        {DIST, 9, 0, 90, true, false},
        {DIST, 10, 0, 90, false, true},
        {DIST, 10, 3, 90, false, true},
        {DIST, 12, 0, 120, false, false},
        {DIST, 12, 1, 120, false, false},
        {DIST, 13, 0, 90, false, true},
        {"90a", 9, 0, 90, true, false},
        {"90a", 8, 9, 0, false, false},
        {"90a", 10, 0, 0, false, false},
        {"90a+ptx", 10, 0, 0, false, false},
        {"89", 8, 6, 0, false, false},
        {"80 86", 8, 9, 86, false, false},
        {"86 80", 8, 9, 86, false, false},
        {"80+ptx 90+ptx", 12, 0, 90, false, true},
        {"80+ptx 90+ptx", 8, 9, 80, false, true},
        {"80+ptx", 9, 0, 80, false, true},
        {"90 90a", 9, 0, 90, true, false},
        {"", 9, 0, 0, false, false},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct cuda_code c = {0};
        bool found = cuda_find_code(t[i].codes, t[i].major, t[i].minor, &c);
        if (found != (t[i].compute != 0) || c.compute != t[i].compute ||
            c.specific != t[i].specific || c.ptx != t[i].ptx)
            fail_msg("%d.%d of \"%s\": %s%d%s%s", t[i].major, t[i].minor, t[i].codes,
                     found ? "" : "nothing, ", c.compute, c.specific ? "a" : "",
                     c.ptx ? "+ptx" : "");
    }
}

static void test_driver(void **unused)
{
    (void)unused;
    static const struct {
        int driver, runtime;
        bool code, ptx; /* which of them runs */
    } t[] = {
        {12040, 13000, false, false}, {12040, 12080, true, false}, {12080, 12080, true, true},
        {13000, 12080, true, true},   {13000, 13000, true, true},  {11080, 12000, false, false},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        assert_int_equal(cuda_driver_runs(t[i].driver, t[i].runtime, false), t[i].code);
        assert_int_equal(cuda_driver_runs(t[i].driver, t[i].runtime, true), t[i].ptx);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_choice),
        cmocka_unit_test(test_driver),
    };
    return cmocka_run_group_tests_name("codes", tests, NULL, NULL);
}
