/* visit.c - other, short-lived processes of aerie on the log of a soak, which read it, write to it,
 * or are killed. */
#include "tests/soak/soak.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum { LONG = 120000 };

static const char *numbered(uint64_t *rng)
{
    static char text[32];
    snprintf(text, sizeof text, "%d", 1 + roll(rng, 40));
    return text;
}

/* A name for a new file. */
static const char *fresh_file(void)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/file-%ld", soak.small, soak.visits);
    return path;
}

/* A script that keeps a chat busy for a second, so that it can be killed meanwhile. */
static const char *script(void)
{
    static char *path;
    if (!path) {
        path = xasprintf("%s/script", soak.folder);
        FILE *f = fopen(path, "we");
        CHECK(f && fputs("What are you?\nCount to two hundred.\n/regen\nTell me a "
                         "story.\n/fork\nCount to two hundred.\n", f) >= 0 &&
              fclose(f) == 0);
    }
    return path;
}

static bool allowed(int rc, const char *may)
{
    char text[8];
    snprintf(text, sizeof text, " %d ", rc);
    return strstr(may, text) != NULL;
}

static void run(const char *const *argv, int ms, int sig, const char *may)
{
    struct buf out = {0}, line = {0};
    bool full = atomic_load(&soak.full);
    soak.visits++;
    for (int i = 1; argv[i]; i++)
        buf_printf(&line, "%s ", argv[i]);
    int rc = run_program(argv, &out, ms, sig);
    note("visitor", "%sstatus %d%s", line.p, rc, full ? ", disk full" : "");
    /* a full disk is an error of the log (exit status 4) or of the output file (2) */
    full |= atomic_load(&soak.full);
    if (strcmp(argv[1], "replay") == 0 && out.n &&
        (strstr(out.p, "differs at step") || strstr(out.p, "differs in turn")))
        failed("visitor", "%s: %.800s", line.p, out.p); /* not even while it is written */
    if (!allowed(rc, may) && !(full && (rc == 2 || rc == 4)))
        failed("visitor", "%sended with status %d, expected one of%s: %.800s", line.p, rc, may,
               out.p);
    buf_free(&out);
    buf_free(&line);
}

void visit(uint64_t *rng)
{
    const char *a = soak.aerie, *n = numbered(rng);
    static const int signals[] = {SIGKILL, SIGKILL, SIGTERM, SIGINT, SIGHUP};
    int sig = signals[roll(rng, 5)];
    switch (roll(rng, 15)) {
    case 0: run((const char *[]){a, "run", "--quiet", "-p", "max_tokens=20", "Hello!", NULL}, LONG,
                SIGTERM, " 0 "); break;
    case 1: run((const char *[]){a, "logs", "-n", "5", NULL}, LONG, SIGTERM, " 0 1 "); break;
    case 2: run((const char *[]){a, "logs", "-q", "fox", NULL}, LONG, SIGTERM, " 0 1 "); break;
    case 3: run((const char *[]){a, "show", n, NULL}, LONG, SIGTERM, " 0 1 "); break;
    case 4: run((const char *[]){a, "export", n, NULL}, LONG, SIGTERM, " 0 1 "); break;
    case 5: run((const char *[]){a, "db", "check", NULL}, LONG, SIGTERM, " 0 "); break;
    case 6: run((const char *[]){a, "db", "backup", fresh_file(), NULL}, LONG, SIGTERM,
                " 0 "); break;
    case 7: run((const char *[]){a, "db", "sql", "select count(*), sum(n_steps) from turn", NULL},
                LONG, SIGTERM, " 0 "); break;
    case 8: run((const char *[]){a, "replay", n, "--check", NULL}, LONG, SIGTERM, " 0 1 "); break;
    case 9: run((const char *[]){a, "pack", n, "-o", fresh_file(), NULL}, LONG, SIGTERM,
                " 0 1 "); break;
    case 10: run((const char *[]){a, "run", "--quiet", "-c", "-p", "max_tokens=20", "Go on.", NULL},
                 LONG, SIGTERM, " 0 4 "); break;
    case 11: run((const char *[]){a, "replay", n, "--plain", "--quiet", NULL}, LONG, SIGTERM,
                 " 0 1 "); break;
    default: /* a chat that is killed soon */
        /* a full disk cannot store the end of a turn */
        soak.kills += sig == SIGKILL || atomic_load(&soak.full);
        run((const char *[]){a, "--plain", "--json", "--quiet", "--script", script(), NULL},
            30 + roll(rng, 600), sig,
            sig == SIGKILL ? " 0 1 2 137 " : sig == SIGTERM ? " 0 1 2 143 " : sig == SIGINT
            ? " 0 1 2 130 " : " 0 1 2 129 ");
    }
}
