/* confine.c - the rights that each command keeps when it is isolated (repl/process/isolate.h).
 *
 * A command that knows --db may write in the folder of the session log, a command whose command
 * line names an output file (a pack: even if it does not) in that file's folder, and a chat in the
 * folder of the input history and in that of presets. The files that /export names in a chat are
 * created by the monitor. `bench` starts programs and is not isolated. */
#include "repl/cli/cli.h"

#include <sys/stat.h>
#include <unistd.h>

#include "models/checkpoint/hub.h"
#include "repl/app/presets.h"
#include "repl/cli/flags.h"
#include "repl/cmd/sql.h"
#include "repl/process/isolate.h"
#include "repl/process/monitor.h"
#include "repl/tui/recall.h"

enum { FOLDERS = 8, NOT_ISOLATED = IN_BENCH | IN_DOCTOR | IN_HELP,
       WRITES_LOG = IN_TALK | IN_SERVE | IN_IMPORT | IN_PROBE,
       HAS_PROMPT = IN_TALK | IN_REPLAY,   /* commands of the chat can be typed */
       HAS_MONITOR = HAS_PROMPT | IN_DB }; /* `db sql` */

struct folders {
    char *v[FOLDERS];
    int n;
};

/* Adds the folder of a file. make: creates the folder, with mode 0700, if it does not exist. */
static void add_folder_of(struct folders *f, const char *path, bool make)
{
    if (!path || strcmp(path, "-") == 0)
        return;
    char *folder = path_folder(path);
    for (char *p = strchr(folder + 1, '/'); make; p = strchr(p + 1, '/')) {
        if (p)
            *p = '\0';
        mkdir(folder, 0700); /* a failure is reported when a file in it cannot be written */
        if (!p)
            break;
        *p = '/';
    }
    CHECK(f->n < FOLDERS);
    f->v[f->n++] = folder;
}

static void add_typed_lines(struct folders *f)
{
    FREED(free_at) char *path = recall_path("history");
    add_folder_of(f, path, true);
    if (path)
        file_make_private(path);
}

static void add_presets(struct folders *f)
{
    char *folder = presets_folder(), *below = folder ? xasprintf("%s/x", folder) : NULL;
    add_folder_of(f, below, true);
    FREE(below, folder);
}

static void add_log(struct folders *f, const char *path, bool written)
{
    add_folder_of(f, path, written);
    if (path)
        history_before_isolation(path, written);
}

/* The folders of files that the command line names. */
static void add_outputs(struct folders *f, const struct cli *c, const struct command *cmd)
{
    if (cmd->bit & (IN_EXPORT | IN_PACK | IN_CHECK))
        add_folder_of(f, c->out ? c->out : cmd->bit == IN_PACK ? "./" : NULL, false);
    if (cmd->bit == IN_PROBE) {
        add_folder_of(f, c->out, false);
        add_folder_of(f, c->state, false);
    }
    if (cmd->bit == IN_PULL) {
        FREED(free_at) char *cache = hub_cache(), *below = xasprintf("%s/x", cache);
        add_folder_of(f, below, true);
    }
    if (cmd->bit == IN_DB && c->n_word > 1 && cli_db_makes_file(c->word[0]))
        add_folder_of(f, c->word[1], false);
}

static bool names_server(const struct texts *t)
{
    return ANY(i, t->n, strncmp(t->v[i], "remote:", 7) == 0);
}

static bool names_gpu(const struct texts *t)
{
    return ANY(i, t->n, strstr(t->v[i], "device=cuda") || strstr(t->v[i], "device=auto"));
}

static int network_of(const struct cli *c, const struct command *cmd)
{
    const char *events = c->opt.engine.server.kv_events;
    bool asked = strcmp(c->opt.engine.device, "cpu") != 0 || names_gpu(&c->a) ||
                 names_gpu(&c->b) || names_gpu(&c->arm) || names_gpu(&c->with);
    bool cuda = asked && access("/proc/driver/nvidia/version", F_OK) == 0;
    bool remote = cli_asks_server(c, cmd->bit) || names_server(&c->a) || names_server(&c->b) ||
                  names_server(&c->arm);
    return (cuda ? NETWORK_UNTIL_LOADED : 0) | (cmd->bit & (IN_SERVE | IN_PULL) || remote
                                                ? NETWORK_KEPT : 0) |
           (cmd->bit == IN_PULL ? LINKS_MADE : 0) |
           (remote && events && strstr(events, "ipc://") ? NETWORK_LOCAL : 0);
}

bool cli_confine(struct cli *c, const struct command *cmd, struct err *e)
{
    struct folders f = {0};
    struct isolated got;
    bool free_ = c->no_sandbox || (cmd->bit & NOT_ISOLATED);
    if (!free_)
        isolate_descriptors();
    char *db = cli_db_path(c);
    bool started = !(cmd->bit & HAS_MONITOR) || monitor_start(sql_child, db, e);
    if (started && !free_ && (cmd->bit & IN_LOG))
        add_log(&f, db, (cmd->bit & WRITES_LOG) && c->opt.level != LOG_OFF && !c->opt.readonly);
    free(db);
    if (!started || free_)
        return started;
    if (cmd->bit & HAS_PROMPT)
        add_typed_lines(&f);
    if ((cmd->bit & IN_CHAT) && !c->opt.readonly)
        add_presets(&f);
    add_outputs(&f, c, cmd);
    isolate(&(struct isolation){(const char *const *)f.v, f.n, network_of(c, cmd)}, &got);
    if (got.failed && !got.writes)
        err_print("writes are not confined: %s", got.writes_why_not);
    if (got.failed && !got.programs)
        err_print("programs and the network are not given up: %s", got.programs_why_not);
    if (got.writes && (cmd->bit & HAS_PROMPT))
        hdb_create_through(monitor_create, monitor_settle);
    for (int i = 0; i < f.n; i++)
        free(f.v[i]);
    return true;
}
