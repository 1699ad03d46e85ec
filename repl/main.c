/* main.c - sets up the process: descriptors, stacks, locale, umask, signals. */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <locale.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "history/history.h"
#include "kernels/mapped.h"
#include "repl/repl.h"

/* Opens descriptors 0 to 2 if they are closed: a file that got one of them, such as the log, would
 * receive the program's output. */
static void fill_standard_streams(void)
{
    int fd;
    do
        fd = open("/dev/null", O_RDWR);
    while (fd >= 0 ? fd <= STDERR_FILENO : errno == EINTR);
    if (fd >= 0)
        close(fd);
}

/* The engine's stack frames take up to 0.4 MB, and the stack size of a thread depends on the C
 * library and on the limit of the main thread. Raises the main thread's limit to STACK if the hard
 * limit allows it; all other threads, also those of libraries, get STACK. False, with a line on
 * standard error: the hard limit is below LEAST. */
static bool claim_stack(void)
{
    const rlim_t STACK = 8 << 20, LEAST = 1 << 20;
    struct rlimit limit;
    pthread_attr_t attr;
    /* RLIM_INFINITY is the largest number */
    if (getrlimit(RLIMIT_STACK, &limit) == 0 && limit.rlim_cur < STACK) {
        limit.rlim_cur = limit.rlim_max < STACK ? limit.rlim_max : STACK;
        setrlimit(RLIMIT_STACK, &limit);
        if (limit.rlim_max < LEAST) {
            err_print("the stack is limited to %llu KiB; expected at least %llu (ulimit -Hs)",
                      (unsigned long long)limit.rlim_max >> 10, (unsigned long long)LEAST >> 10);
            return false;
        }
    }
    if (pthread_attr_init(&attr) == 0) {
        if (pthread_attr_setstacksize(&attr, STACK) == 0)
            pthread_setattr_default_np(&attr);
        pthread_attr_destroy(&attr);
    }
    return true;
}

int main(int argc, char **argv)
{
    fill_standard_streams();
    if (!claim_stack())
        return ERR_USAGE;
    /* LC_NUMERIC stays "C": numbers are written and read the same everywhere */
    setlocale(LC_CTYPE, "");
    umask(077);              /* sessions and all files beside them are private */
    signal(SIGPIPE, SIG_IGN); /* a closed pipe is an error of write(), which is reported */
    signal(SIGXFSZ, SIG_IGN);
    /* else jansson would report a failed allocation as bad JSON */
    json_set_alloc_funcs(xmalloc, free);
    history_claim_memory();
    mapped_catch(); /* before the screen's handler, which calls mapped_fault() itself */
    return cli_main(argc, argv);
}
