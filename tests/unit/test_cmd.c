/* Commands without an engine: lookup, words, completion, the table, help, and what plain text and
 * JSON make of hostile bytes. */
#include <setjmp.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "repl/cmd/cmd.h"
#include "repl/cmd/help_text.h"
#include "repl/text/fuzzy.h"
#include "tests/scratch.h"

/* ---- a face that keeps what it is shown ---- */

static struct buf shown, json;

static void keep_sheet(struct app *a, struct sheet *s)
{
    (void)a;
    sheet_to_text(s, false, &shown);
}

static void keep_json(struct app *a, const char *text)
{
    (void)a;
    buf_str(&json, text);
}

static struct app *new_app(bool as_json)
{
    struct app *a = xcalloc(1, sizeof *a);
    a->opt.json = as_json;
    a->face = (struct face){.show = keep_sheet, .json = as_json ? keep_json : NULL};
    buf_clear(&shown);
    buf_clear(&json);
    buf_str(&shown, "");
    buf_str(&json, "");
    return a;
}

static void assert_error(const char *line, enum err_kind kind, const char *part)
{
    struct app *a = new_app(false);
    struct err e = {0};
    assert_false(cmd_run(a, line, &e));
    assert_int_equal(e.kind, kind);
    if (!strstr(e.msg, part))
        fail_msg("/%s says \"%s\", without \"%s\"", line, e.msg, part);
    assert_null(strchr(e.msg, '\n'));
    free(a);
}

/* ---- lookup ---- */

static void test_every_name_and_alias_finds_its_command(void **state)
{
    (void)state;
    for (int i = 0; i < cmd_count(); i++) {
        const struct cmd *c = cmd_at(i);
        assert_ptr_equal(cmd_find(c->name, NULL), c);
        char *names = xstrdup(c->alias ? c->alias : ""), *rest = names;
        for (const char *name; (name = strtok_r(rest, " ", &rest));)
            assert_ptr_equal(cmd_find(name, NULL), c);
        free(names);
        for (int j = 0; j < i; j++)
            assert_string_not_equal(cmd_at(j)->name, c->name);
        assert_non_null(c->run);
        assert_true(strlen(c->help) > 10 && c->help[strlen(c->help) - 1] != '.');
        assert_int_equal(c->example[0], '/');
        assert_int_equal(strncmp(c->example + 1, c->name, strlen(c->name)), 0);
    }
    assert_string_equal(cmd_find("?", NULL)->name, "help");
}

/* The property: a beginning finds a command exactly when it is the only one that begins so. */
static void test_an_abbreviation_works_exactly_when_it_is_unambiguous(void **state)
{
    (void)state;
    for (int i = 0; i < cmd_count(); i++)
        for (size_t n = 1; n <= strlen(cmd_at(i)->name); n++) {
            char part[32];
            int fits = 0, whole = 0;
            snprintf(part, sizeof part, "%.*s", (int)n, cmd_at(i)->name);
            for (int j = 0; j < cmd_count(); j++) {
                fits += strncmp(cmd_at(j)->name, part, n) == 0;
                whole += strcmp(cmd_at(j)->name, part) == 0;
            }
            struct err e = {0};
            const struct cmd *c = cmd_find(part, &e);
            if (whole || fits == 1)
                assert_non_null(c);
            else
                assert_null(c);
            if (!c)
                assert_non_null(strstr(e.msg, " could be /"));
        }
}

static void test_page_is_itself_although_pages_begins_with_it(void **state)
{
    (void)state;
    assert_string_equal(cmd_find("page", NULL)->name, "page");
    assert_error("pa", ERR_USAGE, "/pa could be /pages or /page");
}

static void test_an_unknown_command_names_its_neighbours(void **state)
{
    (void)state;
    assert_error("tere", ERR_USAGE, "did you mean /tree");
    assert_error("undp", ERR_USAGE, "/undo");
    assert_error("xyzzyx", ERR_USAGE, "/help lists all");
    assert_error("", ERR_USAGE, "/ begins a command");
    assert_error("SET", ERR_USAGE, "there is no command /SET");
    assert_error("temperature 0.5", ERR_USAGE, "temperature is a setting: /set temperature VALUE");
    assert_error("tint", ERR_USAGE, "tint is a setting: /set tint VALUE");
    char name[200];
    memset(name, 'q', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    assert_error(name, ERR_USAGE, "there is no command /qqq");
}

static void test_a_near_name_is_one_edit_away(void **state)
{
    (void)state;
    static const char *const typo[] = {"regne", "reegn", "rgen", "regem", "regenn"};
    for (size_t i = 0; i < sizeof typo / sizeof *typo; i++) {
        struct err e = {0};
        assert_null(cmd_find(typo[i], &e));
        assert_non_null(strstr(e.msg, "/regen"));
    }
}

/* ---- words ---- */

static void assert_words(const char *text, int n, ...)
{
    char *word[8];
    struct err e = {0};
    int got = words_split(text, word, 8, &e);
    assert_int_equal(got, n);
    va_list ap;
    va_start(ap, n);
    for (int i = 0; i < n; i++)
        assert_string_equal(word[i], va_arg(ap, const char *));
    va_end(ap);
    words_free(word, max_int(got, 0));
}

static void test_words_are_split_and_unquoted(void **state)
{
    (void)state;
    assert_words("", 0);
    assert_words("  \t ", 0);
    assert_words("a b", 2, "a", "b");
    assert_words(" a\tb ", 2, "a", "b");
    assert_words("\"a b\" c", 2, "a b", "c");
    assert_words("\"\"", 1, "");
    assert_words("x\"y z\"w", 1, "xy zw");
    assert_words("\\\"a\\\"", 1, "\"a\"");
    assert_words("\"a \\\" b\"", 1, "a \" b");
    assert_words("C:\\dir a\\\\b", 2, "C:\\dir", "a\\b");
    assert_words("don't", 1, "don't");
    assert_words("1 2 3 4 5 6 7 8", 8, "1", "2", "3", "4", "5", "6", "7", "8");
}

static void test_bad_words_are_errors(void **state)
{
    (void)state;
    char *word[8];
    struct err e = {0};
    assert_int_equal(words_split("a \"b c", word, 8, &e), -1);
    assert_non_null(strstr(e.msg, "not closed"));
    assert_int_equal(words_split("1 2 3 4 5 6 7 8 9", word, 8, &e), -1);
    assert_non_null(strstr(e.msg, "at most 8"));
    assert_int_equal(words_split("a\\", word, 8, &e), 1); /* a backslash at the end is itself */
    assert_string_equal(word[0], "a\\");
    words_free(word, 1);
}

static void test_a_step_beyond_an_int_is_not_another_step(void **state)
{
    (void)state;
    static const char *const bad[] = {"4294967297.1", "1.4294967297", "1.2.4294967299",
                                      "4294967297", "1.2.", "1..2", "1.2.3.4", ".", ""};
    struct app *a = new_app(false);
    struct err e = {0};
    int turn = 0, step = 0, third = 0;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(arg_step(a, bad[i], &turn, &step, &third, &e));
    assert_true(arg_step(a, "1.2.3", &turn, &step, &third, &e) && turn == 1 && step == 2 &&
                third == 3);
    assert_true(arg_step(a, "4.5", &turn, &step, &third, &e) && turn == 4 && step == 5 &&
                third == -1);
    assert_false(arg_step(a, "1.2.3", &turn, &step, NULL, &e));
    free(a);
}

static void test_numbers_are_whole_and_in_range(void **state)
{
    (void)state;
    static const char *const bad[] = {"", "x", "1x", "1.5", " 1", "1 ", "0", "11", "-1", "+",
                                      "99999999999999999999999", "0x5", "1e1"};
    struct err e = {0};
    long v = -7;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        bool ok = arg_int(bad[i], "the thing", 1, 10, &v, &e);
        if (ok && strcmp(bad[i], " 1") == 0)
            continue; /* words never begin with a blank */
        assert_false(ok);
        assert_non_null(strstr(e.msg, "the thing is a number from 1 to 10"));
    }
    assert_true(arg_int("10", "the thing", 1, 10, &v, &e));
    assert_int_equal(v, 10);
}

static void test_choices_may_be_cut_short(void **state)
{
    (void)state;
    static const char *const by[] = {"depth", "draft", "turn"};
    struct err e = {0};
    assert_int_equal(arg_choice("turn", "it", by, 3, &e), 2);
    assert_int_equal(arg_choice("t", "it", by, 3, &e), 2);
    assert_int_equal(arg_choice("de", "it", by, 3, &e), 0);
    assert_int_equal(arg_choice("d", "it", by, 3, &e), -1);
    assert_string_equal(e.msg, "it is depth, draft or turn, not \"d\"");
    assert_int_equal(arg_choice("", "it", by, 3, &e), -1);
}

/* ---- commands that need no engine, and errors before one is asked ---- */

static void test_arguments_are_checked_before_anything_is_done(void **state)
{
    (void)state;
    assert_error("help xyzzy of a", ERR_NEGATIVE, "there is no help on \"xyzzy of a\"");
    assert_error("help nosuchthing", ERR_NEGATIVE, "there is no help on \"nosuchthing\"");
    assert_error("help pols", ERR_NEGATIVE, "did you mean ");
    assert_error("read", ERR_USAGE, "/read takes one file");
    assert_error("read /nonexistent/file", ERR_USAGE, "/nonexistent/file");
    assert_error("read \"unclosed", ERR_USAGE, "not closed");
    assert_error("regen", ERR_USAGE, "no reply to generate again");
    assert_error("undo", ERR_USAGE, "no turn to take back");
    assert_error("undo 3", ERR_USAGE, "/undo takes nothing after its name");
    assert_error("search", ERR_USAGE, "/search takes words");
    assert_error("resume", ERR_USAGE, "for example: /resume 12");
    assert_error("fork 3.2", ERR_USAGE, "the turn to fork at is a number");
    assert_error("title", ERR_DB, "needs the log");
    assert_error("title a \"quote", ERR_DB, "needs the log"); /* its text may hold quotes */
    assert_error("export docx", ERR_USAGE, "the format is md or jsonl, not \"docx\"");
    assert_error("export md -", ERR_USAGE, "aerie export");
    assert_error("pages top", ERR_USAGE, "the pool is full, swa or draft, not \"top\"");
    assert_error("page", ERR_USAGE, "/page takes a page number");
    assert_error("page 1 nosuch", ERR_USAGE, "the pool is");
    assert_error("map", ERR_USAGE, "/map takes a position, for example: /map 3071");
    assert_error("tree 1.2.3", ERR_USAGE, "TURN.STEP");
    assert_error("tree 0.1", ERR_USAGE, "TURN.STEP");
    assert_error("tree -1", ERR_USAGE, "TURN.STEP");
    assert_error("accept colour", ERR_USAGE, "the grouping is depth, turn, context, window, "
                                             "page, kind or drafter");
    assert_error("plan a b", ERR_USAGE, "/plan takes at most one mode");
    assert_error("sql", ERR_USAGE, "/sql takes a SELECT");
    assert_error("check x", ERR_USAGE, "/check takes nothing");
}

static void test_help_names_every_command_once_and_fits_80_columns(void **state)
{
    (void)state;
    struct app *a = new_app(false);
    struct err e = {0};
    assert_true(cmd_run(a, "?", &e));
    for (int i = 0; i < cmd_count(); i++) {
        char name[40];
        snprintf(name, sizeof name, "  /%s ", cmd_at(i)->name);
        const char *at = strstr(shown.p, name);
        assert_non_null(at);
        assert_null(strstr(at + 1, name));
        assert_non_null(strstr(shown.p, cmd_at(i)->help));
    }
    for (const char *p = shown.p; *p; p += strcspn(p, "\n") + 1)
        if (strcspn(p, "\n") > 110) /* the longest helps are wrapped by the face */
            fail_msg("too long: %.*s", (int)strcspn(p, "\n"), p);
    free(a);
}

/* What is shown has every paragraph of the text, in lines of at most 79 cells. */
static void assert_has_paragraphs(const char *text)
{
    FREED(sheet_free) struct sheet s = {0};
    FREED(buf_free) struct buf b = {0};
    say_text(&s, ST_TEXT, text);
    FREED(sheet_free) struct sheet w = {0};
    sheet_append_wrapped(&w, &s, 79);
    sheet_to_text(&w, false, &b);
    assert_non_null(strstr(shown.p, b.p));
    for (const char *p = b.p; *p; p += strcspn(p, "\n") + 1)
        assert_in_range(text_width(p, strcspn(p, "\n")), 1, 79);
}

/* A paragraph is one line, which the screen wraps once, at its own width. */
static void test_a_paragraph_of_a_topic_is_one_line(void **state)
{
    (void)state;
    struct app *a = new_app(false);
    struct err e = {0};
    a->face.width = 58;
    assert_true(cmd_run(a, "help swa", &e));
    assert_non_null(strstr(shown.p, "\n/map POS       which slot and page of each pool hold a token, "
                                    "and who sees it\n/pages swa "));
    assert_non_null(strstr(shown.p, " two kinds of layers. Full layers attend to the whole context; "
                                    "sliding layers see the newest W keys only, so "));
    buf_clear(&shown);
    assert_true(cmd_run(a, "help golden", &e)); /* a short line is a paragraph of its own */
    assert_non_null(strstr(shown.p, "\naerie golden DIR [--draft DIR]\nDIR has "));
    free(a);
}

static void test_every_topic_and_setting_has_help(void **state)
{
    (void)state;
    struct app *a = new_app(false);
    struct err e = {0};
    char line[64];
    for (int i = 0; i < help_n_topic; i++) {
        const struct topic *t = &help_topics[i];
        snprintf(line, sizeof line, "help %s", t->name);
        buf_clear(&shown);
        assert_true(cmd_run(a, line, &e));
        assert_has_paragraphs(t->text);
        assert_in_range(strlen(t->title), 10, 60);
        /* keys are of the full screen, a benchmark's figures are of the machine */
        if (!*t->example && strcmp(t->name, "keys") != 0 && strcmp(t->name, "bench") != 0)
            fail_msg("topic %s has no example", t->name);
        if (*t->example)
            assert_non_null(strstr(shown.p, t->example));
    }
    for (int i = 0; i < settings_count(); i++) {
        snprintf(line, sizeof line, "help %s", settings_at(i)->name);
        buf_clear(&shown);
        assert_true(cmd_run(a, line, &e));
        assert_non_null(strstr(shown.p, settings_at(i)->help));
        assert_non_null(strstr(shown.p, settings_at(i)->range));
    }
    buf_clear(&shown);
    assert_true(cmd_run(a, "help /tree", &e));
    assert_non_null(strstr(shown.p, "/tree [T.S]\n"));
    free(a);
}

/* The first word of the n-th answer of a search: a topic, a command, a setting, or "man". */
static bool answers(const char *name, int most)
{
    size_t len = strlen(name);
    for (const char *p = shown.p; *p && most > 0; p += strcspn(p, "\n") + 1) {
        if (*p == ' ')
            continue;
        if (strncmp(p, name, len) == 0 && (p[len] == ' ' || p[len] == '\n'))
            return true;
        most--;
    }
    return false;
}

static void test_help_finds_what_a_question_is_about(void **state)
{
    (void)state;
    static const struct {
        const char *question, *answer;
    } cases[] = {
        {"how do I copy a reply", "/copy"},
        {"why is acceptance low", "acceptance"},
        {"share a session for an issue", "pack"},
        {"which page holds token 90", "/map"},
        {"does a model fit my GPU", "fit"},
        {"change one thing in the next step", "what-if"},
        {"tools and json schemas", "serve"},
        {"step through a reply", "stepping"},
        {"deleting old sessions", "sessions"},
        {"compare two runs", "compare"},
        {"what is a sliding window?", "swa"},
        {"does my server mix up requests", "probe"},
        {"acceptance at the window", "/accept"},
        {"edit my last question", "edit"},
        {"how many tokens were reused", "reuse"},
        {"download a model", "pull"},
        {"log probabilities at decode and in a prompt", "kl"},
        {"chat with vllm", "remote"},
        {"quantized gguf", "model"},
        {"historical faults", "faults"},
        {"are page tables of another engine right", "check"},
        {"same replies with two drafters", "parity"},
        {"environment variable HF_TOKEN", "pull"},
        {"tmux clipboard", "copy"},
        {"how do I set the sampling temperature", "temperature"},
        {"how to change temperature", "temperature"},
        {"repetition penalty", "repetition_penalty"},
        {"top-p", "top_p"},
        {"when is the context full", "context"},
        {"how do I paste", "input"},
        {"screen reader", "input"},
    };
    struct app *a = new_app(false);
    struct err e = {0};
    char line[128];
    int first = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(line, sizeof line, "help %s", cases[i].question);
        buf_clear(&shown);
        assert_true(cmd_run(a, line, &e));
        if (!answers(cases[i].answer, 3))
            fail_msg("%s: %s is not among\n%s", cases[i].question, cases[i].answer, shown.p);
        first += answers(cases[i].answer, 1);
    }
    assert_true(first >= 20);
    free(a);
}

static void test_help_searches_the_manual_and_shows_the_line(void **state)
{
    (void)state;
    struct app *a = new_app(false);
    struct err e = {0};
    assert_true(cmd_run(a, "help what's \"prompt_logprobs\"?", &e)); /* quotes are no syntax */
    assert_non_null(strstr(shown.p, "man aerie       COMMANDS: kl"));
    buf_clear(&shown);
    assert_true(cmd_run(a, "help allocation of huge dangling cgroup landlock", &e));
    assert_non_null(strstr(shown.p, "Landlock"));
    free(a);
    a = new_app(true);
    assert_true(cmd_run(a, "help why is acceptance low", &e));
    assert_non_null(strstr(json.p, "\"found\":[{\"kind\":\"topic\",\"name\":\"acceptance\""));
    free(a);
}

static void test_bye_quits(void **state)
{
    (void)state;
    struct app *a = new_app(false);
    assert_true(cmd_run(a, "bye", NULL));
    assert_true(a->quit);
    free(a);
}

static void test_read_attaches_a_file_to_the_next_message(void **state)
{
    (void)state;
    char *dir = scratch_folder(), *path = xasprintf("%s/notes.txt", dir);
    char *line = xasprintf("read %s", path);
    FILE *f = fopen(path, "w");
    fputs("one\ntwo", f);
    fclose(f);
    struct app *a = new_app(false);
    struct err e = {0};
    assert_true(cmd_run(a, line, &e));
    assert_int_equal(app_attached(a), 1);
    assert_string_equal(a->attached.file[0].text.p, "one\ntwo");
    assert_string_equal(a->attached.file[0].name, path);
    f = fopen(path, "w");
    fwrite("a\0b", 1, 3, f);
    fclose(f);
    assert_false(cmd_run(a, line, &e));
    assert_non_null(strstr(e.msg, "NUL byte at 1"));
    assert_int_equal(app_attached(a), 1); /* the bad file left nothing */
    f = fopen(path, "w");
    fclose(f);
    assert_false(cmd_run(a, line, &e));
    assert_non_null(strstr(e.msg, "is empty"));
    FREE(path, line);
    scratch_remove(dir);
    attached_free(&a->attached);
    free(a);
}

/* An app with two files attached. */
static struct app *with_files(void)
{
    struct app *a = new_app(false);
    static const char *const name[] = {"notes.txt", "b\033.c"};
    for (int i = 0; i < 2; i++) {
        struct buf text = {0};
        for (int k = 0; k < (i ? 1 : 1234); k++)
            buf_char(&text, 'x');
        app_attach(a, name[i], &text);
        assert_null(text.p);
    }
    return a;
}

static void test_attachments_are_named_and_dropped(void **state)
{
    (void)state;
    struct err e = {0};
    struct buf names = {0};
    struct app *a = with_files();
    app_attached_text(a, &names);
    assert_string_equal(names.p, "notes.txt 1.2 kB, b\033.c 1 B");
    assert_false(cmd_run(a, "drop other", &e));
    assert_non_null(strstr(e.msg, "other is not attached; the next message has notes.txt"));
    assert_true(cmd_run(a, "drop notes.txt", &e));
    assert_int_equal(app_attached(a), 1);
    assert_string_equal(a->attached.file[0].name, "b\033.c");
    assert_true(cmd_run(a, "drop", &e));
    assert_int_equal(app_attached(a), 0);
    assert_non_null(strstr(shown.p, "not in the next message any more: b<U+001B>.c 1 B"));
    assert_false(cmd_run(a, "drop", &e));
    assert_non_null(strstr(e.msg, "no file is attached"));
    buf_free(&names);
    free(a);
}

/* Whatever changes the session: what was attached in another one is not sent in this one. */
static void test_attachments_stay_in_their_session(void **state)
{
    (void)state;
    struct app *a = with_files();
    struct err e = {0};
    snprintf(a->session, sizeof a->session, "another");
    assert_int_equal(app_attached(a), 0);
    assert_non_null(strstr(shown.p, "attached in another session, so not in the next message: "
                                    "notes.txt"));
    assert_false(app_send(a, "", &e)); /* nothing is left that could be sent */
    assert_non_null(strstr(e.msg, "empty"));
    buf_clear(&shown);
    assert_int_equal(app_attached(a), 0); /* said once */
    assert_int_equal(shown.n, 0);
    free(a);
}

static void test_the_theme_is_a_setting_of_the_screen(void **state)
{
    (void)state;
    struct app *a = new_app(false);
    struct err e = {0};
    assert_true(cmd_run(a, "set theme light", &e));
    assert_int_equal(a->opt.theme, 2);
    assert_true(cmd_run(a, "set theme=auto", &e));
    assert_int_equal(a->opt.theme, 0);
    assert_true(cmd_run(a, "set theme", &e));
    assert_non_null(strstr(shown.p, "auto | dark | light"));
    assert_false(cmd_run(a, "set theme blue", &e));
    assert_non_null(strstr(e.msg, "the theme is auto, dark or light, not \"blue\""));
    free(a);
}

/* ---- JSON ---- */

static json_t *answer(const char *line, bool expect)
{
    struct app *a = new_app(true);
    struct err e = {0};
    assert_int_equal(cmd_run(a, line, &e), expect);
    assert_int_equal(shown.n, 0); /* one or the other */
    json_error_t je;
    json_t *j = json_loads(json.p, JSON_REJECT_DUPLICATES, &je);
    if (!j)
        fail_msg("/%s: %s in %s", line, je.text, json.p);
    free(a);
    return j;
}

static void test_a_format_names_the_members_of_an_object(void **state)
{
    (void)state;
    struct buf b = {0};
    const char *volatile none = NULL;
    jput_record(&b, "step %d{turn}.%*d{step} %d %5.1f%%{no}%6.2f{rate} %s{name} %s{none}", 9, 4,
                -214, 7, 1.0, 2.0 / 3, "a \"b\"", none);
    jput_record(&b, "%d{yes?}%d{no?}%d{page:0}%d{slot:0}%ld{far:-1}%lu{big}%zu{bytes}%u{u}%lld{ll}",
                true, false, 0, 7, -1L, 1ul << 40, sizeof b.n, 4000000000u, -5ll);
    jput_record(&b, "%.*s{part}%016lx{digest}%g{nan}%c{c}", 2, "abc", 0xABCul, (double)NAN, 'x');
    assert_string_equal(b.p, "{\"turn\":9,\"step\":-214,\"rate\":0.666666667,\"name\":\"a "
                             "\\\"b\\\"\",\"none\":null},{\"yes\":true,\"no\":false,\"page\":null,\"slot\":7,\"far\":null,\"big\":1099511627776,"
                             "\"bytes\":8,\"u\":4000000000,\"ll\":-5},"
                             "{\"part\":\"ab\",\"digest\":\"0000000000000abc\",\"nan\":null,\"c\":120}");
    buf_free(&b);
}

/* The same calls for people and for programs. */
static void write_facts(const struct printer *to)
{
    print_note(to, ST_HEAD, "%6s", "STEPS");
    print_open(to, NULL, '[');
    print_line(to, ST_TEXT, "\f%s{kind}\f%4d{step} %-6s{phase}|%5.1f{ms}\f%d{ok?}%d{page:0}",
               "spec", 3, "draft", 2.25, true, 0);
    print_line(to, ST_TEXT, "\f%d{hidden}", 7);
    print_open(to, NULL, '{');
    print_add(to, ST_KEY, "%.*s{name} %*d%%", 2, "abc", 4, 50);
    print_end(to);
    print_facts(to, ST_LABEL, "p\v%5.2f{p} %3d{page:-1} %3d{slot:-1}", (double)NAN, -1, 7);
    print_int(to, "rows", 4);
    print_none(to, "draft");
    print_body(to, ST_TEXT, "reply", &(struct buf){.p = (char[]){"a\nb"}, .n = 3});
    print_close(to, '}');
    print_close(to, ']');
}

static void test_text_and_json_come_from_one_format(void **state)
{
    (void)state;
    struct buf js = {0}, text = {0};
    struct sheet out = {.ascii = true};
    write_facts(&(struct printer){&out, NULL});
    sheet_to_text(&out, false, &text);
    assert_string_equal(text.p, " STEPS\n   3 draft |  2.2\nab   50%\np    -   -   7\na\nb\n");
    const enum style styles[] = {ST_LABEL, ST_DIM, ST_TEXT, ST_DIM, ST_TEXT}; /* behind "\v" */
    assert_int_equal(out.row[3].n_span, 5);
    for (int i = 0; i < 5; i++)
        assert_int_equal(out.row[3].span[i].style, styles[i]);
    write_facts(&(struct printer){NULL, &js});
    assert_string_equal(js.p,
                        "[{\"kind\":\"spec\",\"step\":3,\"phase\":\"draft\",\"ms\":2.25,\"ok\":true,\"page\":null},"
                                "{\"hidden\":7},{\"name\":\"ab\",\"p\":null,\"page\":null,\"slot\":7,"
                                "\"rows\":4,\"draft\":null,\"reply\":\"a\\nb\"}]");
    sheet_free(&out);
    buf_free(&js);
    buf_free(&text);
}

static void test_answers_are_one_json_object(void **state)
{
    (void)state;
    json_t *j = answer("help", true);
    assert_string_equal(json_string_value(json_object_get(j, "command")), "help");
    json_t *list = json_object_get(json_object_get(j, "result"), "commands");
    assert_int_equal(json_array_size(list), cmd_count());
    json_decref(j);

    j = answer("help tree", true);
    assert_string_equal(json_string_value(json_object_get(json_object_get(j, "result"), "args")),
                        "[T.S]");
    json_decref(j);

    j = answer("nosuch", false);
    assert_int_equal(json_integer_value(json_object_get(j, "code")), ERR_USAGE);
    assert_non_null(strstr(json_string_value(json_object_get(j, "error")), "/nosuch"));
    json_decref(j);

    j = answer("map \"x", false);
    assert_string_equal(json_string_value(json_object_get(j, "command")), "map");
    json_decref(j);
}

static void test_json_strings_are_ascii_and_come_back(void **state)
{
    (void)state;
    static const char text[] = "\"q\" \\ / \b\f\n\r\t\x01\x1b[31m\x7f é € 😀 \u202e \xc2\x9b";
    struct buf b = {0};
    jput_str(&b, text);
    for (size_t i = 0; i < b.n; i++)
        assert_true(b.p[i] >= 0x20 && b.p[i] < 0x7F);
    json_t *j = json_loads(b.p, JSON_DECODE_ANY, NULL);
    assert_non_null(j);
    assert_string_equal(json_string_value(j), text);
    json_decref(j);
    buf_free(&b);
}

/* Whatever the bytes: the result is ASCII that a strict reader takes. */
static void test_json_strings_take_any_bytes(void **state)
{
    (void)state;
    uint64_t seed = 1;
    for (int round = 0; round < 3000; round++) {
        char bytes[24];
        size_t n = 0;
        for (; n < sizeof bytes; n++) {
            seed = mix64(seed);
            bytes[n] = (char)(round % 3 ? seed : 0x80 | seed);
        }
        struct buf b = {0};
        jput_strn(&b, bytes, n);
        for (size_t i = 0; i < b.n; i++)
            assert_true(b.p[i] >= 0x20 && b.p[i] < 0x7F);
        json_t *j = json_loads(b.p, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
        assert_non_null(j);
        json_decref(j);
        buf_free(&b);
    }
}

static void test_json_commas_and_numbers(void **state)
{
    (void)state;
    struct buf b = {0};
    jput_open(&b, '{');
    jput_kint(&b, "a", -3);
    jput_key(&b, "b");
    jput_open(&b, '[');
    jput_close(&b, ']');
    jput_key(&b, "c");
    jput_open(&b, '[');
    jput_real(&b, 0.5);
    jput_real(&b, 1.0 / 0.0);
    jput_null(&b);
    jput_open(&b, '{');
    jput_close(&b, '}');
    jput_bool(&b, true);
    jput_raw(&b, "[1]");
    jput_close(&b, ']');
    jput_kstr(&b, "d", NULL);
    jput_kstr(&b, "e", ":");
    jput_kstr(&b, "f", "[");
    jput_close(&b, '}');
    assert_string_equal(b.p, "{\"a\":-3,\"b\":[],\"c\":[0.5,null,null,{},true,[1]],\"d\":null,"
                        "\"e\":\":\",\"f\":\"[\"}");
    buf_free(&b);
}

/* ---- completion ---- */

static void collect(void *arg, const char *s, const char *help)
{
    assert_true(!help || (*help && !strchr(help, '\n')));
    buf_printf(arg, "%s ", s);
}

static void assert_completes(const char *line, const char *expect)
{
    struct buf got = {0};
    struct app *a = new_app(false);
    buf_str(&got, "");
    cmd_complete(a, line, collect, &got);
    assert_string_equal(got.p, expect);
    buf_free(&got);
    free(a);
}

static void test_attached_files_and_presets_complete(void **state)
{
    (void)state;
    static struct attachment file[2] = {{.name = "notes.txt"}, {.name = "other.c"}};
    struct buf got = {0};
    struct app *a = new_app(false);
    a->attached.file = file;
    a->attached.n = 2;
    buf_str(&got, "");
    cmd_complete(a, "/drop no", collect, &got);
    cmd_complete(a, "/preset sav", collect, &got);
    assert_string_equal(got.p, "notes.txt save ");
    buf_free(&got);
    free(a);
}

static int n_help;

static void count_help(void *arg, const char *s, const char *help)
{
    (void)arg, (void)s;
    n_help += help != NULL;
}

static void test_completion_tells_what_candidates_do(void **state)
{
    (void)state;
    static const char *const lines[] = {"/", "/set ", "/help ", "/bug "};
    struct app *a = new_app(false);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        struct buf got = {0};
        int n = 0;
        n_help = 0;
        buf_str(&got, "");
        cmd_complete(a, lines[i], collect, &got);
        cmd_complete(a, lines[i], count_help, NULL);
        for (const char *p = got.p; *p; p++)
            n += *p == ' ';
        assert_true(n > 5);
        assert_int_equal(n_help, n);
        buf_free(&got);
    }
    free(a);
}

static void test_completion(void **state)
{
    (void)state;
    assert_completes("/tre", "/tree ");
    assert_completes("/tri", "/triage ");
    assert_completes("/p", "/preset /private /pages /page /pool /plan /phase ");
    assert_completes("/pages ", "full swa draft ");
    assert_completes("/pages s", "swa ");
    assert_completes("/page 3 d", "draft ");
    assert_completes("/accept t", "turn ");
    assert_completes("/export j", "jsonl ");
    assert_completes("/set draft.", "draft.steps draft.topk draft.nodes draft.shape draft.window ");
    assert_completes("/accept turn ", ""); /* a second word that the command does not take */
    assert_completes("/page ", "");
    assert_completes("/at ", "live ");
    assert_completes("/top ", "");
    assert_completes("/set spec ", "on off ");
    assert_completes("/set theme d", "dark ");
    assert_completes("/set check st", "strict ");
    assert_completes("/set temperature ", "");
    assert_completes("/set draft.shape ", "");
    assert_completes("/set spec on ", "");
    assert_completes("/bug 24617 ", "on off ");
    assert_completes("/layout debug ", "");
    assert_completes("/help tree ", "");
    assert_completes("/se dra", ""); /* ambiguous: nothing to complete for */
    assert_completes("/help exi", "exit ");
    assert_completes("/set th", "theme think ");
    assert_completes("/nosuch x", "");
    assert_completes("//x", "");
    assert_completes("hello", "");
    assert_completes("/undo ", "");
}

/* ---- names by some of their letters ---- */

/* The name, of those with blanks between them, that fits a query best; the first of equals. */
static void assert_best(const char *query, const char *names, const char *expect)
{
    char *list = xstrdup(names), *best = NULL;
    int most = -1;
    for (char *name = strtok(list, " "); name; name = strtok(NULL, " ")) {
        int score = fuzzy_match(query, name, NULL, NULL);
        if (score > most) {
            most = score;
            best = name;
        }
    }
    assert_string_equal(best ? best : "", expect);
    free(list);
}

static void test_letters_of_a_name(void **state)
{
    (void)state;
    bool hit[FUZZY_NAME];
    struct buf commands = {0};
    for (int i = 0; i < cmd_count(); i++)
        buf_printf(&commands, "/%s ", cmd_at(i)->name);
    for (int i = 0; i < cmd_count(); i++) { /* a whole name finds itself before all others */
        char *name = xasprintf("/%s", cmd_at(i)->name);
        assert_best(name + 1, commands.p, name);
        free(name);
    }
    assert_best("wif", commands.p, "/what-if");
    assert_best("GAU", commands.p, "/gauges");
    assert_best("brk", commands.p, "/break");
    assert_best("ln", "all_long draft.shape layer_norm", "layer_norm"); /* words' beginnings */
    assert_best("page", "/paragraphs /pages /page", "/page"); /* of equals the shorter */
    assert_best("eert", commands.p, "");
    assert_best("", "b a", "b");
    assert_true(fuzzy_match("pg", "/page", NULL, hit) > 0);
    assert_true(!hit[0] && hit[1] && !hit[2] && hit[3] && !hit[4]);
    assert_int_equal(fuzzy_match("life", "/page", "tells the death of one page", NULL), -1);
    assert_true(fuzzy_match("life pg", "/page", "tells the life of one page", NULL) > 0);
    assert_true(fuzzy_match("page", "/page", "x", NULL) > fuzzy_match("page", "/x", "page", NULL));
    for (int n = 0; n < 400; n++) { /* longer than what is compared */
        memset(commands.p, 'a', (size_t)n);
        commands.p[n] = '\0';
        assert_true((fuzzy_match(commands.p, "aaa", NULL, hit) >= 0) == (n <= 3));
        assert_true((fuzzy_match("aaa", commands.p, NULL, hit) >= 0) == (n >= 3));
    }
    buf_free(&commands);
}

static void test_completion_offers_files(void **state)
{
    (void)state;
    char *dir = scratch_folder(), *path = xasprintf("%s/notes.txt", dir);
    char *line = xasprintf("/read %s/no", dir), *expect = xasprintf("%s ", path);
    fclose(fopen(path, "w"));
    assert_completes(line, expect);
    FREE(path, line, expect);
    scratch_remove(dir);
}

/* ---- the table as text ---- */

static void test_the_table_as_text(void **state)
{
    (void)state;
    struct buf md = {0}, js = {0};
    cmd_table_markdown(&md);
    int rows = 0;
    for (const char *p = md.p; *p; p += strcspn(p, "\n") + 1) {
        int bars = 0;
        for (const char *q = p; *q != '\n'; q++)
            bars += *q == '|' && (q == p || q[-1] != '\\');
        assert_int_equal(bars, 4);
        rows++;
    }
    assert_int_equal(rows, cmd_count() + 2);
    assert_non_null(strstr(md.p,
                           "| `/pages [full\\|swa\\|draft]` | draws the page map of a pool |"));
    cmd_table(NULL, &(struct printer){NULL, &js});
    json_t *j = json_loads(js.p, 0, NULL);
    assert_int_equal(json_array_size(j), cmd_count());
    assert_string_equal(json_string_value(json_object_get(json_array_get(j, 0), "name")), "/help");
    json_decref(j);
    buf_free(&md);
    buf_free(&js);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_name_and_alias_finds_its_command),
        cmocka_unit_test(test_an_abbreviation_works_exactly_when_it_is_unambiguous),
        cmocka_unit_test(test_page_is_itself_although_pages_begins_with_it),
        cmocka_unit_test(test_an_unknown_command_names_its_neighbours),
        cmocka_unit_test(test_a_near_name_is_one_edit_away),
        cmocka_unit_test(test_words_are_split_and_unquoted),
        cmocka_unit_test(test_bad_words_are_errors),
        cmocka_unit_test(test_numbers_are_whole_and_in_range),
        cmocka_unit_test(test_a_step_beyond_an_int_is_not_another_step),
        cmocka_unit_test(test_choices_may_be_cut_short),
        cmocka_unit_test(test_arguments_are_checked_before_anything_is_done),
        cmocka_unit_test(test_help_names_every_command_once_and_fits_80_columns),
        cmocka_unit_test(test_a_paragraph_of_a_topic_is_one_line),
        cmocka_unit_test(test_every_topic_and_setting_has_help),
        cmocka_unit_test(test_help_finds_what_a_question_is_about),
        cmocka_unit_test(test_help_searches_the_manual_and_shows_the_line),
        cmocka_unit_test(test_bye_quits),
        cmocka_unit_test(test_attachments_are_named_and_dropped),
        cmocka_unit_test(test_attachments_stay_in_their_session),
        cmocka_unit_test(test_the_theme_is_a_setting_of_the_screen),
        cmocka_unit_test(test_read_attaches_a_file_to_the_next_message),
        cmocka_unit_test(test_a_format_names_the_members_of_an_object),
        cmocka_unit_test(test_text_and_json_come_from_one_format),
        cmocka_unit_test(test_answers_are_one_json_object),
        cmocka_unit_test(test_json_strings_are_ascii_and_come_back),
        cmocka_unit_test(test_json_strings_take_any_bytes),
        cmocka_unit_test(test_json_commas_and_numbers),
        cmocka_unit_test(test_completion_tells_what_candidates_do),
        cmocka_unit_test(test_completion),
        cmocka_unit_test(test_attached_files_and_presets_complete),
        cmocka_unit_test(test_letters_of_a_name),
        cmocka_unit_test(test_completion_offers_files),
        cmocka_unit_test(test_the_table_as_text),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    buf_free(&shown);
    buf_free(&json);
    return failed;
}
