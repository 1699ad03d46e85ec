/* blocks.c - see blocks.h. */
#include "engine/remote/blocks.h"

#include <unistd.h>

bool blocks_open(struct blocks *b, const char *url, struct err *e)
{
    struct kv_address address;
    *b = (struct blocks){0};
    if (!url)
        return true;
    if (!kv_address_read(&address, url, e))
        return false;
    kv_feed_open(&b->feed, &address);
    b->socket = kv_socket_open(&b->feed, e);
    if (!b->socket) {
        kv_feed_close(&b->feed);
        return false;
    }
    b->on = true;
    return true;
}

void blocks_close(struct blocks *b)
{
    if (!b->on)
        return;
    kv_socket_close(b->socket);
    kv_feed_close(&b->feed);
    b->on = false;
}

const char *blocks_lacks(const struct blocks *b)
{
    bool built;
    const char *about = kv_socket_about(&built);
    return b->on ? NULL : built ? "no KV events are read: --kv-events names their address" : about;
}

void blocks_ids(struct blocks *b, const struct ids *prompt, const struct ids *reply)
{
    FREED(ids_free) struct ids all = {0};
    if (!b->on)
        return;
    if (prompt->n) { /* without the prompt the reply's positions are not known */
        ids_cat(&all, prompt->v, prompt->n);
        ids_cat(&all, reply->v, reply->n);
    }
    kv_feed_session(&b->feed, all.v, all.n);
}

/* ---- doctor ---------------------------------------------------------------------------------- */

static void tell_groups(const struct blocks_view *v,
                        void (*tell)(void *arg, bool ok, const char *line), void *arg)
{
    char line[400];
    FOR_EACH(const struct block_group, at, v->group, v->n_group) {
        snprintf(line, sizeof line, "KV events: group %d, %s%s%s: %lld blocks of %d tokens",
                 at->index,
                 at->kind[0] ? at->kind : "kind not reported", at->medium[0] ? " in " : "",
                 at->medium, (long long)at->blocks, at->block_size);
        tell(arg, true, line);
    }
}

void blocks_doctor(const char *address, int ms, void (*tell)(void *arg, bool ok, const char *line),
                   void *arg)
{
    struct blocks b;
    struct blocks_view v = {0};
    struct err e;
    char line[400];
    bool built;
    const char *about = kv_socket_about(&built);
    if (!address) {
        snprintf(line, sizeof line, "KV events: %s",
                 built ? "not asked for (--kv-events tcp://HOST:PORT)" : about);
        tell(arg, built, line);
        return;
    }
    if (!blocks_open(&b, address, &e)) {
        tell(arg, false, e.msg);
        return;
    }
    for (int waited = 0; waited < ms && v.ns == 0; waited += 20) {
        usleep(20000);
        kv_feed_view(&b.feed, &v);
    }
    snprintf(line, sizeof line, "KV events: %s, %s; %llu batches came%s", v.source,
             v.connected ? "connected" : "nobody answers there", (unsigned long long)v.batches,
             v.batches ? "" : v.connected ? " (they come when blocks are stored or removed)" : "");
    tell(arg, v.connected, line);
    tell_groups(&v, tell, arg);
    blocks_close(&b);
}
