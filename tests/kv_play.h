/* kv_play.h - a publisher of KV events for tests: MessagePack written by hand, recorded batches,
 * and, where libzmq is, the two sockets of a server: PUB, and the ROUTER that sends batches
 * again. */
#pragma once

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base.h"

/* ---- MessagePack ----------------------------------------------------------------------------- */

static inline void mp_number(struct buf *b, int head, uint64_t u, int bytes)
{
    buf_char(b, (char)head);
    while (bytes--)
        buf_char(b, (char)(u >> (8 * bytes)));
}

static inline void mp_array(struct buf *b, unsigned n)
{
    mp_number(b, n < 16 ? 0x90 | (int)n : 0xDC, n, n < 16 ? 0 : 2);
}
static inline void mp_map(struct buf *b, unsigned n)
{
    mp_number(b, n < 16 ? 0x80 | (int)n : 0xDE, n, n < 16 ? 0 : 2);
}
static inline void mp_nil(struct buf *b) { buf_char(b, (char)0xC0); }
static inline void mp_uint(struct buf *b, uint64_t u)
{
    if (u < 128)
        buf_char(b, (char)u);
    else
        mp_number(b, u < 65536 ? 0xCD : 0xCF, u, u < 65536 ? 2 : 8);
}
static inline void mp_negative(struct buf *b, int64_t i) { mp_number(b, 0xD3, (uint64_t)i, 8); }
static inline void mp_real(struct buf *b, double d)
{
    uint64_t u;
    memcpy(&u, &d, 8);
    mp_number(b, 0xCB, u, 8);
}
static inline void mp_text(struct buf *b, const char *s)
{
    size_t n = strlen(s);
    mp_number(b, n < 32 ? 0xA0 | (int)n : 0xD9, n, n < 32 ? 0 : 1);
    buf_str(b, s);
}
static inline void mp_bytes(struct buf *b, const void *p, size_t n)
{
    mp_number(b, 0xC4, n, 1);
    buf_add(b, p, n);
}

/* ---- recorded batches: "NUMBER TOPIC PAYLOAD" a line, the last two in hexadecimal ------------ */

struct kv_frame {
    uint64_t seq;
    struct buf batch;
};

static inline int kv_frames_read(const char *file, struct kv_frame *out, int max)
{
    FILE *f = fopen(file, "r");
    char *line = NULL;
    size_t cap = 0;
    int n = 0;
    while (f && n < max && getline(&line, &cap, f) > 0) {
        char *hex = strrchr(line, ' ');
        unsigned byte;
        out[n] = (struct kv_frame){.seq = strtoull(line, NULL, 10)};
        for (hex++; sscanf(hex, "%2x", &byte) == 1; hex += 2)
            buf_char(&out[n].batch, (char)byte);
        n++;
    }
    if (f)
        fclose(f);
    free(line);
    return n;
}

/* A batch's number as the sockets carry it, the highest byte first. */
static inline void kv_play_number(uint8_t out[8], uint64_t seq)
{
    for (int i = 0; i < 8; i++)
        out[i] = (uint8_t)(seq >> (8 * (7 - i)));
}

/* ---- sockets --------------------------------------------------------------------------------- */

#if HAVE_ZMQ
#include <zmq.h>

enum { KV_PLAY_KEPT = 256 };

struct kv_play {
    void *context, *pub, *router;
    char events[128], replay[128], both[300]; /* addresses; both: as --kv-events takes them */
    pthread_t thread;
    pthread_mutex_t mu;
    struct kv_frame kept[KV_PLAY_KEPT]; /* (n_kept) what a replay sends; under mu */
    int n_kept, n_asked;
    uint64_t asked_from; /* of the latest replay */
    bool deaf;           /* replays are not answered */
    enum kv_form { KV_TOPIC, KV_NO_TOPIC, KV_SHORT_END } form; /* of answers: vLLM's since 0.26;
                            SGLang's and vLLM's before; the same, ended by two empty parts */
};

static inline void kv_play_answer(struct kv_play *p, zmq_msg_t *who, uint64_t seq,
                                  const void *batch, size_t n)
{
    uint8_t number[8];
    kv_play_number(number, seq);
    zmq_send(p->router, zmq_msg_data(who), zmq_msg_size(who), ZMQ_SNDMORE);
    zmq_send(p->router, "", 0, ZMQ_SNDMORE);
    if (p->form == KV_SHORT_END && seq == UINT64_MAX) {
        zmq_send(p->router, "", 0, 0);
        return;
    }
    if (p->form == KV_TOPIC) /* the end's is empty */
        zmq_send(p->router, "kv", seq == UINT64_MAX ? 0 : 2, ZMQ_SNDMORE);
    zmq_send(p->router, number, 8, ZMQ_SNDMORE);
    zmq_send(p->router, batch, n, 0);
}

/* As vLLM does: identity, empty part, number; then every batch kept from it on, then number -1. */
static inline void *kv_play_serve(void *arg)
{
    struct kv_play *p = arg;
    zmq_msg_t who, empty;
    uint8_t number[8];
    zmq_msg_init(&who);
    zmq_msg_init(&empty);
    while (zmq_msg_recv(&who, p->router, 0) >= 0 && zmq_msg_recv(&empty, p->router, 0) >= 0 &&
           zmq_recv(p->router, number, 8, 0) >= 0) {
        uint64_t from = 0;
        for (int i = 0; i < 8; i++)
            from = from << 8 | number[i];
        pthread_mutex_lock(&p->mu);
        p->n_asked++;
        p->asked_from = from;
        for (int i = 0; i < p->n_kept && !p->deaf; i++)
            if (p->kept[i].seq >= from)
                kv_play_answer(p, &who, p->kept[i].seq, p->kept[i].batch.p, p->kept[i].batch.n);
        if (!p->deaf)
            kv_play_answer(p, &who, UINT64_MAX, "", 0);
        pthread_mutex_unlock(&p->mu);
    }
    zmq_msg_close(&who);
    zmq_msg_close(&empty);
    zmq_close(p->router);
    return NULL;
}

static inline void kv_play_bind(void *socket, char address[128])
{
    size_t n = 128;
    const int linger = 0;
    zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof linger);
    CHECK(zmq_bind(socket, "tcp://127.0.0.1:*") == 0);
    CHECK(zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, address, &n) == 0);
}

static inline void kv_play_open(struct kv_play *p)
{
    *p = (struct kv_play){.context = zmq_ctx_new()};
    pthread_mutex_init(&p->mu, NULL);
    p->pub = zmq_socket(p->context, ZMQ_XPUB);
    p->router = zmq_socket(p->context, ZMQ_ROUTER);
    kv_play_bind(p->pub, p->events);
    kv_play_bind(p->router, p->replay);
    snprintf(p->both, sizeof p->both, "%s,replay=%s", p->events, p->replay);
    CHECK(pthread_create(&p->thread, NULL, kv_play_serve, p) == 0);
}

static inline void kv_play_close(struct kv_play *p)
{
    zmq_close(p->pub);
    zmq_ctx_shutdown(p->context);
    pthread_join(p->thread, NULL);
    zmq_ctx_term(p->context);
    for (int i = 0; i < p->n_kept; i++)
        buf_free(&p->kept[i].batch);
    pthread_mutex_destroy(&p->mu);
}

/* Waits until somebody subscribes; false: nobody did within ms milliseconds. */
static inline bool kv_play_wait(struct kv_play *p, int ms)
{
    zmq_pollitem_t item = {.socket = p->pub, .events = ZMQ_POLLIN};
    char topic[64];
    return zmq_poll(&item, 1, ms) > 0 && zmq_recv(p->pub, topic, sizeof topic, 0) > 0 &&
           topic[0] == 1;
}

static inline void kv_play_publish(struct kv_play *p, const void *seq, size_t n_seq,
                                   const void *batch, size_t n)
{
    zmq_send(p->pub, "kv", 2, ZMQ_SNDMORE);
    zmq_send(p->pub, seq, n_seq, ZMQ_SNDMORE);
    zmq_send(p->pub, batch, n, 0);
}

/* Keeps a batch for replays and, unless it gets lost, publishes it. */
static inline void kv_play_send(struct kv_play *p, uint64_t seq, const struct buf *batch, bool lost)
{
    uint8_t number[8];
    pthread_mutex_lock(&p->mu);
    CHECK(p->n_kept < KV_PLAY_KEPT);
    struct kv_frame *k = &p->kept[p->n_kept++];
    *k = (struct kv_frame){.seq = seq};
    buf_add(&k->batch, batch->p, batch->n);
    pthread_mutex_unlock(&p->mu);
    kv_play_number(number, seq);
    if (!lost)
        kv_play_publish(p, number, 8, batch->p, batch->n);
}
#endif
