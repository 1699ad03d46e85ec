/* test_cuda_wait.c - a GPU that does not finish: every wait of the host ends after its time limit,
 * the device then counts as failed, the turn ends as for any lost device, and the process can end
 * while the kernel still runs. Each test is a process of its own, because nothing else can use the
 * GPU from that process afterwards. Without a GPU every test is skipped. */
#include "tests/scratch.h"
#include "tests/spy_kit.h"

enum { LIMIT_MS = 400, BUSY_MS = 1500 };

#if HAVE_CUDA

/* As kernels_cuda, but waits end early, and with the attention or the launch of a graph at which a
 * count ends comes a kernel that takes longer. A count of 0: never. */
static struct kernels slow;
static int attentions, launches;

static struct kdev *slow_open(const struct k_opts *o, struct err *e)
{
    struct k_opts early = *o;
    early.wait_limit_ms = LIMIT_MS;
    return kernels_cuda.open(&early, e);
}

static void slow_attn(struct kdev *d, const struct k_attn *a)
{
    kernels_cuda.attn(d, a);
    if (attentions && --attentions == 0)
        kernels_cuda.phase(d, PHASE_BUSY, BUSY_MS);
}

static void slow_launch(struct kdev *d, struct kgraph *g)
{
    if (launches && --launches == 0)
        kernels_cuda.phase(d, PHASE_BUSY, BUSY_MS);
    kernels_cuda.graph_launch(d, g);
}

#define NEED(x)                                                                                    \
    do {                                                                                           \
        if (!(x)) {                                                                                \
            fprintf(stderr, "# line %d: %s\n", __LINE__, #x);                                      \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

static const char said[] = "the device has not finished within 0.4 s";

/* How a wait begins: at sync(), a copy, a release, a put of more than the staging buffer. */
static int one_wait(int how)
{
    struct err e = {0}, again = {0};
    struct kdev *d = slow_open(&(struct k_opts){.precision = K_BF16}, &e);
    NEED(d != NULL);
    const size_t bytes = (size_t)2 << 20;
    char *host = xmalloc(bytes);
    memset(host, 1, bytes);
    kbuf b = kernels_cuda.alloc(d, bytes, "test", &e),
        other = kernels_cuda.alloc(d, 64, "test", &e);
    NEED(b.p && other.p);
    kernels_cuda.phase(d, PHASE_BUSY, BUSY_MS);
    if (how == 1)
        kernels_cuda.get(d, host, other, 64);
    else if (how == 2)
        kernels_cuda.release(d, other);
    else if (how == 3)
        kernels_cuda.put(d, b, host, bytes);
    NEED(how != 1 || host[0] == 0);
    NEED(!kernels_cuda.sync(d, &e) && strstr(e.msg, said));
    NEED(!kernels_cuda.sync(d, &again) && strcmp(e.msg, again.msg) == 0);
    NEED(!kernels_cuda.alloc(d, 64, "test", &again).p);
    kernels_cuda.release(d, b);
    NEED(kernels_cuda.outbox(d) == NULL);
    kernels_cuda.close(d);
    free(host);
    return 0;
}

static int wait_at_sync(void) { return one_wait(0); }
static int wait_at_get(void) { return one_wait(1); }
static int wait_at_release(void) { return one_wait(2); }
static int wait_at_put(void) { return one_wait(3); }

/* A kernel that ends in time is no failure, and so is a process that was stopped meanwhile. */
static int wait_in_time(void)
{
    struct err e = {0};
    struct kdev *d = slow_open(&(struct k_opts){.precision = K_BF16}, &e);
    NEED(d != NULL);
    kernels_cuda.phase(d, PHASE_BUSY, LIMIT_MS / 4);
    NEED(kernels_cuda.sync(d, &e));
    const pid_t me = getpid(), helper = fork();
    if (helper == 0) {
        usleep(LIMIT_MS * 250);
        kill(me, SIGSTOP);
        usleep(LIMIT_MS * 2000);
        kill(me, SIGCONT);
        _exit(0);
    }
    kernels_cuda.phase(d, PHASE_BUSY, LIMIT_MS);
    NEED(kernels_cuda.sync(d, &e));
    waitpid(helper, NULL, 0);
    kernels_cuda.close(d);
    return 0;
}

/* The GPU gets stuck in the second turn: in the prompt, or in a cycle. */
static int engine_stuck(bool in_cycle)
{
    struct err e = {0};
    struct answer a = {0};
    slow = kernels_cuda;
    slow.open = slow_open, slow.attn = slow_attn, slow.graph_launch = slow_launch;
    struct engine_opts o = {.model = NESTLING, .draft = NESTLING_DRAFT, .backend = &slow};
    settings_init(&o.settings);
    o.settings.max_tokens = 40;
    struct backend *g = engine_open(&o, &e);
    NEED(g != NULL);
    ask(g, RQ_SAY, "Hello!", &a);
    NEED(a.ended && !a.lost && a.n_fault == 0);
    attentions = in_cycle ? 0 : 2, launches = in_cycle ? 3 : 0;
    ask(g, RQ_SAY, "count to twenty", &a);
    NEED(a.lost);
    NEED(a.n_fault == 1);
    NEED(a.ended && a.reason == STOP_DEVICE);
    NEED(strstr(a.faults.p, "the device failed: CUDA failed in or before"));
    NEED(strstr(a.faults.p, said));
    ask(g, RQ_SAY, "and again", &a);
    NEED(a.lost && !a.ended);
    backend_close(g);
    answer_free(&a);
    return 0;
}
static int engine_stuck_in_prompt(void) { return engine_stuck(false); }
static int engine_stuck_in_cycle(void) { return engine_stuck(true); }

static bool has_gpu(void)
{
    static int status = -1;
    if (status >= 0)
        return status == 0;
    const pid_t p = fork();
    if (p == 0) {
        struct err e = {0};
        struct kdev *d = kernels_cuda.open(&(struct k_opts){.precision = K_BF16}, &e);
        if (d)
            kernels_cuda.close(d);
        else
            printf("# no CUDA device: %s\n", e.msg), fflush(stdout);
        _exit(d == NULL);
    }
    waitpid(p, &status, 0);
    return status == 0;
}

/* Runs the test in a process of its own, which must end by exit(). */
static void apart(int (*test)(void))
{
    int status = 0;
    if (!has_gpu())
        skip();
    const uint64_t from = clock_ns();
    const pid_t p = fork();
    if (p == 0) {
        alarm(60);
        exit(test());
    }
    waitpid(p, &status, 0);
    print_message("# %.1f s\n", (double)(clock_ns() - from) * 1e-9);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}
#else
#define apart(test) skip()
#endif

static void test_waits_end_after_the_limit(void **state)
{
    (void)state;
    apart(wait_at_sync);
    apart(wait_at_get);
    apart(wait_at_release);
    apart(wait_at_put);
}

static void test_a_wait_within_the_limit_is_no_failure(void **state)
{
    (void)state;
    apart(wait_in_time);
}

static void test_an_engine_reports_a_lost_device(void **state)
{
    (void)state;
    apart(engine_stuck_in_prompt);
    apart(engine_stuck_in_cycle);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_waits_end_after_the_limit),
        cmocka_unit_test(test_a_wait_within_the_limit_is_no_failure),
        cmocka_unit_test(test_an_engine_reports_a_lost_device),
    };
    char *state = scratch_folder();
    setenv("XDG_STATE_HOME", state, 1);
    int bad = cmocka_run_group_tests(tests, NULL, NULL);
    scratch_remove(state);
    return bad;
}
