/* safetensors.c - the strict reader of models.h: one file, or an index and its shards.
 *
 * Checked before any data is read: each file's header (rules (1) to (3) of shard.c), and
 *   (4) with an index, every tensor that it names is in the shard it names, and every tensor of
 *       the shards is named; shard names are plain file names.
 * In a folder that has both, model.safetensors is read and the index is not, as in transformers.
 * All this is read with pread(): a file that shrinks meanwhile gives an error. The data can be
 * mapped afterwards (kernels/mapped.h).
 */
#include "models/checkpoint/safetensors.h"

#include "models/checkpoint/gguf_model.h"
#include "models/checkpoint/json.h"
#include "models/checkpoint/coded.h"

#include <errno.h>
#include <fnmatch.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_SHARDS = 512 };

static struct shard *shard_add(struct safetensors *s, const char *dir, const char *name)
{
    struct shard *f = APPEND(s->shard, s->n_shard);
    *f = (struct shard){
        .name = xstrdup(name),
        .path = dir ? xasprintf("%s/%s", dir, name) : xstrdup(name),
        .fd = -1,
    };
    return f;
}

/* ---- by name ---- */

static int compare_entries(const void *a, const void *b)
{
    return strcmp((*(const struct st_entry *const *)a)->t.name,
                  (*(const struct st_entry *const *)b)->t.name);
}

static bool index_names(struct safetensors *s, struct err *e)
{
    s->by_name = xcalloc((size_t)s->n, sizeof *s->by_name);
    for (int i = 0; i < s->n; i++)
        s->by_name[i] = &s->entry[i];
    if (s->n)
        qsort(s->by_name, (size_t)s->n, sizeof *s->by_name, compare_entries);
    for (int i = 1; i < s->n; i++)
        if (!compare_entries(&s->by_name[i - 1], &s->by_name[i]))
            return bad_entry(&s->shard[s->by_name[i]->shard], s->by_name[i]->t.name, e,
                             "is also in %.100s", s->shard[s->by_name[i - 1]->shard].name);
    return true;
}

/* ---- an index and its shards ---- */

/* A shard's name has no folder in it, so that an index cannot name a file outside of its own
 * folder. (Symbolic links are followed.) */
static bool shard_name_ok(const char *name)
{
    size_t n = strlen(name);
    return name_is_plain(name, n) && !strpbrk(name, "/\\") && n > 12 &&
           n < 256 && !strcmp(name + n - 12, ".safetensors");
}

static int shard_index(const struct safetensors *s, const char *name)
{
    for (int i = 0; i < s->n_shard; i++)
        if (!strcmp(s->shard[i].name, name))
            return i;
    return -1;
}

static bool index_shards(struct safetensors *s, const char *dir, const char *path,
                         const json_t *map, struct err *e)
{
    const char *tensor;
    json_t *v;
    json_object_foreach((json_t *)map, tensor, v) {
        const char *name = json_string_value(v);
        if (!name || !shard_name_ok(name))
            return err_file(e, path,
                            "weight_map puts %s into \"%s\", expected the plain name of a "
                            ".safetensors file of this folder",
                            show(tensor).s, name ? show(name).s : "");
        if (shard_index(s, name) >= 0)
            continue;
        if (s->n_shard == MAX_SHARDS)
            return err_file(e, path, "weight_map names more than %d files", MAX_SHARDS);
        shard_add(s, dir, name);
    }
    return ALL(i, s->n_shard, shard_open(s, &s->shard[i], e));
}

/* Checks rule (4). Names are unique by now, so that two inclusions prove the two sets equal. */
static bool index_agrees(const struct safetensors *s, const char *path, const json_t *map,
                         struct err *e)
{
    const char *tensor;
    json_t *v;
    json_object_foreach((json_t *)map, tensor, v) {
        const struct st_entry *x = (const struct st_entry *)st_find(s, tensor);
        if (!x || strcmp(s->shard[x->shard].name, json_string_value(v)) != 0)
            return err_file(e, path, "weight_map puts %s into %s, which lacks it", show(tensor).s,
                            show(json_string_value(v)).s);
    }
    for (int i = 0; i < s->n; i++)
        if (!json_object_get(map, s->entry[i].t.name))
            return err_file(e, path, "weight_map does not name %s of %s",
                            show(s->entry[i].t.name).s, show(s->shard[s->entry[i].shard].name).s);
    return true;
}

static bool open_index(struct safetensors *s, const char *dir, const char *path, struct err *e)
{
    FREED(buf_free) struct buf b = {0};
    if (!json_text(path, MAX_HEADER, &b, e))
        return false;
    FREED(json_decrefp) json_t *root = json_read(b.p, b.n, HEADER_DEPTH, path, e);
    if (!root)
        return false;
    const json_t *map = json_object_get(root, "weight_map");
    if (!json_is_object(map) || !json_object_size(map))
        return err_file(e, path, "\"weight_map\" is not an object with entries");
    return index_shards(s, dir, path, map, e) && index_names(s, e) &&
           index_agrees(s, path, map, e);
}

/* ---- open and close ---- */

/* What the folder's files leave open, or NULL. */
static char *note_of(const char *dir, bool both)
{
    FREED(free_at) char *adapter = xasprintf("%s/adapter_config.json", dir);
    if (both)
        return xasprintf("%s has model.safetensors and model.safetensors.index.json: the weights "
                         "are those of model.safetensors", show_path(dir).s);
    return file_missing(adapter)
               ? NULL
               : xasprintf("%s has an adapter (adapter_config.json), which is not applied",
                           show_path(dir).s);
}

/* The name of the folder's first file that the pattern means, which the caller frees; NULL: it has
 * none. */
static char *some_file(const char *dir, const char *pattern)
{
    char *first = NULL;
    FREED(folder_close) DIR *d = opendir(dir);
    for (struct dirent *x; d && (x = readdir(d));)
        if (!fnmatch(pattern, x->d_name, 0) && (!first || strcmp(x->d_name, first) < 0))
            set_text(&first, x->d_name);
    return first;
}

/* *e says why a folder has no weights: a link leads nowhere, no index names them, they are in
 * another format, or they are not there. Returns false. */
static bool no_weights(const char *dir, const char *single, struct err *e)
{
    static const struct {
        const char *pattern, *is; /* is NULL: a file that an index would name */
    } instead[] = {
        {"model*.safetensors", NULL},
        {"adapter_model.safetensors", "an adapter, which aerie does not apply; fetch its base "
                                      "model, or a model that it was merged into"},
        {"consolidated*.safetensors", "in Mistral's own layout, which aerie does not read; fetch "
                                      "the model with config.json and model.safetensors"},
        {"*.safetensors", NULL},
        {"pytorch_model*.bin", "a Python pickle, which aerie does not read; convert it to "
                               "model.safetensors (safetensors.torch.save_file) first"},
    };
    char to[PATH_MAX];
    ssize_t n = readlink(single, to, sizeof to - 1);
    if (n > 0)
        return err_file(e, single, "a link to %.*s, which is not there", (int)n, to);
    for (size_t i = 0; i < LEN(instead); i++) {
        FREED(free_at) char *file = some_file(dir, instead[i].pattern);
        if (file && instead[i].is)
            return err_set(e, ERR_MODEL, "%s/%s is %s", show_path(dir).s, show(file).s,
                           instead[i].is);
        if (file)
            return err_set(e, ERR_MODEL, "%s has neither model.safetensors nor "
                           "model.safetensors.index.json, which would name %s: fetch the index, "
                           "too", show_path(dir).s, show(file).s);
    }
    return err_set(e, ERR_MODEL, "%s has neither model.safetensors nor "
                   "model.safetensors.index.json", show_path(dir).s);
}

static bool open_dir(struct safetensors *s, const char *dir, struct err *e)
{
    FREED(free_at) char *index = xasprintf("%s/model.safetensors.index.json", dir);
    FREED(free_at) char *single = xasprintf("%s/model.safetensors", dir);
    bool indexed = access(index, F_OK) == 0;
    int why = indexed ? 0 : errno;
    bool whole = !file_missing(single);
    s->source = xstrdup(whole || !indexed ? single : index);
    s->note = note_of(dir, whole && indexed);
    if (why && why != ENOENT && why != ENOTDIR)
        return err_set(e, ERR_MODEL, "cannot open %s: %s", show_path(index).s, strerror(why));
    if (whole)
        return shard_open(s, shard_add(s, dir, "model.safetensors"), e) && index_names(s, e);
    return indexed ? open_index(s, dir, index, e) : no_weights(dir, single, e);
}

/* ---- GGUF ---- */

static void add_made(void *arg, const struct gguf_made *m)
{
    struct safetensors *s = arg;
    struct st_entry *x = entry_room(s);
    *x = (struct st_entry){.t = m->t, .type = dtype_name(m->source), .shard = m->rows.from[0].file,
                           .at = m->rows.from[0].at};
    x->t.name = xstrdup(m->name);
    x->made = !m->in_place;
    if (m->rows.elems)
        x->rows = xcopy(&m->rows, 1, sizeof m->rows);
    s->n++;
}

static bool open_gguf(struct safetensors *s, const char *path, struct err *e)
{
    struct buf about = {0};
    if (!(s->gguf = gguf_open(path, e)))
        return false;
    gguf_about(s->gguf, &about);
    s->about = about.p;
    const struct gguf_arch *a = gguf_arch(s->gguf, e);
    FREED(buf_free) struct buf note = {0};
    bool ok = a && gguf_tensors(s->gguf, a, add_made, s, e) &&
              gguf_config(s->gguf, a, &s->config, &note, e);
    s->note = note.n ? xasprintf("%s: %s", show_path(path).s, note.p) : NULL;
    for (int i = 0; i < s->gguf->n_file; i++) {
        struct shard *f = shard_add(s, NULL, s->gguf->file[i].path);
        f->fd = s->gguf->file[i].fd;
        f->size = s->gguf->file[i].size;
        s->gguf->file[i].fd = -1;
    }
    return ok;
}

/* ---- matrices stored as codes and scales ---- */

static struct row_source source_at(const struct safetensors *s, const struct st_entry *x)
{
    return (struct row_source){.file = x->shard, .at = x->at, .type = DT_U8, .name = x->t.name,
                               .path = s->shard[x->shard].path};
}

/* The entry of the codes becomes that of the matrix. */
static void make_matrix(struct safetensors *s, struct coded_matrix *m)
{
    struct st_entry *x = m->code;
    x->rows = xmalloc(sizeof *x->rows);
    *x->rows = (struct rows){
        .from = {source_at(s, m->code), source_at(s, m->scale)}, .n_from = 2,
        .make = m->t.type == DT_BF16 ? MAKE_SCALED : MAKE_BLOCKS,
        .to = m->t.type, .elems = m->scaled.cols, .scaled = m->scaled,
    };
    x->rows->bytes = rows_bytes(x->rows);
    x->made = true;
    x->rows->from[0].name = m->t.name;
    free((char *)x->t.name);
    x->t = m->t;
    x->type = dtype_name(x->t.type);
    m->t.name = NULL;
}

void st_as_bf16(const struct tensor *t)
{
    struct st_entry *x = (struct st_entry *)(uintptr_t)st_entry(t);
    if (!x->rows || (x->rows->make != MAKE_BLOCKS && x->rows->make != MAKE_OUTER))
        return;
    x->t.type = DT_BF16, x->type = dtype_name(DT_BF16);
    x->rows->make = x->rows->make == MAKE_BLOCKS ? MAKE_SCALED : MAKE_TYPE;
    x->rows->to = DT_BF16;
    x->rows->bytes = rows_bytes(x->rows);
    x->t.bytes = sizeof(uint16_t);
    for (int i = 0; i < x->t.n_dim; i++)
        x->t.bytes *= (size_t)x->t.dim[i];
}

/* Moves hidden entries behind the others. */
static void hide_entries(struct safetensors *s)
{
    struct st_entry *all = xcalloc((size_t)s->n, sizeof *all);
    int n = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < s->n; i++)
            if (s->entry[i].hidden == pass)
                all[n++] = s->entry[i], s->n_hidden += pass;
    free(s->entry);
    s->entry = all;
    s->n -= s->n_hidden;
}

/* Matrices in place of the codes and scales that they are made of. */
static bool open_coded(struct safetensors *s, struct err *e)
{
    FREED(coded_free) struct coded v;
    if (!coded_find(s, &v, e))
        return false;
    if (v.note) {
        FREED(free_at) char *before = s->note;
        s->note = before ? xasprintf("%s; %s", before, v.note) : xstrdup(v.note);
    }
    if (!v.about)
        return true;
    s->about = xstrdup(v.about);
    s->inputs = v.inputs;
    for (int i = 0; i < v.n; i++)
        make_matrix(s, &v.m[i]);
    hide_entries(s);
    free(s->by_name);
    return index_names(s, e);
}

char *st_config(const struct safetensors *s, struct buf *text, struct err *e)
{
    char *path = s->dir ? xasprintf("%s/config.json", s->dir) : xstrdup(s->source);
    if (s->gguf)
        buf_add(text, s->config.p, s->config.n);
    else if (!json_text(path, JSON_CONFIG, text, e)) {
        free(path);
        return NULL;
    }
    return path;
}

struct safetensors *st_open(const char *path, struct err *e)
{
    struct stat st;
    if (stat(path, &st))
        return FAILED(NULL, e, ERR_MODEL, "cannot open %s: %s", show_path(path).s, strerror(errno));
    struct safetensors *s = xcalloc(1, sizeof *s);
    bool ok;
    if (S_ISDIR(st.st_mode)) {
        s->dir = xstrdup(path);
        ok = open_dir(s, path, e) && open_coded(s, e);
    } else {
        s->source = xstrdup(path);
        ok = (gguf_is(path) ? open_gguf(s, path, e) : shard_open(s, shard_add(s, NULL, path), e)) &&
             index_names(s, e);
    }
    if (ok)
        return s;
    st_close(s);
    return NULL;
}

void st_close(struct safetensors *s)
{
    if (!s)
        return;
    for (int i = 0; i < s->n_shard; i++) {
        if (s->shard[i].fd >= 0)
            close(s->shard[i].fd);
        FREE(s->shard[i].name, s->shard[i].path);
    }
    for (int i = 0; i < s->n + s->n_hidden; i++)
        FREE((char *)s->entry[i].t.name, s->entry[i].rows);
    FREE(s->source, s->dir, s->note, s->about);
    buf_free(&s->config);
    gguf_close(s->gguf);
    FREE(s->shard, s->entry, s->by_name, s);
}
