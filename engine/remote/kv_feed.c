/* kv_feed.c - see kv_feed.h. */
#include "engine/remote/kv_feed.h"

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

bool kv_address_read(struct kv_address *address, const char *text, struct err *e)
{
    size_t n = strcspn(text, ",");
    *address = (struct kv_address){0};
    if (!copy_address(address->events, sizeof address->events, text, n, e))
        return false;
    if (!text[n])
        return true;
    if (strncmp(text + n, ",replay=", 8) != 0)
        return err_set(e, ERR_USAGE, "\"%.100s\" follows the address of KV events; expected "
                       "replay=tcp://HOST:PORT", text + n + 1);
    return copy_address(address->replay, sizeof address->replay, text + n + 8, strlen(text + n + 8),
                        e);
}

/* ---- batches --------------------------------------------------------------------------------- */

void kv_feed_open(struct kv_feed *feed, const struct kv_address *address)
{
    *feed = (struct kv_feed){.address = *address};
    pthread_mutex_init(&feed->mu, NULL);
    kv_blocks_init(&feed->blocks);
}

void kv_feed_close(struct kv_feed *feed)
{
    kv_blocks_free(&feed->blocks);
    pthread_mutex_destroy(&feed->mu);
}

static void refuse(struct kv_feed *feed, const char *why)
{
    if (feed->view.refused++ == 0)
        snprintf(feed->view.wrong, sizeof feed->view.wrong, "%.150s", why);
}

/* Once every group is empty, the counts are exact again. */
static void apply_event(void *arg, const struct kv_event *ev)
{
    struct kv_feed *feed = arg;
    kv_blocks_apply(&feed->blocks, ev);
    if (ev->kind != KV_CLEARED)
        return;
    bool empty = true;
    for (int g = 0; g < feed->blocks.n_group; g++)
        empty = empty && feed->blocks.group[g].copies == 0;
    feed->view.whole |= empty;
}

/* Applies a batch if no batch before it is missing, or if the missing ones will not come. */
static void take_batch(struct kv_feed *feed, uint64_t seq, const void *bytes, size_t n)
{
    struct kv_batch batch;
    struct err e;
    uint64_t gap = feed->begun ? seq - feed->next : seq;
    if (gap) {
        feed->view.whole = false;
        *(feed->begun ? &feed->view.missed : &feed->view.before) += gap;
    } else if (!feed->begun) {
        feed->view.whole = true;
    }
    feed->begun = true;
    feed->next = seq + 1;
    feed->view.batches++;
    feed->view.ns = clock_ns();
    if (!kv_batch_read(&batch, bytes, n, apply_event, feed, &e)) {
        feed->view.whole = false;
        refuse(feed, e.msg);
        return;
    }
    feed->view.events += (uint64_t)batch.n_event;
    if (batch.n_refused) {
        feed->view.whole = false;
        refuse(feed, batch.why);
        feed->view.refused += (uint64_t)(batch.n_refused - 1);
    }
    kv_blocks_sample(&feed->blocks, feed->view.ns);
}

static bool read_seq(struct kv_feed *feed, const void *p, size_t n, uint64_t *out)
{
    const uint8_t *b = p;
    if (n != 8) {
        refuse(feed, "a sequence number is not of 8 bytes");
        return false;
    }
    *out = 0;
    for (int i = 0; i < 8; i++)
        *out = *out << 8 | b[i];
    if (*out < (uint64_t)1 << 62)
        return true;
    refuse(feed, "a sequence number is negative");
    return false;
}

/* A smaller number means that the server was restarted. Only after a replay a number is received
 * twice, if the batch was published during the replay. */
static bool is_restart(const struct kv_feed *feed, uint64_t seq)
{
    return feed->begun && seq < feed->next && feed->live && seq <= feed->last_live;
}

static bool take_live(struct kv_feed *feed, uint64_t seq, const void *batch, size_t n, bool last,
                      uint64_t *from)
{
    if (is_restart(feed, seq)) {
        kv_blocks_clear(&feed->blocks);
        feed->begun = feed->live = false;
    }
    *from = feed->begun ? feed->next : 0;
    if (seq > *from && feed->address.replay[0] && !last)
        return false;
    feed->live = true;
    feed->last_live = seq;
    if (!feed->begun || seq >= feed->next)
        take_batch(feed, seq, batch, n);
    return true;
}

bool kv_feed_live(struct kv_feed *feed, const void *seq, size_t n_seq, const void *batch, size_t n,
                  bool last, uint64_t *from)
{
    uint64_t at;
    LOCKED(&feed->mu);
    return !read_seq(feed, seq, n_seq, &at) || take_live(feed, at, batch, n, last, from);
}

bool kv_feed_replayed(struct kv_feed *feed, const void *seq, size_t n_seq, const void *batch,
                      size_t n)
{
    static const uint8_t end[8] = {255, 255, 255, 255, 255, 255, 255, 255};
    uint64_t at;
    if (n_seq == sizeof end && memcmp(seq, end, sizeof end) == 0)
        return false;
    LOCKED(&feed->mu);
    if (read_seq(feed, seq, n_seq, &at) && (!feed->begun || at >= feed->next)) {
        take_batch(feed, at, batch, n);
        feed->view.replayed++;
    }
    return true;
}

void kv_feed_refuse(struct kv_feed *feed, const char *why)
{
    LOCKED(&feed->mu);
    refuse(feed, why);
}

/* A server that is connected again may have been restarted: the next published number decides,
 * whatever was replayed. */
void kv_feed_connected(struct kv_feed *feed, bool is)
{
    LOCKED(&feed->mu);
    feed->view.connected = is;
    if (!is && feed->begun) {
        feed->live = true;
        feed->last_live = feed->next - 1;
    }
}

/* ---- readers --------------------------------------------------------------------------------- */

void kv_feed_session(struct kv_feed *feed, const int32_t *id, int n)
{
    LOCKED(&feed->mu);
    kv_blocks_session(&feed->blocks, id, n);
}

static void write_about(const struct kv_feed *feed, struct blocks_view *v)
{
    char more[120] = "";
    if (v->ns == 0)
        snprintf(more, sizeof more, v->connected ? ": none has come yet" : ": not connected yet");
    else if (feed->blocks.dropped)
        snprintf(more, sizeof more, "; %llu blocks are left out: too many",
                 (unsigned long long)feed->blocks.dropped);
    else if (!v->whole)
        snprintf(more, sizeof more, "; some are missing, so the counts are not exact");
    snprintf(v->about, sizeof v->about, "blocks, reconstructed from events%s", more);
}

void kv_feed_view(struct kv_feed *feed, struct blocks_view *v)
{
    LOCKED(&feed->mu);
    *v = feed->view;
    kv_blocks_view(&feed->blocks, v);
    v->unknown = feed->blocks.unknown;
    v->whole = v->whole && feed->blocks.dropped == 0;
    snprintf(v->source, sizeof v->source, "%s", feed->address.events);
    write_about(feed, v);
}

int kv_feed_samples(struct kv_feed *feed, struct block_sample *out, int max)
{
    LOCKED(&feed->mu);
    return kv_blocks_samples(&feed->blocks, out, max);
}

int kv_feed_chain(struct kv_feed *feed, struct session_block *out, int max)
{
    LOCKED(&feed->mu);
    return kv_blocks_chain(&feed->blocks, out, max);
}
