/* JSON: the strict reader of configs, the reader in place of tokenizer.json, and the writer. The
 * two readers agree on the strings and whole numbers of what the strict one accepts, and what was
 * read and written again reads the same. */
#include <jansson.h>

#include "kernels/json.h"
#include "models/checkpoint/json.h"
#include "models/tokenizer/pull.h"
#include "tests/fuzz/arena.h"

const int fuzz_inputs = 4000;

/* Walks a value with the reader in place; beside it, where there is one, the value as Jansson read
 * it. */
static bool walk(struct pull *j, const json_t *v, int depth)
{
    struct pull_str s, key;
    int64_t i;
    bool b;
    char kind = pull_peek(j);
    if (depth == 0 || kind == 'n' || (v && json_is_real(v)))
        return pull_skip(j, &s);
    switch (kind) {
    case '{':
        for (bool more = pull_open(j, '{'); more; more = pull_next(j, '}')) {
            if (!pull_key(j, &key))
                return false;
            const json_t *at = v ? json_object_getn(v, key.s, key.n) : NULL;
            CHECK(!v || at);
            if (!walk(j, at, depth - 1))
                return false;
        }
        return !j->bad;
    case '[': {
        size_t n = 0;
        for (bool more = pull_open(j, '['); more; more = pull_next(j, ']'))
            if (!walk(j, v ? json_array_get(v, n++) : NULL, depth - 1))
                return false;
        CHECK(j->bad || !v || n == json_array_size(v));
        return !j->bad;
    }
    case '"':
        if (!pull_string(j, &s))
            return false;
        CHECK(!v || (json_string_length(v) == s.n && memcmp(json_string_value(v), s.s, s.n) == 0));
        return true;
    case 't':
    case 'f':
        if (!pull_bool(j, &b))
            return false;
        CHECK(!v || json_is_boolean(v));
        CHECK(!v || json_is_true(v) == b);
        return true;
    case '0':
        if (!pull_int(j, &i))
            return false;
        CHECK(!v || json_integer_value(v) == i);
        return true;
    default: return pull_skip(j, &s);
    }
}

static void put(struct buf *b, const json_t *v)
{
    const char *key;
    json_t *item;
    size_t i;
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        jput_open(b, '{');
        json_object_foreach((json_t *)v, key, item) {
            jput_key(b, key);
            put(b, item);
        }
        jput_close(b, '}');
        break;
    case JSON_ARRAY:
        jput_open(b, '[');
        json_array_foreach(v, i, item) put(b, item);
        jput_close(b, ']');
        break;
    case JSON_STRING: CHECK(jput_strn(b, json_string_value(v), json_string_length(v))); break;
    case JSON_INTEGER: jput_int(b, json_integer_value(v)); break;
    case JSON_REAL: jput_real(b, json_real_value(v)); break;
    case JSON_NULL: jput_null(b); break;
    default: jput_bool(b, json_is_true(v)); break;
    }
}

/* Equal, reals to the digits that are written. */
static bool same(const json_t *a, const json_t *b)
{
    const char *key;
    json_t *item;
    size_t i;
    if (json_is_number(a) && json_is_number(b)) {
        double x = json_number_value(a), y = json_number_value(b), d = x > y ? x - y : y - x;
        return d <= 1e-5 * (x < 0 ? -x : x);
    }
    if (json_typeof(a) != json_typeof(b))
        return false;
    if (json_is_object(a)) {
        if (json_object_size(a) != json_object_size(b))
            return false;
        json_object_foreach((json_t *)a, key, item)
            if (!json_object_get(b, key) || !same(item, json_object_get(b, key)))
                return false;
        return true;
    }
    if (json_is_array(a)) {
        if (json_array_size(a) != json_array_size(b))
            return false;
        json_array_foreach(a, i, item)
            if (!same(item, json_array_get(b, i)))
                return false;
        return true;
    }
    return json_equal((json_t *)a, (json_t *)b);
}

static void write_again(const json_t *root)
{
    static struct buf out;
    buf_clear(&out);
    put(&out, root);
    for (size_t i = 0; i < out.n; i++)
        CHECK(out.p[i] >= 0x20 && out.p[i] < 0x7F);
    json_t *again = json_loadb(out.p, out.n, JSON_ALLOW_NUL, NULL);
    CHECK(again && same(root, again));
    json_decref(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct err e = {0};
    char *text = fuzz_tail(data, n);
    arena_begin();
    json_t *root = json_read(text, n, JSON_DEPTH, "file", &e);
    if (!root)
        fuzz_message(&e);
    struct pull j = {text, text, text + n, NULL};
    bool whole = walk(&j, root, JSON_DEPTH + 1) && pull_end(&j);
    if (!whole)
        CHECK(pull_failed(&j, &e, "file"));
    else if (root)
        write_again(root);
    json_decref(root);
    arena_end();
    return 0;
}
