/* main.c - what must be true of the process before anything else runs. */
#include <fcntl.h>
#include <locale.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/mapped.h"
#include "repl/repl.h"

/* A file opened as descriptor 1 or 2 would take what is printed: the log, of all things. */
static void fill_standard_streams(void)
{
    int fd;
    do
        fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0)
        close(fd);
}

int main(int argc, char **argv)
{
    fill_standard_streams();
    setlocale(LC_CTYPE, ""); /* and no more: numbers are written and read the same everywhere */
    umask(077);              /* sessions are private, and so is all that is made beside them */
    signal(SIGPIPE, SIG_IGN); /* a closed pipe or a full disk is an error to report, not a death */
    signal(SIGXFSZ, SIG_IGN);
    mapped_catch(); /* before the screen's handler, which calls mapped_fault() itself */
    return cli_main(argc, argv);
}
