/* kv_socket.c - see kv_socket.h. A SUB socket receives published batches, a DEALER socket sends
 * requests to the ROUTER of the replay address, and a monitor reports when the connection is made
 * or lost. */
#include "engine/remote/kv_socket.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

enum { PARTS = 4, QUEUED = 100000, REPLAY_MS = 2000 }; /* REPLAY_MS: the longest silence of an
                                                          answer */

struct kv_socket {
    struct kv_feed *feed;
    void *context, *sub, *monitor, *replay;
    pthread_t thread;
};

const char *kv_socket_about(bool *built)
{
    static _Thread_local char text[40];
    int a, b, c;
    zmq_version(&a, &b, &c);
    snprintf(text, sizeof text, "libzmq %d.%d.%d", a, b, c);
    *built = true;
    return text;
}

/* ---- messages -------------------------------------------------------------------------------- */

struct kv_message {
    zmq_msg_t part[PARTS];
    int n; /* parts of the message; parts beyond PARTS are dropped */
};

static void message_free(struct kv_message *m)
{
    for (int i = 0; i < m->n && i < PARTS; i++)
        zmq_msg_close(&m->part[i]);
    m->n = 0;
}

/* Receives a message if one is there. The caller frees it. False: none, or the context has
 * ended. */
static bool receive(void *socket, struct kv_message *m)
{
    bool more = true;
    m->n = 0;
    while (more) {
        zmq_msg_t part;
        zmq_msg_init(&part);
        if (zmq_msg_recv(&part, socket, m->n ? 0 : ZMQ_DONTWAIT) < 0) {
            zmq_msg_close(&part);
            message_free(m);
            return false;
        }
        more = zmq_msg_more(&part);
        if (m->n < PARTS)
            m->part[m->n] = part;
        else
            zmq_msg_close(&part);
        m->n++;
    }
    return true;
}

static const void *bytes(struct kv_message *m, int i) { return zmq_msg_data(&m->part[i]); }
static size_t size(struct kv_message *m, int i) { return zmq_msg_size(&m->part[i]); }

/* ---- sockets --------------------------------------------------------------------------------- */

static void *new_socket(struct kv_socket *s, int type)
{
    void *socket = zmq_socket(s->context, type);
    const int linger = 0, ipv6 = 1, queued = QUEUED;
    const int64_t most = KV_PAYLOAD;
    if (!socket)
        return NULL;
    zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof linger);
    zmq_setsockopt(socket, ZMQ_IPV6, &ipv6, sizeof ipv6);
    zmq_setsockopt(socket, ZMQ_RCVHWM, &queued, sizeof queued);
    zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &most, sizeof most);
    if (type == ZMQ_SUB)
        zmq_setsockopt(socket, ZMQ_SUBSCRIBE, "", 0);
    return socket;
}

/* Attaches the monitor to s->sub, before the connection is made. */
static bool watch(struct kv_socket *s)
{
    const int which = ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED, linger = 0;
    if (zmq_socket_monitor(s->sub, "inproc://monitor", which) < 0 ||
        !(s->monitor = zmq_socket(s->context, ZMQ_PAIR)))
        return false;
    zmq_setsockopt(s->monitor, ZMQ_LINGER, &linger, sizeof linger);
    return zmq_connect(s->monitor, "inproc://monitor") == 0;
}

/* ---- replay ---------------------------------------------------------------------------------- */

/* Handles an answer: an empty part, vLLM's topic (SGLang and vLLM before 0.26 omit it), the number,
 * the batch. The last answer has the number -1; in the earliest versions it is two empty parts.
 * False: it was the last one. */
static bool take_answer(struct kv_socket *s, struct kv_message *m)
{
    if (m->n == 2 && size(m, 1) == 0)
        return false;
    if (m->n == 3 || m->n == 4)
        return kv_feed_replayed(s->feed, bytes(m, m->n - 2), size(m, m->n - 2), bytes(m, m->n - 1),
                                size(m, m->n - 1));
    kv_feed_refuse(s->feed, "an answer of the replay address is not of 3 or 4 parts");
    return true;
}

/* Requests all batches from a number on and handles the answers up to the last one. If the server
 * does not answer, this takes REPLAY_MS; late answers are dropped with the socket. */
static void replay(struct kv_socket *s, uint64_t from)
{
    uint8_t seq[8];
    struct kv_message m;
    bool more = true;
    if (!s->replay && (!(s->replay = new_socket(s, ZMQ_DEALER)) ||
                       zmq_connect(s->replay, s->feed->address.replay) < 0)) {
        kv_feed_refuse(s->feed, "the replay address cannot be connected to");
        return;
    }
    for (int i = 0; i < 8; i++)
        seq[i] = (uint8_t)(from >> (8 * (7 - i)));
    if (zmq_send(s->replay, "", 0, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0 ||
        zmq_send(s->replay, seq, 8, ZMQ_DONTWAIT) < 0)
        more = false;
    while (more) {
        zmq_pollitem_t item = {.socket = s->replay, .events = ZMQ_POLLIN};
        if (zmq_poll(&item, 1, REPLAY_MS) <= 0)
            break;
        while (more && receive(s->replay, &m)) {
            more = take_answer(s, &m);
            message_free(&m);
        }
    }
    if (more) {
        zmq_close(s->replay);
        s->replay = NULL;
    }
}

/* ---- the thread ------------------------------------------------------------------------------ */

static void take(struct kv_socket *s, struct kv_message *m)
{
    uint64_t from;
    if (m->n != 3) {
        kv_feed_refuse(s->feed, "a message is not of 3 parts: topic, number, batch");
        return;
    }
    const void *seq = bytes(m, 1), *batch = bytes(m, 2);
    if (kv_feed_live(s->feed, seq, size(m, 1), batch, size(m, 2), false, &from))
        return;
    replay(s, from);
    kv_feed_live(s->feed, seq, size(m, 1), batch, size(m, 2), true, &from);
}

/* The first part begins with the number of the event, in the machine's own byte order. */
static void take_monitor(struct kv_socket *s, struct kv_message *m)
{
    uint16_t event = 0;
    if (m->n > 0 && size(m, 0) >= sizeof event)
        memcpy(&event, bytes(m, 0), sizeof event);
    if (event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED)
        kv_feed_connected(s->feed, true);
    else if (event == ZMQ_EVENT_DISCONNECTED)
        kv_feed_connected(s->feed, false);
}

static void *socket_thread(void *arg)
{
    struct kv_socket *s = arg;
    zmq_pollitem_t item[] = {{.socket = s->monitor, .events = ZMQ_POLLIN},
                             {.socket = s->sub, .events = ZMQ_POLLIN}};
    struct kv_message m;
    if (s->feed->address.replay[0])
        replay(s, 0);
    while (zmq_poll(item, 2, -1) >= 0 || errno == EINTR) {
        while (receive(s->monitor, &m)) {
            take_monitor(s, &m);
            message_free(&m);
        }
        if (receive(s->sub, &m)) {
            take(s, &m);
            message_free(&m);
        }
    }
    return NULL;
}

/* ---- opening --------------------------------------------------------------------------------- */

static void free_socket(struct kv_socket *s)
{
    void *const all[] = {s->monitor, s->replay, s->sub};
    for (int i = 0; i < 3; i++)
        if (all[i])
            zmq_close(all[i]);
    if (s->context)
        zmq_ctx_term(s->context);
    free(s);
}

struct kv_socket *kv_socket_open(struct kv_feed *f, struct err *e)
{
    struct kv_socket *s = xcalloc(1, sizeof *s);
    s->feed = f;
    s->context = zmq_ctx_new();
    s->sub = s->context ? new_socket(s, ZMQ_SUB) : NULL;
    if (!s->sub || !watch(s))
        err_set(e, ERR_MODEL, "KV events: no descriptor is left to receive them");
    else if (zmq_connect(s->sub, f->address.events) < 0)
        err_set(e, ERR_USAGE, "KV events: cannot connect to %s: %s", f->address.events,
                zmq_strerror(errno));
    else if (pthread_create(&s->thread, NULL, socket_thread, s) != 0)
        err_set(e, ERR_MODEL, "KV events: no thread is left to receive them");
    else
        return s;
    free_socket(s);
    return NULL;
}

/* Ending the context ends the calls that wait, and with them the thread. */
void kv_socket_close(struct kv_socket *s)
{
    if (!s)
        return;
    zmq_ctx_shutdown(s->context);
    pthread_join(s->thread, NULL);
    free_socket(s);
}
