/* gguf_meta.h - the metadata of a GGUF file while a config.json is made of them: for gguf_config.c,
 * gguf_rope.c and gguf_archs.c. Only these three files include it.
 *
 * The first error is kept, as in struct conf (keys.h): readers return a harmless value after it, so
 * that a function needs no test behind each of them.
 */
#pragma once

#include "models/checkpoint/gguf_model.h"

#include "models/checkpoint/json.h"

enum { META_MAX = 1 << 22 }; /* of sizes and counts */
#define META_NEEDED INT64_MIN

struct gguf_meta {
    const struct gguf *g;
    const struct gguf_arch *a;
    json_t *out;
    struct err *e;
    bool ok;
    int layers; /* of the model */
    int blocks; /* layers, and those that predict further tokens: entries of arrays by layer */
    int heads;  /* of layer 0 */
    bool *used;   /* of the entries of the metadata */
    bool factors; /* the tensor of frequency factors was read, or there is none */
};

/* ---- reading keys; they stand below the architecture's name ---- */

bool meta_has(struct gguf_meta *m, const char *key);
void meta_refuse(struct gguf_meta *m, const char *key, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* `key`, or `other` if the file has only that: what another converter calls it. */
const char *meta_either(struct gguf_meta *m, const char *key, const char *other);
/* An integer from 0 to max; dflt if the key is absent, META_NEEDED: it is needed. */
int64_t meta_int(struct gguf_meta *m, const char *key, int64_t dflt, int64_t max);
/* A number; dflt if the key is absent, NaN: it is needed. */
double meta_real(struct gguf_meta *m, const char *key, double dflt);
bool meta_bool(struct gguf_meta *m, const char *key, bool dflt);
struct gguf_text meta_string(struct gguf_meta *m, const char *key, const char *dflt);
/* The numbers at a key (integers: from 0 to max), which the caller frees; NULL: it is absent. */
int64_t *meta_ints(struct gguf_meta *m, const char *key, int64_t max, size_t *n);
float *meta_reals(struct gguf_meta *m, const char *key, size_t *n);
/* One integer a layer, or one for all, which the caller frees; dflt if the key is absent. */
int64_t *meta_layers(struct gguf_meta *m, const char *key, int64_t dflt, int64_t max);
/* The value that all layers have; refuses an array with several. */
int64_t meta_same(struct gguf_meta *m, const char *key, int64_t dflt, int64_t max);

/* Whether layer i has a tensor of that name. */
bool meta_in_layer(const struct gguf_meta *m, int i, const char *name);
/* Whether q, k and v have biases. */
bool meta_has_bias(const struct gguf_meta *m);
/* Rows of a tensor; 0: there is none. */
int64_t meta_rows(const struct gguf_meta *m, const char *name);
/* Reads a vector of n float32 numbers that the config is found from; the caller frees. */
float *meta_floats(struct gguf_meta *m, const struct gguf_tensor *t, int64_t n);

/* ---- writing the config ---- */

static inline void put_int(struct gguf_meta *m, const char *key, int64_t v)
{
    json_object_set_new(m->out, key, json_integer(v));
}

/* A float32 number, as the shortest decimal that is read as that number: what the config.json had
 * of which the file was made. */
void put_real(struct gguf_meta *m, const char *key, double v);

static inline void put_bool(struct gguf_meta *m, const char *key, bool v)
{
    json_object_set_new(m->out, key, json_boolean(v));
}

static inline void put_string(struct gguf_meta *m, const char *key, const char *v)
{
    json_object_set_new(m->out, key, json_string(v));
}

/* What was put before under a key. */
static inline int64_t put_before(const struct gguf_meta *m, const char *key)
{
    return json_integer_value(json_object_get(m->out, key));
}

/* Heads, and their width, which keys and values share and which is rotated. */
void meta_heads(struct gguf_meta *m);
/* The same but for the share that is rotated; returns the width. */
int64_t meta_kv_heads(struct gguf_meta *m);
/* The width of heads alone; returns that of values, which may be another one. */
int64_t meta_some_heads(struct gguf_meta *m);
void meta_dense(struct gguf_meta *m);
/* Which layers slide: an array with an entry for each, or every period-th is full; first: that is
 * the first layer of a period. */
void meta_windows(struct gguf_meta *m, int64_t period, bool first, int64_t window);
/* Whether layer i slides; after meta_windows(). */
bool meta_slides(const struct gguf_meta *m, int i);

/* ---- rope (gguf_rope.c) ---- */

/* The factors by which frequencies are divided; NULL: there are none. The caller frees. */
float *meta_factors(struct gguf_meta *m, int64_t n, const char **name);
/* The object of rope_scaling; NULL: frequencies are not scaled, or the factors say how. A factor
 * without a type is linear. */
json_t *meta_scaling(struct gguf_meta *m, bool truncate);
/* Refuses such a rope where the architecture has none; lists: it has lists of factors, and a
 * factor of sines and cosines. */
void meta_unscaled(struct gguf_meta *m, bool lists);
/* meta_scaling() from the factors of a llama-3 rope with that high_freq_factor; NULL: there are
 * none. */
json_t *meta_llama3(struct gguf_meta *m, double theta, double high);
/* rope_theta and rope_scaling of a model with one rope. */
void meta_rope(struct gguf_meta *m, bool truncate);
/* The same of that theta and scaling, of which a reference passes over. */
void put_rope(struct gguf_meta *m, double theta, json_t *scaling);
/* The rope of full layers (scaled, or NULL) and the rope of sliding ones, by layer type. theta,
 * sliding: the defaults of their theta; sliding 0: the full layers' one. partial: the shares of a
 * head that they rotate; NULL: all of it. */
void meta_ropes(struct gguf_meta *m, json_t *full, double theta, double sliding,
                const double partial[2]);
/* The share of a head of width dim that is rotated, by the key of a number of dimensions; the
 * default is a share. */
double meta_partial(struct gguf_meta *m, const char *key, int64_t dim, double dflt);
