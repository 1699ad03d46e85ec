/* kv_socket.c - see kv_socket.h. A SUB socket receives published batches, a DEALER socket sends
 * requests to the ROUTER of the replay address, and a monitor reports when the connection is made
 * or lost. */
#include "engine/remote/kv_socket.h"

#include <errno.h>
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

static void message_free(struct kv_message *message)
{
    for (int i = 0; i < message->n && i < PARTS; i++)
        zmq_msg_close(&message->part[i]);
    message->n = 0;
}

/* Receives a message if one is there. The caller frees it. False: none, or the context has
 * ended. */
static bool receive(void *socket, struct kv_message *message)
{
    bool more = true;
    message->n = 0;
    while (more) {
        zmq_msg_t part;
        zmq_msg_init(&part);
        if (zmq_msg_recv(&part, socket, message->n ? 0 : ZMQ_DONTWAIT) < 0) {
            zmq_msg_close(&part);
            message_free(message);
            return false;
        }
        more = zmq_msg_more(&part);
        if (message->n < PARTS)
            message->part[message->n] = part;
        else
            zmq_msg_close(&part);
        message->n++;
    }
    return true;
}

static const void *bytes(struct kv_message *message, int i)
{
    return zmq_msg_data(&message->part[i]);
}
static size_t size(struct kv_message *message, int i) { return zmq_msg_size(&message->part[i]); }

/* ---- sockets --------------------------------------------------------------------------------- */

static void *new_socket(struct kv_socket *socket, int type)
{
    void *made = zmq_socket(socket->context, type);
    const int linger = 0, ipv6 = 1, queued = QUEUED;
    const int64_t most = KV_PAYLOAD;
    if (!made)
        return NULL;
    zmq_setsockopt(made, ZMQ_LINGER, &linger, sizeof linger);
    zmq_setsockopt(made, ZMQ_IPV6, &ipv6, sizeof ipv6);
    zmq_setsockopt(made, ZMQ_RCVHWM, &queued, sizeof queued);
    zmq_setsockopt(made, ZMQ_MAXMSGSIZE, &most, sizeof most);
    if (type == ZMQ_SUB)
        zmq_setsockopt(made, ZMQ_SUBSCRIBE, "", 0);
    return made;
}

/* Attaches the monitor to socket->sub, before the connection is made. */
static bool watch(struct kv_socket *socket)
{
    const int which = ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED, linger = 0;
    if (zmq_socket_monitor(socket->sub, "inproc://monitor", which) < 0 ||
        !(socket->monitor = zmq_socket(socket->context, ZMQ_PAIR)))
        return false;
    zmq_setsockopt(socket->monitor, ZMQ_LINGER, &linger, sizeof linger);
    return zmq_connect(socket->monitor, "inproc://monitor") == 0;
}

/* ---- replay ---------------------------------------------------------------------------------- */

/* Handles an answer: an empty part, vLLM's topic (SGLang and vLLM before 0.26 omit it), the number,
 * the batch. The last answer has the number -1; in the earliest versions it is two empty parts.
 * False: it was the last one. */
static bool take_answer(struct kv_socket *socket, struct kv_message *message)
{
    if (message->n == 2 && size(message, 1) == 0)
        return false;
    if (message->n == 3 || message->n == 4)
        return kv_feed_replayed(socket->feed, bytes(message, message->n - 2),
                                size(message, message->n - 2), bytes(message, message->n - 1),
                                size(message, message->n - 1));
    kv_feed_refuse(socket->feed, "an answer of the replay address is not of 3 or 4 parts");
    return true;
}

/* Requests all batches from a number on and handles the answers up to the last one. If the server
 * does not answer, this takes REPLAY_MS; late answers are dropped with the socket. */
static void replay(struct kv_socket *socket, uint64_t from)
{
    uint8_t seq[8];
    struct kv_message message;
    bool more = true;
    if (!socket->replay && (!(socket->replay = new_socket(socket, ZMQ_DEALER)) ||
                            zmq_connect(socket->replay, socket->feed->address.replay) < 0)) {
        kv_feed_refuse(socket->feed, "the replay address cannot be connected to");
        return;
    }
    for (int i = 0; i < 8; i++)
        seq[i] = (uint8_t)(from >> (8 * (7 - i)));
    if (zmq_send(socket->replay, "", 0, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0 ||
        zmq_send(socket->replay, seq, 8, ZMQ_DONTWAIT) < 0)
        more = false;
    while (more) {
        zmq_pollitem_t item = {.socket = socket->replay, .events = ZMQ_POLLIN};
        if (zmq_poll(&item, 1, REPLAY_MS) <= 0)
            break;
        while (more && receive(socket->replay, &message)) {
            more = take_answer(socket, &message);
            message_free(&message);
        }
    }
    if (more) {
        zmq_close(socket->replay);
        socket->replay = NULL;
    }
}

/* ---- the thread ------------------------------------------------------------------------------ */

static void take_message(struct kv_socket *socket, struct kv_message *message)
{
    uint64_t from;
    if (message->n != 3) {
        kv_feed_refuse(socket->feed, "a message is not of 3 parts: topic, number, batch");
        return;
    }
    const void *seq = bytes(message, 1), *batch = bytes(message, 2);
    if (kv_feed_live(socket->feed, seq, size(message, 1), batch, size(message, 2), false, &from))
        return;
    replay(socket, from);
    kv_feed_live(socket->feed, seq, size(message, 1), batch, size(message, 2), true, &from);
}

/* The first part begins with the number of the event, in the machine's own byte order. */
static void take_monitor(struct kv_socket *socket, struct kv_message *message)
{
    uint16_t event = 0;
    if (message->n > 0 && size(message, 0) >= sizeof event)
        memcpy(&event, bytes(message, 0), sizeof event);
    if (event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED)
        kv_feed_connected(socket->feed, true);
    else if (event == ZMQ_EVENT_DISCONNECTED)
        kv_feed_connected(socket->feed, false);
}

static void *socket_thread(void *arg)
{
    struct kv_socket *socket = arg;
    zmq_pollitem_t item[] = {{.socket = socket->monitor, .events = ZMQ_POLLIN},
                             {.socket = socket->sub, .events = ZMQ_POLLIN}};
    struct kv_message message;
    if (socket->feed->address.replay[0])
        replay(socket, 0);
    while (zmq_poll(item, 2, -1) >= 0 || errno == EINTR) {
        while (receive(socket->monitor, &message)) {
            take_monitor(socket, &message);
            message_free(&message);
        }
        if (receive(socket->sub, &message)) {
            take_message(socket, &message);
            message_free(&message);
        }
    }
    return NULL;
}

/* ---- opening --------------------------------------------------------------------------------- */

static void free_socket(struct kv_socket *socket)
{
    void *const all[] = {socket->monitor, socket->replay, socket->sub};
    for (int i = 0; i < 3; i++)
        if (all[i])
            zmq_close(all[i]);
    if (socket->context)
        zmq_ctx_term(socket->context);
    free(socket);
}

struct kv_socket *kv_socket_open(struct kv_feed *feed, struct err *e)
{
    struct kv_socket *socket = xcalloc(1, sizeof *socket);
    socket->feed = feed;
    socket->context = zmq_ctx_new();
    socket->sub = socket->context ? new_socket(socket, ZMQ_SUB) : NULL;
    if (!socket->sub || !watch(socket))
        err_set(e, ERR_MODEL, "KV events: no descriptor is left to receive them");
    else if (zmq_connect(socket->sub, feed->address.events) < 0)
        err_set(e, ERR_USAGE, "KV events: cannot connect to %s: %s", feed->address.events,
                zmq_strerror(errno));
    else if (pthread_create(&socket->thread, NULL, socket_thread, socket) != 0)
        err_set(e, ERR_MODEL, "KV events: no thread is left to receive them");
    else
        return socket;
    free_socket(socket);
    return NULL;
}

/* Ending the context ends the calls that wait, and with them the thread. */
void kv_socket_close(struct kv_socket *socket)
{
    if (!socket)
        return;
    zmq_ctx_shutdown(socket->context);
    pthread_join(socket->thread, NULL);
    free_socket(socket);
}
