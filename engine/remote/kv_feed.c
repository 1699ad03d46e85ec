/* kv_feed.c - see kv_feed.h. */
#include "engine/remote/kv_feed.h"

#include <stdio.h>
#include <string.h>

/* ---- the address ----------------------------------------------------------------------------- */

static bool copy_address(char *out, size_t room, const char *text, size_t n, struct err *e)
{
    bool tcp = n > 6 && !memcmp(text, "tcp://", 6), ipc = n > 6 && !memcmp(text, "ipc://", 6);
    const char *colon = tcp ? memrchr(text + 6, ':', n - 6) : NULL;
    bool port = colon && colon > text + 6 && colon + 1 < text + n && text[6] != '*';
    for (const char *p = colon; port && ++p < text + n;)
        port = *p >= '0' && *p <= '9';
    if (n >= room || !(port || ipc))
        return err_set(e, ERR_USAGE, "\"%.*s\" is no address of KV events; "
                                     "expected tcp://HOST:PORT",
                       (int)(n < 100 ? n : 100), text);
    memcpy(out, text, n);
    out[n] = '\0';
    return true;
}

bool kv_address_read(struct kv_address *a, const char *text, struct err *e)
{
    size_t n = strcspn(text, ",");
    *a = (struct kv_address){0};
    if (!copy_address(a->events, sizeof a->events, text, n, e))
        return false;
    if (!text[n])
        return true;
    if (strncmp(text + n, ",replay=", 8) != 0)
        return err_set(e, ERR_USAGE, "\"%.100s\" follows the address of KV events; expected "
                       "replay=tcp://HOST:PORT", text + n + 1);
    return copy_address(a->replay, sizeof a->replay, text + n + 8, strlen(text + n + 8), e);
}

/* ---- batches --------------------------------------------------------------------------------- */

void kv_feed_open(struct kv_feed *f, const struct kv_address *a)
{
    *f = (struct kv_feed){.address = *a};
    pthread_mutex_init(&f->mu, NULL);
    kv_blocks_init(&f->blocks);
}

void kv_feed_close(struct kv_feed *f)
{
    kv_blocks_free(&f->blocks);
    pthread_mutex_destroy(&f->mu);
}

static void refuse(struct kv_feed *f, const char *why)
{
    if (f->view.refused++ == 0)
        snprintf(f->view.wrong, sizeof f->view.wrong, "%.150s", why);
}

/* Once every group is empty, the counts are exact again. */
static void apply(void *arg, const struct kv_event *ev)
{
    struct kv_feed *f = arg;
    kv_blocks_apply(&f->blocks, ev);
    if (ev->kind != KV_CLEARED)
        return;
    bool empty = true;
    for (int g = 0; g < f->blocks.n_group; g++)
        empty = empty && f->blocks.group[g].copies == 0;
    f->view.whole |= empty;
}

/* Applies a batch if no batch before it is missing, or if the missing ones will not come. */
static void take(struct kv_feed *f, uint64_t seq, const void *batch, size_t n)
{
    struct kv_batch b;
    struct err e;
    uint64_t gap = f->begun ? seq - f->next : seq;
    if (gap) {
        f->view.whole = false;
        *(f->begun ? &f->view.missed : &f->view.before) += gap;
    } else if (!f->begun) {
        f->view.whole = true;
    }
    f->begun = true;
    f->next = seq + 1;
    f->view.batches++;
    f->view.ns = clock_ns();
    if (!kv_batch_read(&b, batch, n, apply, f, &e)) {
        f->view.whole = false;
        refuse(f, e.msg);
        return;
    }
    f->view.events += (uint64_t)b.n_event;
    if (b.n_refused) {
        f->view.whole = false;
        refuse(f, b.why);
        f->view.refused += (uint64_t)(b.n_refused - 1);
    }
    kv_blocks_sample(&f->blocks, f->view.ns);
}

static bool read_seq(struct kv_feed *f, const void *p, size_t n, uint64_t *out)
{
    const uint8_t *b = p;
    if (n != 8) {
        refuse(f, "a sequence number is not of 8 bytes");
        return false;
    }
    *out = 0;
    for (int i = 0; i < 8; i++)
        *out = *out << 8 | b[i];
    if (*out < (uint64_t)1 << 62)
        return true;
    refuse(f, "a sequence number is negative");
    return false;
}

/* A smaller number means that the server was restarted. Only after a replay a number is received
 * twice, if the batch was published during the replay. */
static bool is_restart(const struct kv_feed *f, uint64_t seq)
{
    return f->begun && seq < f->next && f->live && seq <= f->last_live;
}

static bool take_live(struct kv_feed *f, uint64_t seq, const void *batch, size_t n, bool last,
                      uint64_t *from)
{
    if (is_restart(f, seq)) {
        kv_blocks_clear(&f->blocks);
        f->begun = f->live = false;
    }
    *from = f->begun ? f->next : 0;
    if (seq > *from && f->address.replay[0] && !last)
        return false;
    f->live = true;
    f->last_live = seq;
    if (!f->begun || seq >= f->next)
        take(f, seq, batch, n);
    return true;
}

bool kv_feed_live(struct kv_feed *f, const void *seq, size_t n_seq, const void *batch, size_t n,
                  bool last, uint64_t *from)
{
    uint64_t at;
    pthread_mutex_lock(&f->mu);
    bool done = !read_seq(f, seq, n_seq, &at) || take_live(f, at, batch, n, last, from);
    pthread_mutex_unlock(&f->mu);
    return done;
}

bool kv_feed_replayed(struct kv_feed *f, const void *seq, size_t n_seq, const void *batch, size_t n)
{
    static const uint8_t end[8] = {255, 255, 255, 255, 255, 255, 255, 255};
    uint64_t at;
    if (n_seq == sizeof end && memcmp(seq, end, sizeof end) == 0)
        return false;
    pthread_mutex_lock(&f->mu);
    if (read_seq(f, seq, n_seq, &at) && (!f->begun || at >= f->next)) {
        take(f, at, batch, n);
        f->view.replayed++;
    }
    pthread_mutex_unlock(&f->mu);
    return true;
}

void kv_feed_refuse(struct kv_feed *f, const char *why)
{
    pthread_mutex_lock(&f->mu);
    refuse(f, why);
    pthread_mutex_unlock(&f->mu);
}

/* A server that is connected again may have been restarted: the next published number decides,
 * whatever was replayed. */
void kv_feed_connected(struct kv_feed *f, bool is)
{
    pthread_mutex_lock(&f->mu);
    f->view.connected = is;
    if (!is && f->begun) {
        f->live = true;
        f->last_live = f->next - 1;
    }
    pthread_mutex_unlock(&f->mu);
}

/* ---- readers --------------------------------------------------------------------------------- */

void kv_feed_session(struct kv_feed *f, const int32_t *id, int n)
{
    pthread_mutex_lock(&f->mu);
    kv_blocks_session(&f->blocks, id, n);
    pthread_mutex_unlock(&f->mu);
}

static void write_about(const struct kv_feed *f, struct blocks_view *v)
{
    char more[120] = "";
    if (v->ns == 0)
        snprintf(more, sizeof more, v->connected ? ": none has come yet" : ": not connected yet");
    else if (f->blocks.dropped)
        snprintf(more, sizeof more, "; %llu blocks are left out: too many",
                 (unsigned long long)f->blocks.dropped);
    else if (!v->whole)
        snprintf(more, sizeof more, "; some are missing, so the counts are not exact");
    snprintf(v->about, sizeof v->about, "blocks, reconstructed from events%s", more);
}

void kv_feed_view(struct kv_feed *f, struct blocks_view *v)
{
    pthread_mutex_lock(&f->mu);
    *v = f->view;
    kv_blocks_view(&f->blocks, v);
    v->unknown = f->blocks.unknown;
    v->whole = v->whole && f->blocks.dropped == 0;
    snprintf(v->source, sizeof v->source, "%s", f->address.events);
    write_about(f, v);
    pthread_mutex_unlock(&f->mu);
}

int kv_feed_samples(struct kv_feed *f, struct block_sample *out, int max)
{
    pthread_mutex_lock(&f->mu);
    int n = kv_blocks_samples(&f->blocks, out, max);
    pthread_mutex_unlock(&f->mu);
    return n;
}

int kv_feed_chain(struct kv_feed *f, struct session_block *out, int max)
{
    pthread_mutex_lock(&f->mu);
    int n = kv_blocks_chain(&f->blocks, out, max);
    pthread_mutex_unlock(&f->mu);
    return n;
}
