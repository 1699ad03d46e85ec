/* Records of requests and replies, one JSON text each (aerie import): what is taken is whole, what
 * is not is one line. */
#include "engine/remote/records.h"

#include <math.h>

#include "tests/fuzz/fuzz.h"

const int fuzz_inputs = 3000;

static void check_ids(const struct ids *a)
{
    for (int i = 0; i < a->n; i++)
        CHECK(a->v[i] >= 0);
}

static void check_record(const struct record *r)
{
    const int64_t count[] = {r->count.prompt, r->count.generated, r->count.cached,
                             r->count.drafted, r->count.accepted};
    CHECK(r->request || r->reply);
    CHECK(!r->request || r->text);
    CHECK(r->n_past >= 0 && r->n_past <= RECORD_MESSAGES);
    for (int i = 0; i < r->n_past; i++)
        CHECK(r->past[i].user && r->past[i].reply);
    for (size_t i = 0; i < sizeof count / sizeof *count; i++)
        CHECK(count[i] >= -1);
    for (int i = 0; i < r->n_token; i++)
        CHECK(r->token[i].id >= 0 && r->token[i].rival >= -1);
    check_ids(&r->prompt);
    check_ids(&r->accepted);
    check_ids(&r->drafted);
    CHECK(memchr(r->model, '\0', sizeof r->model) && memchr(r->server, '\0', sizeof r->server));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct record r, other;
    struct err e = {0};
    char *json = fuzz_tail(data, n);
    if (!record_read(&r, json, n, &e)) {
        CHECK(e.kind == ERR_USAGE);
        fuzz_message(&e);
        return 0;
    }
    check_record(&r);
    CHECK(record_read(&other, json, n, &e));
    if (r.reply && !r.request)
        record_join(&r, &other);
    record_free(&other);
    record_free(&r);
    return 0;
}
