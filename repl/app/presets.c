/* presets.c - see presets.h. */
#include "repl/app/presets.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/ascii.h"
#include "kernels/text.h"

enum { LONGEST = 64, MOST_BYTES = 64 << 10, MOST = 1000 };

char *presets_folder(void)
{
    return xdg_path("XDG_CONFIG_HOME", ".config", "presets");
}

/* A name is a file's name and nothing else, and no word of the command. */
static bool is_name(const char *s)
{
    size_t n = strlen(s);
    for (size_t i = 0; i < n; i++)
        if (!ascii_alpha(s[i]) && !ascii_digit(s[i]) && !strchr("._-", s[i]))
            return false;
    return n > 0 && n <= LONGEST && s[0] != '.' && strcmp(s, "save") != 0 &&
           strcmp(s, "delete") != 0;
}

/* The path of a preset; the caller frees. NULL and *e. */
static char *path_of(const char *name, struct err *e)
{
    FREED(free_at) char *folder = presets_folder();
    char *path = NULL;
    if (!is_name(name))
        err_set(e, ERR_USAGE, "\"%.80s\" is no name of a preset: expected letters, digits, dots, - "
                "and _, at most %d", name, LONGEST);
    else if (!folder)
        err_set(e, ERR_USAGE, "presets need a home folder, and $HOME is not set");
    else
        path = xasprintf("%s/%s", folder, name);
    return path;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

int presets_list(char ***name)
{
    FREED(free_at) char *folder = presets_folder();
    FREED(folder_close) DIR *d = folder ? opendir(folder) : NULL;
    int n = 0;
    *name = NULL;
    for (struct dirent *f; d && n < MOST && (f = readdir(d));)
        if (is_name(f->d_name))
            *APPEND(*name, n) = xstrdup(f->d_name);
    if (n)
        qsort(*name, (size_t)n, sizeof **name, by_name);
    return n;
}

bool preset_write(const char *name, const char *lines, bool *replaced, struct err *e)
{
    FREED(free_at) char *path = path_of(name, e);
    if (!path)
        return false;
    *replaced = access(path, F_OK) == 0;
    return file_replace(path, lines, strlen(lines)) ||
           err_set(e, ERR_USAGE, "cannot write the preset %s: %s", path, strerror(errno));
}

/* "the presets are a, b and c" */
static bool not_there(const char *name, struct err *e)
{
    char **all;
    int n = presets_list(&all);
    FREED(buf_free) struct buf list = {0};
    for (int i = 0; i < n; i++) {
        if (list.n < 200)
            buf_printf(&list, "%s%s", i ? ", " : "", all[i]);
        free(all[i]);
    }
    free(all);
    return err_set(e, ERR_USAGE, n ? "there is no preset %s; there %s %s"
                                   : "there is no preset %s; /preset save NAME makes one", name,
                   n == 1 ? "is" : "are", buf_text(&list));
}

bool preset_read(const char *name, struct buf *lines, struct err *e)
{
    FREED(free_at) char *path = path_of(name, e);
    struct stat st;
    bool there = path && lstat(path, &st) == 0; /* or a link that leads nowhere */
    bool ok = there ? buf_read_file(lines, path, MOST_BYTES, e) : path && not_there(name, e);
    if (ok)
        buf_str(lines, ""); /* also if the file is empty */
    return ok;
}

bool preset_delete(const char *name, struct err *e)
{
    FREED(free_at) char *path = path_of(name, e);
    return path && (unlink(path) == 0 ||
                    (errno == ENOENT ? not_there(name, e)
                                     : err_set(e, ERR_USAGE, "cannot delete the preset %s: %s",
                                               path, strerror(errno))));
}
