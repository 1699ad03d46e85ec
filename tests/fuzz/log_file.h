/* log_file.h - what reads a file with a log or a pack, subcommands included. */
#pragma once

#include "tests/fuzz/log.h"

#include "repl/cli/cli.h"

#include <fcntl.h>

/* Runs a subcommand whose output nobody reads. */
static void look_command(int (*command)(struct cli *c), const char *path, char *word, bool json)
{
    static int null, err, out;
    struct cli c = {.word = &word, .n_word = 1, .opt = {.db = path, .json = json, .quiet = true}};
    settings_init(&c.opt.engine.settings);
    if (!null) {
        null = open("/dev/null", O_WRONLY | O_CLOEXEC);
        err = fcntl(2, F_DUPFD_CLOEXEC, 3);
        out = fcntl(1, F_DUPFD_CLOEXEC, 3);
    }
    fflush(stdout);
    dup2(null, 1);
    dup2(null, 2);
    command(&c);
    fflush(stdout);
    dup2(out, 1);
    dup2(err, 2);
}

/* Subcommands, on connections of their own. */
static void look_commands(const char *path, bool pack)
{
    struct err e;
    static struct buf report;
    look_command(cli_show, pack ? NULL : path, pack ? (char *)(uintptr_t)path : (char[]){"last:1"},
                 false);
    look_command(cli_show, pack ? NULL : path, pack ? (char *)(uintptr_t)path : (char[]){"last"},
                 true);
    if (pack)
        return;
    buf_clear(&report);
    history_check(path, &report, &e);
    look_command(cli_logs, path, (char[]){""}, false);
}

/* What reads a log or a pack, on one file: a fifth of it for an input, all where nothing was edited
 * (n 0), so that nothing may fail. */
static void look_at(const char *path, bool pack, const uint8_t *data, size_t n)
{
    const char *const id[] = {log_child, log_id, log_served};
    struct err e = {0};
    bool whole = n == 0;
    unsigned part = (unsigned)(hash64(data, n, 7) % 5);
    if (whole || part == 0)
        look_commands(path, pack);
    if (!whole && part == 0)
        return;
    struct hdb *d = hdb_open(path, &e);
    CHECK(d || !whole);
    if (!d) {
        fuzz_message(&e);
        return;
    }
    for (int i = 0; i < (pack ? 2 : 3); i++) { /* a pack holds a session and its parents */
        if (whole || part == 1)
            look_rows(d, id[i], true, whole);
        if (whole || part == 2)
            look_recorded(d, id[i], whole);
    }
    if (whole || part == 3) {
        look_lists(d);
        look_sql(d);
    }
    if (whole || part == 4)
        look_exports(d, whole);
    hdb_close(d);
}
