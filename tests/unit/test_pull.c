/* test_pull.c - fetching a model from a hub that is played here, and from one whose answers go
 * wrong.
 *
 * The hub redirects the weights to another server, which must never see the token.
 */
#include "engine/remote/pull.h"
#include "models/checkpoint/hub.h"
#include "tests/model_kit.h"
#include "tests/play.h"
#include "tests/scratch.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define COMMIT "0123456789abcdef0123456789abcdef01234567"
#define SNAPSHOT "models--Acme--Nest/snapshots/" COMMIT
enum { WEIGHTS = 300000 };

/* What the storage does with the first `times` requests for the weights. */
enum fault {
    NONE, CUT, BROKEN, ALL_AGAIN, EXPIRED, OTHER_BYTES, LONGER, NOT_THERE, BUSY, LOOP, SHORTER,
    WRONG_PART,
};

static struct hub {
    struct play play, storage;
    enum fault fault;
    int times;
    int status;            /* of the list; 0: 200 */
    const char *list;      /* the list's text; NULL: as it should be */
    int n_list, n_small, n_weights; /* requests */
    bool token_lost, token_leaked;
    uint64_t from;         /* of the last request for weights */
    int n_all;             /* requests for files */
    pid_t victim;          /* gets `signal` when request number `at` comes; 0: nobody */
    int signal, at;
    char *weights;
    char sum[65];
} hub;

static char *cache;

/* Which file has which weights; its blob is 71bb1d21. */
static const char shard_index[] = "{\"weight_map\":{\"a\":\"s-1.safetensors\",\"b\":\"s-2.safetensors\",\"c\":\"s-1.safetensors\"}}";

/* git's SHA-1 of "hello\n" and of nothing are known. */
static void put_list(struct buf *b)
{
    buf_printf(b, "{\"sha\":\"" COMMIT "\",\"siblings\":["
               "{\"rfilename\":\"config.json\",\"size\":6,\"blobId\":\"ce013625030ba8dba906f756967f9e9ca394464a\"},"
               "{\"rfilename\":\"tokenizer.json\",\"size\":0,\"blobId\":\"e69de29bb2d1d6434b8b29ae775ad8c2e48c5391\"},"
               "{\"rfilename\":\"README.md\",\"size\":6,\"blobId\":\"ce013625030ba8dba906f756967f9e9ca394464a\"},"
               "{\"rfilename\":\"model.safetensors\",\"size\":%d,\"blobId\":\"ce013625030ba8dba906f756967f9e9ca394464a\","
               "\"lfs\":{\"sha256\":\"%s\",\"size\":%d}},"
               "{\"rfilename\":\"y-00001-of-00002.gguf\",\"size\":6,\"blobId\":\"ce013625030ba8dba906f756967f9e9ca394464a\"},"
               "{\"rfilename\":\"y-00002-of-00002.gguf\",\"size\":0,\"blobId\":\"e69de29bb2d1d6434b8b29ae775ad8c2e48c5391\"},"
               "{\"rfilename\":\"gguf/x-Q4_0.gguf\",\"size\":6,\"blobId\":\"ce013625030ba8dba906f756967f9e9ca394464a\"},"
               "{\"rfilename\":\"mmproj-x-Q4_0.gguf\",\"size\":6,\"blobId\":\"ce013625030ba8dba906f756967f9e9ca394464a\"}"
               "]}", WEIGHTS, hub.sum, WEIGHTS);
}

static bool ends(const char *s, const char *end)
{
    size_t n = strlen(s), k = strlen(end);
    return n >= k && !strcmp(s + n - k, end);
}

static void strike(void)
{
    if (hub.victim > 0 && ++hub.n_all == hub.at)
        kill(hub.victim, hub.signal);
}

static void answer_hub(void *arg, const struct play_request *rq, struct play_answer *a)
{
    static _Thread_local char header[256];
    const char *key = play_header(rq, "authorization");
    (void)arg;
    hub.token_lost |= !key || strcmp(key, "Bearer hf_secret");
    strike();
    a->status = 200;
    a->length = true;
    if (!strcmp(rq->path, "/api/models/Acme/Nest/revision/main?blobs=true") ||
        !strcmp(rq->path, "/api/models/Acme/Nest/revision/pr%2F7?blobs=true")) {
        hub.n_list++;
        a->status = hub.status ? hub.status : 200;
        a->header = "Retry-After: 0\r\n";
        if (hub.status == 503 && hub.n_list > 1)
            a->status = 200;
        if (hub.list)
            buf_str(&a->body, hub.list);
        else
            put_list(&a->body);
    } else if (strncmp(rq->path, "/Acme/Nest/resolve/" COMMIT "/", 60) != 0) {
        a->status = 404;
    } else if (strstr(rq->path, "/model.safetensors") && !ends(rq->path, ".index.json")) {
        a->status = 302;
        snprintf(header, sizeof header, "Location: %s/%s?X-Sig=1\r\n",
                 hub.fault == LOOP ? hub.play.url : hub.storage.url,
                 hub.fault == LOOP ? "Acme/Nest/resolve/" COMMIT "/model.safetensors" : "blob");
        a->header = header;
    } else {
        hub.n_small++;
        if (ends(rq->path, ".index.json"))
            buf_str(&a->body, shard_index);
        else if (!ends(rq->path, "/tokenizer.json"))
            buf_str(&a->body, "hello\n");
    }
}

static void answer_storage(void *arg, const struct play_request *rq, struct play_answer *a)
{
    static _Thread_local char header[256];
    const char *range = play_header(rq, "range");
    (void)arg;
    hub.n_weights++;
    strike();
    hub.token_leaked |= play_header(rq, "authorization") != NULL;
    hub.from = range ? strtoull(range + strlen("bytes="), NULL, 10) : 0;
    enum fault fault = hub.n_weights <= hub.times ? hub.fault : NONE;
    size_t from = (size_t)hub.from;
    a->status = fault == BROKEN ? 500 : fault == EXPIRED ? 403 : fault == BUSY ? 429
                : fault == NOT_THERE ? 404 : 200;
    a->length = true;
    if (a->status == 200 && from && hub.fault != ALL_AGAIN) {
        a->status = from < WEIGHTS ? 206 : 416;
        snprintf(header, sizeof header, "Retry-After: 0\r\nContent-Range: bytes %zu-%d/%d\r\n",
                 fault == WRONG_PART ? from - 1 : from, WEIGHTS - 1, WEIGHTS);
        a->header = header;
        buf_add(&a->body, hub.weights + from, WEIGHTS - from);
    } else {
        a->header = "Retry-After: 0\r\n";
        if (a->status == 200)
            buf_add(&a->body, hub.weights, WEIGHTS);
    }
    if (fault == OTHER_BYTES)
        a->body.p[100] ^= 1;
    if (fault == LONGER)
        buf_str(&a->body, "xx");
    if (fault == SHORTER)
        a->body.n -= 5;
    if (fault == CUT || fault == ALL_AGAIN || (fault == WRONG_PART && !from))
        a->most = 70000;
}

static int setup(void **state)
{
    (void)state;
    cache = scratch_folder();
    hub.weights = xmalloc(WEIGHTS);
    for (int i = 0; i < WEIGHTS; i++)
        hub.weights[i] = (char)(mix64((uint64_t)i) >> 56);
    sha256_hex(hub.weights, WEIGHTS, hub.sum);
    play_open(&hub.play, answer_hub, NULL);
    play_open(&hub.storage, answer_storage, NULL);
    setenv("HF_ENDPOINT", hub.play.url, 1);
    setenv("HF_HUB_CACHE", cache, 1);
    setenv("HF_TOKEN", "hf_secret", 1);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    play_close(&hub.play);
    play_close(&hub.storage);
    free(hub.weights);
    nftw(cache, scratch_remove_one, 16, FTW_DEPTH | FTW_PHYS);
    free(cache);
    return 0;
}

/* An empty cache, and a hub that makes this fault so many times. */
static void begin(enum fault fault, int times)
{
    nftw(cache, scratch_remove_one, 16, FTW_DEPTH | FTW_PHYS);
    assert_int_equal(mkdir(cache, 0700), 0);
    hub.fault = fault;
    hub.times = times;
    hub.n_list = hub.n_small = hub.n_weights = hub.status = 0;
    hub.list = NULL;
    hub.n_all = 0;
    hub.victim = 0;
    hub.token_lost = hub.token_leaked = false;
}

static bool pull(const char *name, char **path, struct err *e)
{
    const struct pull_opts o = {.name = name};
    *path = NULL;
    *e = (struct err){0};
    return hub_pull(&o, path, e);
}

static char *in_cache(const char *below)
{
    return xasprintf("%s/%s", cache, below);
}

static bool exists(const char *below)
{
    struct stat st;
    char *path = in_cache(below);
    bool is = lstat(path, &st) == 0;
    free(path);
    return is;
}

static void assert_content(const char *below, const char *want, size_t n)
{
    struct buf b = {0};
    struct err e = {0};
    char *path = in_cache(below);
    if (!buf_read_file(&b, path, 1 << 20, &e))
        fail_msg("%s", e.msg);
    assert_int_equal(b.n, n);
    assert_true(!n || memcmp(b.p, want, n) == 0);
    buf_free(&b);
    free(path);
}

static void assert_whole(const char *path)
{
    char *want = in_cache(SNAPSHOT),
        *part = xasprintf("models--Acme--Nest/blobs/%s.aerie.incomplete", hub.sum);
    assert_string_equal(path, want);
    assert_content(SNAPSHOT "/config.json", "hello\n", 6);
    assert_content(SNAPSHOT "/tokenizer.json", "", 0);
    assert_content(SNAPSHOT "/model.safetensors", hub.weights, WEIGHTS);
    assert_content("models--Acme--Nest/refs/main", COMMIT, 40);
    assert_false(exists(SNAPSHOT "/README.md"));
    assert_false(exists(part));
    assert_false(hub.token_lost);
    assert_false(hub.token_leaked);
    free(want);
    free(part);
}

static void must_pull(const char *name)
{
    struct err e;
    char *path;
    if (!pull(name, &path, &e))
        fail_msg("%s", e.msg);
    assert_whole(path);
    free(path);
}

static void must_fail(const char *name, enum err_kind kind, const char *says)
{
    struct err e;
    char *path;
    if (pull(name, &path, &e))
        fail_msg("%s was fetched", name);
    if (e.kind != kind || !strstr(e.msg, says) || strchr(e.msg, '\n') || strstr(e.msg, "hf_secret"))
        fail_msg("said \"%s\", expected \"%s\"", e.msg, says);
    assert_false(hub.token_leaked);
}

/* ---- what is fetched ---- */

static void test_a_model_comes_into_the_cache(void **state)
{
    (void)state;
    char to[128], *link = in_cache(SNAPSHOT "/model.safetensors"), want[96];
    begin(NONE, 0);
    must_pull("Acme/Nest");
    ssize_t n = readlink(link, to, sizeof to - 1);
    assert_true(n > 0);
    to[n] = '\0';
    snprintf(want, sizeof want, "../../blobs/%s", hub.sum);
    assert_string_equal(to, want);
    assert_int_equal(hub.n_weights, 1);
    must_pull("Acme/Nest"); /* again: only the list is asked for */
    assert_int_equal(hub.n_list, 2);
    assert_int_equal(hub.n_weights, 1);
    assert_int_equal(hub.n_small, 1); /* an empty file needs no request */
    free(link);
}

/* Of weights in several files those come that the index names; each must be there. */
static void test_weights_in_several_files(void **state)
{
#define FILE_OF(name, size, blob) "{\"rfilename\":\"" name "\",\"size\":" #size ",\"blobId\":\"" blob "\"}"
#define HELLO "ce013625030ba8dba906f756967f9e9ca394464a"
#define SHARDS "{\"sha\":\"" COMMIT "\",\"siblings\":[" FILE_OF("config.json", 6, HELLO) "," FILE_OF("s-1.safetensors", 6, HELLO) "," \
    FILE_OF("s-3.safetensors", 6, HELLO) "," FILE_OF("model.safetensors.index.json", 82, "71bb1d21aadb787c90c243f535a0b0d93582bcaf")
    (void)state;
    struct err e;
    char *path;
    begin(NONE, 0);
    hub.list = SHARDS "," FILE_OF("s-2.safetensors", 6, HELLO) "]}";
    if (!pull("Acme/Nest", &path, &e))
        fail_msg("%s", e.msg);
    free(path);
    assert_content(SNAPSHOT "/model.safetensors.index.json", shard_index, sizeof shard_index - 1);
    assert_content(SNAPSHOT "/s-1.safetensors", "hello\n", 6);
    assert_content(SNAPSHOT "/s-2.safetensors", "hello\n", 6);
    assert_false(exists(SNAPSHOT "/s-3.safetensors"));
    begin(NONE, 0);
    hub.list = SHARDS "]}";
    must_fail("Acme/Nest", ERR_MODEL, "model.safetensors.index.json names s-2.safetensors, which the model does not have");
    assert_false(exists(SNAPSHOT "/s-1.safetensors"));
}

static void test_a_gguf_in_a_folder_of_another_revision(void **state)
{
    (void)state;
    struct err e;
    char *path, *want = in_cache(SNAPSHOT "/gguf/x-Q4_0.gguf");
    begin(NONE, 0);
    if (!pull("Acme/Nest@pr/7:q4_0", &path, &e))
        fail_msg("%s", e.msg);
    assert_string_equal(path, want);
    assert_content(SNAPSHOT "/gguf/x-Q4_0.gguf", "hello\n", 6);
    assert_content("models--Acme--Nest/refs/pr/7", COMMIT, 40);
    assert_int_equal(hub.n_weights, 0);
    free(path);
    free(want);
    must_fail("Acme/Nest:Q8_0", ERR_MODEL, "has no Q8_0; it has gguf/x-Q4_0.gguf");
    must_fail("Acme/Nest:y.gguf", ERR_MODEL, "has no y.gguf");
}

/* ---- faults ---- */

static void test_faults_that_pass(void **state)
{
    static const struct {
        enum fault fault;
        int times;
    } each[] = {{CUT, 3}, {BROKEN, 2}, {ALL_AGAIN, 1}, {EXPIRED, 2}, {BUSY, 3}, {SHORTER, 1}};
    (void)state;
    for (size_t i = 0; i < sizeof each / sizeof *each; i++) {
        begin(each[i].fault, each[i].times);
        must_pull("Acme/Nest");
        assert_int_equal(hub.n_weights, each[i].times + 1);
        if (each[i].fault == CUT)
            assert_int_equal(hub.from, 3 * 70000);
    }
    begin(NONE, 0);
    hub.status = 503; /* the list, once */
    must_pull("Acme/Nest");
}

static void test_faults_that_stay(void **state)
{
    static const struct {
        enum fault fault;
        const char *says;
        int asked;
    } each[] = {
        {BROKEN, "model.safetensors: the server answers 500", 5},
        {EXPIRED, "model.safetensors: the server answers 403", 5},
        {NOT_THERE, "model.safetensors: the hub has no such file", 1},
        {LONGER, "model.safetensors is longer than the 300000 bytes", 1},
        {LOOP, "model.safetensors: more than 5 redirects", 0},
        {OTHER_BYTES, "model.safetensors: what came has the checksum", 1},
        {WRONG_PART, "model.safetensors: the server's answer begins at byte 69999; expected 70000",
         2},
    };
    (void)state;
    for (size_t i = 0; i < sizeof each / sizeof *each; i++) {
        begin(each[i].fault, 1000);
        must_fail("Acme/Nest", ERR_MODEL, each[i].says);
        assert_int_equal(hub.n_weights, each[i].asked);
        assert_false(exists(SNAPSHOT "/model.safetensors"));
        assert_false(exists("models--Acme--Nest/refs/main"));
        hub.fault = NONE;
        must_pull("Acme/Nest"); /* what came before is no obstacle */
    }
}

/* What an earlier process left is used, unless it is not the beginning of the file. */
static void test_a_fetch_goes_on_where_another_ended(void **state)
{
    (void)state;
    char *part = xasprintf("models--Acme--Nest/blobs/%s.aerie.incomplete", hub.sum),
        *path = in_cache(part);
    for (int k = 0; k < 4; k++) {
        begin(NONE, 0);
        must_pull("Acme/Nest");
        char *blob = xasprintf("%s/models--Acme--Nest/blobs/%s", cache, hub.sum);
        assert_int_equal(unlink(blob), 0);
        free(blob);
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        size_t n = k == 0 ? 123456 : k == 1 ? WEIGHTS : k == 2 ? WEIGHTS + 10 : 5000;
        for (size_t i = 0; i < n; i++)
            fputc(k < 3 && i < WEIGHTS ? hub.weights[i] : 'x', f);
        fclose(f);
        if (k == 3) {
            must_fail("Acme/Nest", ERR_MODEL, "checksum");
            assert_false(exists(part));
        }
        hub.n_weights = 0;
        must_pull("Acme/Nest");
        assert_int_equal(hub.n_weights, k == 1 ? 0 : 1);
        assert_int_equal(hub.from, k == 0 ? 123456 : 0);
    }
    free(part);
    free(path);
}

static void test_lists_that_are_refused(void **state)
{
    static const struct {
        int status;
        const char *list, *says;
    } each[] = {
        {401, "{}", "absent, private, or its licence was not accepted"},
        {403, "{}", "accept the licence"},
        {404, "{}", "no such model, or no revision main"},
        {0, "[]", "the hub's answer"},
        {0, "{\"sha\":\"x\",\"siblings\":[{}]}", "no commit or no files"},
        {0, "{\"sha\":\"" COMMIT "\",\"siblings\":[]}", "no commit or no files"},
        {0, "{\"sha\":\"" COMMIT "\",\"siblings\":[{\"rfilename\":\"../x\",\"size\":1,\"blobId\":"
            "\"ce013625030ba8dba906f756967f9e9ca394464a\"}]}", "siblings[0]: expected a path"},
        {0, "{\"sha\":\"" COMMIT "\",\"siblings\":[{\"rfilename\":\"/etc/x\",\"size\":1,\"blobId\":"
            "\"ce013625030ba8dba906f756967f9e9ca394464a\"}]}", "siblings[0]"},
        {0, "{\"sha\":\"" COMMIT "\",\"siblings\":[{\"rfilename\":\"config.json\",\"size\":1,\"blobId\":\"../../x\"}]}",
         "siblings[0]"},
        {0, "{\"sha\":\"" COMMIT "\",\"siblings\":[{\"rfilename\":\"config.json\",\"size\":-1,\"blobId\":"
            "\"ce013625030ba8dba906f756967f9e9ca394464a\"}]}", "siblings[0]"},
        {0, "{\"sha\":\"" COMMIT "\",\"siblings\":[{\"rfilename\":\"config.json\",\"size\":6,\"blobId\":"
            "\"ce013625030ba8dba906f756967f9e9ca394464a\"}]}", "no GGUF file"},
        {0, "{\"sha\":\"" COMMIT "\",\"siblings\":[{\"rfilename\":\"config.json\",\"size\":6,\"blobId\":"
            "\"ce013625030ba8dba906f756967f9e9ca394464a\"},{\"rfilename\":\"model.safetensors\",\"size\":"
            "9000000000000000000,\"lfs\":{\"sha256\":\"0000000000000000000000000000000000000000000000000000000000000000\","
            "\"size\":9000000000000000000}}]}", "GiB free"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof each / sizeof *each; i++) {
        begin(NONE, 0);
        hub.status = each[i].status;
        hub.list = each[i].list;
        must_fail("Acme/Nest", ERR_MODEL, each[i].says);
        assert_int_equal(hub.n_weights, 0);
    }
}

/* ---- ended at any moment ---- */

/* The changes that a pull makes of files are counted here, in the place of the C library's
 * functions, on the thread that sets `moment.left`. When none is left: */
enum ending {
    DIES,  /* the process is killed, a write having written half */
    FULL,  /* this change and all later ones fail, as on a full disk */
    STOPS, /* the flag that SIGINT and SIGTERM set is set */
};
static _Thread_local struct moment {
    int left; /* 0: nothing is counted */
    bool full;
    enum ending ending;
    struct stop *stop;
} moment;

/* Whether the change that comes now is made; `half` is called first if the process dies. */
static bool may_change(void (*half)(void *arg), void *arg)
{
    struct moment *m = &moment;
    if (m->full) {
        errno = ENOSPC;
        return false;
    }
    if (!m->left || --m->left)
        return true;
    if (m->ending == DIES) {
        if (half)
            half(arg);
        kill(getpid(), SIGKILL);
    }
    if (m->ending == STOPS)
        m->stop->cancelled = 1;
    m->full = m->ending == FULL;
    return may_change(NULL, NULL);
}

struct writing {
    int fd;
    const void *p;
    size_t n;
};

static void write_half(void *arg)
{
    const struct writing *w = arg;
    syscall(SYS_write, w->fd, w->p, w->n / 2);
}

ssize_t write(int fd, const void *p, size_t n)
{
    struct writing w = {fd, p, n};
    return may_change(write_half, &w) ? syscall(SYS_write, fd, p, n) : -1;
}

int rename(const char *from, const char *to)
{
    return may_change(NULL, NULL) ? (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0)
                                  : -1;
}

int symlink(const char *to, const char *path)
{
    return may_change(NULL, NULL) ? (int)syscall(SYS_symlinkat, to, AT_FDCWD, path) : -1;
}

int mkdir(const char *path, mode_t mode)
{
    struct stat st;
    if (stat(path, &st) == 0) {
        errno = EEXIST;
        return -1;
    }
    return may_change(NULL, NULL) ? (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode) : -1;
}

int fsync(int fd)
{
    return may_change(NULL, NULL) ? (int)syscall(SYS_fsync, fd) : -1;
}

/* Whether what `name` finds in the cache, if anything, is whole. */
static void assert_none_or_whole(const char *name, const char *const *file, int n)
{
    struct err e = {0};
    struct stat st;
    char *found = hub_find(name, &e);
    for (int i = 0; found && i < n; i++) {
        char *path = xasprintf("%s/%s/%s", cache, SNAPSHOT, file[i]);
        if (stat(path, &st) != 0)
            fail_msg("%s is found without %s", name, file[i]);
        free(path);
    }
    if (!found)
        assert_int_equal(e.kind, ERR_MODEL);
    free(found);
}

static int n_seen;

static int see(const char *path, const struct stat *st, int type, struct FTW *f)
{
    (void)st, (void)f;
    n_seen += type == FTW_F || type == FTW_SL || type == FTW_SLN;
    if (strstr(path, ".aerie"))
        fail_msg("%s was left", path);
    return 0;
}

/* Fetches into an empty cache until change number k, and then again. False: there were less. */
static bool end_at(const char *name, const char *const *file, int n, enum ending ending, int k)
{
    struct stop stop = {.submitted = 1, .running = 1};
    const struct pull_opts o = {.name = name, .stop = &stop};
    struct err e = {0};
    char *path = NULL, *part = xasprintf("%s/models--Acme--Nest/blobs/%s.aerie.incomplete", cache,
                                         hub.sum);
    struct stat st = {0};
    begin(NONE, 0);
    bool all = false;
    pid_t child = ending == DIES ? fork() : 0;
    if (child > 0) {
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        all = WIFEXITED(status) && WEXITSTATUS(status) == 0;
        assert_true(all || (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
    } else {
        moment = (struct moment){.left = k, .ending = ending, .stop = &stop};
        all = hub_pull(&o, &path, &e);
        bool begun = !moment.left;
        moment = (struct moment){0};
        if (ending == DIES)
            _exit(all ? 0 : 1);
        if (!all && (!begun || e.kind != (ending == STOPS ? ERR_NEGATIVE : ERR_MODEL) ||
                     strchr(e.msg, '\n') || !e.msg[0] ||
                     (ending == FULL && !strstr(e.msg, strerror(ENOSPC)))))
            fail_msg("change %d: said \"%s\"", k, e.msg);
        all &= !begun;
        free(path);
    }
    assert_none_or_whole(name, file, n);
    bool partly = stat(part, &st) == 0 && st.st_size > 0 && st.st_size < WEIGHTS;
    free(part);
    hub.n_weights = 0;
    path = NULL;
    stop.cancelled = 0;
    e = (struct err){0};
    if (!hub_pull(&o, &path, &e))
        fail_msg("after change %d: %s", k, e.msg);
    free(path);
    if (partly)
        assert_int_equal(hub.from, st.st_size);
    for (int i = 0; i < n; i++) {
        char *below = xasprintf("%s/%s", SNAPSHOT, file[i]);
        bool weights = ends(below, ".safetensors");
        bool empty = ends(below, "tokenizer.json") || ends(below, "2-of-00002.gguf");
        assert_content(below, weights ? hub.weights : "hello\n", weights ? WEIGHTS : empty ? 0 : 6);
        free(below);
    }
    n_seen = 0;
    nftw(cache, see, 16, FTW_PHYS);
    return !all;
}

static void test_a_pull_that_ends_at_any_moment(void **state)
{
    static const char *const folder[] = {"config.json", "tokenizer.json", "model.safetensors"},
                             *const parts[] = {"y-00001-of-00002.gguf", "y-00002-of-00002.gguf"};
    (void)state;
    for (int ending = 0; ending < 3; ending++)
        for (int split = 0; split < 2; split++) {
            const char *name = split ? "Acme/Nest:y-00001-of-00002.gguf" : "Acme/Nest";
            int k = 1, files = 0;
            for (; end_at(name, split ? parts : folder, split ? 2 : 3, (enum ending)ending, k); k++)
                files = n_seen;
            assert_true(k > 15); /* moments, and not none */
            /* blobs, links, the branch and locks */
            assert_int_equal(files, split ? 2 + 2 + 1 + 2 : 3 + 3 + 1 + 3);
        }
}

/* Starts `aerie pull`, which gets a signal when request number `at` comes; its exit status, as a
 * shell has it. */
static int pull_process(int signal, int at, struct buf *said)
{
    const char *aerie = getenv("AERIE");
    int out[2], status;
    char part[512];
    assert_int_equal(pipe(out), 0);
    hub.signal = signal;
    hub.at = at;
    pid_t child = fork();
    if (child == 0) {
        usleep(1000); /* the server learns of the victim first */
        dup2(out[1], 2);
        close(out[0]);
        close(out[1]);
        execl(aerie ? aerie : "build/aerie", "aerie", "pull", "-q", "Acme/Nest", (char *)NULL);
        _exit(127);
    }
    hub.victim = child;
    close(out[1]);
    for (ssize_t n; (n = read(out[0], part, sizeof part)) > 0;)
        buf_add(said, part, (size_t)n);
    close(out[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    hub.victim = 0;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

static void test_signals_at_each_request(void **state)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGKILL};
    static const char *const files[] = {"config.json", "tokenizer.json", "model.safetensors"};
    (void)state;
    for (int i = 0; i < 3; i++)
        for (int at = 1; at <= 4; at++) { /* the list, config.json, the weights: hub, storage */
            struct buf said = {0};
            begin(NONE, 0);
            int status = pull_process(signals[i], at, &said);
            if (status != 128 + signals[i])
                fail_msg("signal %d at request %d: status %d, %s", signals[i], at, status,
                         said.n ? said.p : "");
            if (signals[i] != SIGKILL)
                assert_true(said.n &&
                            ends(said.p, "stopped; aerie pull goes on where this ended\n") &&
                            strchr(said.p, '\n') == said.p + said.n - 1);
            assert_none_or_whole("Acme/Nest", files, 3);
            must_pull("Acme/Nest");
            buf_free(&said);
        }
}

/* ---- what forbids it ---- */

static void test_names_and_surroundings(void **state)
{
    (void)state;
    static const struct stop asked = {.submitted = 1, .running = 1, .cancelled = 1};
    begin(NONE, 0);
    must_fail("nest", ERR_USAGE, "names no model of the hub");
    must_fail("Acme/Nest/x", ERR_USAGE, "names no model of the hub");
    must_fail("Acme/..", ERR_USAGE, "names no model of the hub");
    setenv("HF_HUB_OFFLINE", "yes", 1);
    must_fail("Acme/Nest", ERR_USAGE, "nothing is fetched");
    unsetenv("HF_HUB_OFFLINE");
    setenv("HF_ENDPOINT", "ftp://127.0.0.1", 1);
    must_fail("Acme/Nest", ERR_USAGE, "HF_ENDPOINT");
    setenv("HF_ENDPOINT", "http://192.0.2.1", 1);
    must_fail("Acme/Nest", ERR_USAGE, "the token would travel unencrypted");
    setenv("HF_ENDPOINT", hub.play.url, 1);
    assert_int_equal(hub.n_list, 0);
    const struct pull_opts o = {.name = "Acme/Nest", .stop = &asked};
    struct err e = {0};
    char *path;
    assert_false(hub_pull(&o, &path, &e));
    assert_int_equal(e.kind, ERR_NEGATIVE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_model_comes_into_the_cache),
        cmocka_unit_test(test_weights_in_several_files),
        cmocka_unit_test(test_a_gguf_in_a_folder_of_another_revision),
        cmocka_unit_test(test_faults_that_pass),
        cmocka_unit_test(test_faults_that_stay),
        cmocka_unit_test(test_a_fetch_goes_on_where_another_ended),
        cmocka_unit_test(test_a_pull_that_ends_at_any_moment),
        cmocka_unit_test(test_signals_at_each_request),
        cmocka_unit_test(test_lists_that_are_refused),
        cmocka_unit_test(test_names_and_surroundings),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
