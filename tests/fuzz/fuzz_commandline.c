/* The command line and the config file: refused with a message, or a command with its flags. The
 * input is words, each ended by a NUL, and behind an empty word the text of the config file. */
#include "repl/cli/flags.h"
#include "tests/fuzz/fuzz.h"

#include <fcntl.h>

const int fuzz_inputs = 2000;

enum { WORDS = 24 };

static void write_config(const uint8_t *text, size_t n)
{
    static int fd;
    if (!fd) {
        char *folder = xasprintf("%s/aerie", fuzz_folder()), *path = xasprintf("%s/config", folder);
        CHECK(setenv("XDG_CONFIG_HOME", fuzz_folder(), 1) == 0 && mkdir(folder, 0700) == 0);
        fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        CHECK(fd > 0);
        free(path);
        free(folder);
    }
    CHECK(ftruncate(fd, 0) == 0 && pwrite(fd, text, n, 0) == (ssize_t)n);
}

static bool one_of(const char *s, char **word, int n)
{
    for (int i = 0; i < n; i++)
        if (s >= word[i] && s <= word[i] + strlen(word[i]))
            return true;
    return false;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char *argv[WORDS + 2] = {"aerie"}, *word[WORDS];
    struct cli c;
    struct err e = {0};
    const struct command *cmd = NULL;
    enum cli_task task;
    int argc = 1;
    while (n && *data && argc <= WORDS) {
        word[argc - 1] = argv[argc] = fuzz_string(data, n);
        size_t len = strlen(argv[argc++]);
        data += len;
        n -= len;
        data += n > 0;
        n -= n > 0;
    }
    argv[argc] = NULL;
    write_config(data + (n > 0), n - (n > 0));
    bool ok = cli_read(&c, argc, argv, &cmd, &task, &e);
    if (!ok) {
        fuzz_message(&e);
    } else if (task == CLI_RUN) {
        CHECK(cmd && cmd->run && c.n_word >= cmd->min && c.n_word <= cmd->max);
        for (int i = 0; i < c.n_word; i++)
            CHECK(one_of(c.word[i], word, argc - 1));
        for (int i = 0; i < settings_count(); i++)
            CHECK(settings_at(i)->name);
        CHECK(c.a.n <= MAX_TEXTS && c.b.n <= MAX_TEXTS && c.with.n <= MAX_TEXTS &&
              c.header.n <= MAX_TEXTS);
    }
    cli_free(&c);
    for (int i = 1; i < argc; i++)
        free(word[i - 1]);
    return 0;
}
