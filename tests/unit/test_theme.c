/* test_theme.c - that every style can be read (repl/tui/theme.c): contrasts of the real palettes,
 * and how the background is found. */
#include "repl/tui/theme.h"

#include <setjmp.h>
#include <cmocka.h>

static const int depths[] = {256, 16, 8};

/* xterm's value of a colour number, 0xRRGGBB: exact from 16 on; terminals vary below. */
static uint32_t xterm_rgb(int color)
{
    static const uint32_t basic[16] = {
        0x000000, 0xCD0000, 0x00CD00, 0xCDCD00, 0x0000EE, 0xCD00CD, 0x00CDCD, 0xE5E5E5,
        0x7F7F7F, 0xFF0000, 0x00FF00, 0xFFFF00, 0x5C5CFF, 0xFF00FF, 0x00FFFF, 0xFFFFFF,
    };
    static const uint32_t cube[6] = {0, 95, 135, 175, 215, 255};
    CHECK(color >= 0 && color < 256);
    if (color < 16)
        return basic[color];
    if (color >= 232)
        return (uint32_t)(8 + 10 * (color - 232)) * 0x010101;
    color -= 16;
    return cube[color / 36] << 16 | cube[color / 6 % 6] << 8 | cube[color % 6];
}

/* Text on a background: 4.5 : 1 at least. */
static void assert_readable(struct look l, uint32_t ground, int colors, int style)
{
    if (l.fg < 0) /* the terminal's own text on its own background */
        return;
    assert_true(l.fg < colors && l.bg < colors);
    double c = theme_contrast(xterm_rgb(l.fg), l.bg < 0 ? ground : xterm_rgb(l.bg));
    if (c < 4.5)
        fail_msg("style %d in %d colours: colour %d has a contrast of %.2f", style, colors, l.fg,
                 c);
}

static void test_every_style_can_be_read(void **state)
{
    (void)state;
    /* backgrounds that people use; in few colours the values of black and white are known only */
    static const uint32_t dark[] = {0x000000, 0x1E1E1E}, light[] = {0xFFFFFF, 0xEEEEEE};
    for (int st = 0; st < N_STYLES; st++)
        for (int d = 0; d < 3; d++)
            for (int ground = 0; ground < (depths[d] == 256 ? 2 : 1); ground++)
                for (int popup = 0; popup < 2; popup++) {
                    assert_readable(theme_look(THEME_DARK, depths[d], st, popup), dark[ground],
                                    depths[d], st);
                    assert_readable(theme_look(THEME_LIGHT, depths[d], st, popup), light[ground],
                                    depths[d], st);
                }
}

static void test_a_popup_has_its_own_background(void **state)
{
    (void)state;
    for (int t = THEME_DARK; t <= THEME_LIGHT; t++)
        for (int d = 0; d < 3; d++)
            for (int st = 0; st < N_STYLES; st++) {
                assert_int_equal(theme_look(t, depths[d], st, false).bg, -1);
                assert_true(theme_look(t, depths[d], st, true).bg >= 0);
                assert_true(theme_look(t, depths[d], st, true).fg >= 0);
            }
}

/* Without colours attributes remain, and what matters differs from plain text in them. */
static void test_without_colours(void **state)
{
    (void)state;
    static const enum style loud[] = {ST_BAD, ST_WARN, ST_USER, ST_KEY, ST_HEAD, ST_ESCAPE};
    for (int st = 0; st < N_STYLES; st++)
        for (int popup = 0; popup < 2; popup++) {
            struct look l = theme_look(THEME_DARK, 0, st, popup);
            assert_true(l.fg == -1 && l.bg == -1);
        }
    for (size_t i = 0; i < sizeof loud / sizeof *loud; i++)
        assert_true(theme_look(THEME_LIGHT, 0, loud[i], false).attr != 0);
}

static void test_contrast_is_the_standards(void **state)
{
    (void)state;
    assert_true(theme_contrast(0, 0xFFFFFF) > 20.99 && theme_contrast(0, 0xFFFFFF) < 21.01);
    assert_true(theme_contrast(0x777777, 0xFFFFFF) > 4.47 && theme_contrast(0x777777, 0xFFFFFF) <
                4.49);
    assert_true(theme_contrast(0x123456, 0x123456) == 1);
    assert_int_equal(xterm_rgb(16), 0x000000);
    assert_int_equal(xterm_rgb(67), 0x5F87AF);
    assert_int_equal(xterm_rgb(231), 0xFFFFFF);
    assert_int_equal(xterm_rgb(255), 0xEEEEEE);
}

static void test_the_background_is_found(void **state)
{
    (void)state;
    assert_int_equal(theme_of_variable("15;0"), THEME_DARK);
    assert_int_equal(theme_of_variable("0;15"), THEME_LIGHT);
    assert_int_equal(theme_of_variable("0;default;15"), THEME_LIGHT);
    assert_int_equal(theme_of_variable("0;7"), THEME_LIGHT);
    assert_int_equal(theme_of_variable("15;8"), THEME_DARK);
    assert_int_equal(theme_of_variable("default;default"), THEME_AUTO);
    assert_int_equal(theme_of_variable("0;99"), THEME_AUTO);
    assert_int_equal(theme_of_variable(";"), THEME_AUTO);
    assert_int_equal(theme_of_variable("x"), THEME_AUTO);
    assert_int_equal(theme_of_variable(NULL), THEME_AUTO);
    assert_int_equal(theme_of_color(0x1E1E1E), THEME_DARK);
    assert_int_equal(theme_of_color(0x002B36), THEME_DARK);
    assert_int_equal(theme_of_color(0xFDF6E3), THEME_LIGHT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_style_can_be_read),
        cmocka_unit_test(test_a_popup_has_its_own_background),
        cmocka_unit_test(test_without_colours),
        cmocka_unit_test(test_contrast_is_the_standards),
        cmocka_unit_test(test_the_background_is_found),
    };
    return cmocka_run_group_tests_name("theme", tests, NULL, NULL);
}
