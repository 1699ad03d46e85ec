/* dump.c - the files of a dump; see dump.h. */
#include "engine/tools/dump.h"

#include <dirent.h>
#include <errno.h>
#include <sys/stat.h>

#include "engine/tools/torch_file.h"
#include "kernels/ascii.h"

enum { DEPTH = 3 }; /* of folders */

/* A file that is part of a dump. */
struct found {
    char *path, *name; /* name: of the module; NULL: the file holds a pass */
    int64_t rank, pass, index; /* index: in the order of writing */
};

struct finder {
    struct found *v;
    int n;
    int files;
    bool dumper, passes;
};

/* ---- names of files -------------------------------------------------------------------------- */

/* The number behind KEY= among the parts that "___" joins; -1: there is none. */
static int64_t part_number(const char *name, const char *key)
{
    size_t n = strlen(key);
    for (const char *s = name; s; s = strstr(s, "___"), s = s ? s + 3 : NULL)
        if (strncmp(s, key, n) == 0 && s[n] == '=') {
            const char *digits = s + n + 1;
            int v;
            return int_at(&digits, &v) && v >= 0 ? v : -1;
        }
    return -1;
}

/* The text behind name=, which may hold "__" but no "___". */
static char *part_name(const char *file)
{
    const char *s = strstr(file, "___name=");
    if (!s)
        return NULL;
    s += strlen("___name=");
    const char *end = strstr(s, "___");
    if (!end)
        end = strrchr(s, '.');
    return end ? xasprintf("%.*s", (int)(end - s), s) : NULL;
}

/* "Pass00012.pt" */
static bool pass_number(const char *file, int64_t *pass)
{
    const char *s = file + 4;
    int v;
    if (strncmp(file, "Pass", 4) != 0 || !int_at(&s, &v) || v < 0 ||
        (strcmp(s, ".pt") != 0 && strcmp(s, ".safetensors") != 0))
        return false;
    *pass = v;
    return true;
}

/* The rank in a folder's name "TP0_PP0_Rank3_pid77". */
static int64_t folder_rank(const char *path)
{
    const char *s = strstr(path, "_Rank");
    int v;
    if (!s)
        return 0;
    s += strlen("_Rank");
    return int_at(&s, &v) && v >= 0 ? v : 0;
}

static void take_file(struct finder *f, const char *path)
{
    const char *slash = strrchr(path, '/'), *file = slash ? slash + 1 : path;
    struct found found = {.rank = 0};
    if (!ends_with(file, ".pt") && !ends_with(file, ".safetensors"))
        return;
    if (strncmp(file, "step=", 5) == 0) {
        found = (struct found){.name = part_name(file), .rank = part_number(file, "rank"),
                               .pass = part_number(file, "step"),
                               .index = part_number(file, "dump_index")};
        if (!found.name || found.pass < 0) {
            free(found.name);
            return;
        }
        f->dumper = true;
    } else if (pass_number(file, &found.pass)) {
        found.rank = folder_rank(path);
        f->passes = true;
    } else {
        return;
    }
    found.path = xstrdup(path);
    *APPEND(f->v, f->n) = found;
}

static bool walk(struct finder *f, const char *path, int depth, struct err *e)
{
    struct stat st;
    bool there = stat(path, &st) == 0;
    if (!there && depth == 0)
        return err_set(e, ERR_USAGE, "cannot open %.200s: %s", path, strerror(errno));
    if (!there || S_ISREG(st.st_mode)) { /* or a link without a target: add_file() refuses it */
        take_file(f, path);
        return ++f->files <= DUMP_FILES ||
               err_set(e, ERR_USAGE, "more than %d files", (int)DUMP_FILES);
    }
    bool look = S_ISDIR(st.st_mode) && depth < DEPTH, ok = true;
    FREED(folder_close) DIR *dir = look ? opendir(path) : NULL;
    if (look && !dir)
        return err_set(e, ERR_USAGE, "cannot open %.200s: %s", path, strerror(errno));
    for (struct dirent *d; dir && ok && (d = readdir(dir));) {
        if (d->d_name[0] == '.')
            continue;
        FREED(free_at) char *below = xasprintf("%s/%s", path, d->d_name);
        ok = walk(f, below, depth + 1, e);
    }
    return ok;
}

/* ---- passes ---------------------------------------------------------------------------------- */

static int by_order(const void *a, const void *b)
{
    const struct found *found = a, *y = b;
    if (found->rank != y->rank)
        return found->rank < y->rank ? -1 : 1;
    if (found->pass != y->pass)
        return found->pass < y->pass ? -1 : 1;
    if (found->index != y->index)
        return found->index < y->index ? -1 : 1;
    return strcmp(found->path, y->path);
}

static struct dump_pass *pass_of(struct dump *d, int number)
{
    if (d->n == 0 || d->pass[d->n - 1].number != number)
        *APPEND(d->pass, d->n) = (struct dump_pass){.number = number};
    return &d->pass[d->n - 1];
}

static void add_item(struct dump_pass *p, const char *name, const char *file, const char *entry)
{
    *APPEND(p->item, p->n) = (struct dump_item){xstrdup(name), xstrdup(file), xstrdup(entry)};
}

/* Of a file of the dumper: {"value": tensor, "meta": ...}, or in older versions the tensor. */
static void add_value(struct dump_pass *p, const struct found *found, const struct torch_file *f)
{
    const struct torch_entry *t = torch_find(f, "value");
    if (!t)
        t = torch_find(f, "");
    if (t && !t->text)
        add_item(p, found->name, found->path, t->name);
}

/* The name of the module whose hook writes the files of SGLang's tensor dump, by the facts of the
 * pass below it, if the file has this module's own output; else "". It writes the file when it
 * ends: its output, and what follows it, the logits, are those of the pass before. */
static void ended_root(const struct torch_file *f, char root[64])
{
    *root = '\0';
    for (int i = 0; i < torch_count(f) && !*root; i++) {
        const char *name = torch_at(f, i)->name, *below = strstr(name, ".forward_batch_info.");
        if (below && below - name < 64)
            snprintf(root, 64, "%.*s", (int)(below - name), name);
    }
    if (!torch_find(f, root))
        *root = '\0';
}

static bool is_below(const char *name, const char *root)
{
    size_t n = strlen(root);
    return n == 0 || (strncmp(name, root, n) == 0 && name[n] == '.');
}

static void add_tensors(struct dump *d, int number, const char *path, const struct torch_file *f)
{
    char root[64];
    struct dump_pass *before = d->n ? &d->pass[d->n - 1] : NULL;
    ended_root(f, root);
    for (int i = 0; before && before->number == number - 1 && i < torch_count(f); i++)
        if (!torch_at(f, i)->text && !is_below(torch_at(f, i)->name, root))
            add_item(before, torch_at(f, i)->name, path, torch_at(f, i)->name);
    struct dump_pass *p = pass_of(d, number);
    for (int i = 0; i < torch_count(f); i++)
        if (!torch_at(f, i)->text && is_below(torch_at(f, i)->name, root))
            add_item(p, torch_at(f, i)->name, path, torch_at(f, i)->name);
}

/* What a file of a dump holds; a file that is refused is counted. */
static void add_file(struct dump *d, const struct found *found)
{
    struct err e = {0};
    struct torch_file *f = torch_open(found->path, &e);
    d->files++;
    if (!f) {
        if (d->refused++ == 0)
            snprintf(d->why, sizeof d->why, "%.399s", e.msg);
        return;
    }
    if (found->name)
        add_value(pass_of(d, (int)found->pass), found, f);
    else
        add_tensors(d, (int)found->pass, found->path, f);
    torch_close(f);
}

static int ranks_of(const struct finder *f)
{
    int n = f->n > 0;
    for (int i = 1; i < f->n; i++)
        n += f->v[i].rank != f->v[i - 1].rank;
    return n;
}

static bool same_folder(const char *a, const char *b)
{
    const char *x = strrchr(a, '/'), *y = strrchr(b, '/');
    return (x ? x - a : 0) == (y ? y - b : 0) && strncmp(a, b, x ? (size_t)(x - a) : 0) == 0;
}

/* The items of the lowest rank. */
static bool add_all(struct dump *d, const struct finder *f, struct err *e)
{
    for (int i = 0; i < f->n && f->v[i].rank == f->v[0].rank; i++) {
        if (!same_folder(f->v[i].path, f->v[0].path))
            return err_set(e, ERR_USAGE, "several dumps: %.200s and %.200s; name one of the "
                                         "folders", f->v[0].path, f->v[i].path);
        add_file(d, &f->v[i]);
    }
    return d->refused < d->files || err_set(e, ERR_USAGE, "%s", d->why);
}

bool dump_open(struct dump *d, const char *path, struct err *e)
{
    struct finder f = {0};
    *d = (struct dump){0};
    bool ok = walk(&f, path, 0, e);
    if (ok && f.n == 0)
        ok = err_set(e, ERR_USAGE, "%.200s has no file step=...___name=... of SGLang's dumper and "
                     "no PassNNNNN.pt", path);
    if (ok && f.dumper && f.passes)
        ok = err_set(e, ERR_USAGE, "%.200s has files of the dumper and PassNNNNN.pt; name one of "
                     "the folders", path);
    if (ok)
        qsort(f.v, (size_t)f.n, sizeof *f.v, by_order);
    d->engine = f.dumper ? "SGLang's dumper" : "SGLang's tensor dump";
    d->ranks = ranks_of(&f);
    d->rank = f.n ? (int)f.v[0].rank : 0;
    ok = ok && add_all(d, &f, e);
    for (int i = 0; i < f.n; i++)
        FREE(f.v[i].path, f.v[i].name);
    free(f.v);
    if (!ok)
        dump_close(d);
    return ok;
}

void dump_close(struct dump *d)
{
    for (int i = 0; i < d->n; i++) {
        for (int k = 0; k < d->pass[i].n; k++)
            FREE(d->pass[i].item[k].name, d->pass[i].item[k].file, d->pass[i].item[k].entry);
        free(d->pass[i].item);
    }
    free(d->pass);
    *d = (struct dump){0};
}
