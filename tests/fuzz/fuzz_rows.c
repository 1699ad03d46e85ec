/* Rows of a session log whose cells were edited, read on the connection that edited them: past the
 * checks that a file meets when it is opened, and a hundred times as many as fuzz_database.c. */
#include "history/internal.h"
#include "tests/fuzz/log.h"

const int fuzz_inputs = 200;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static struct hdb h;
    static const char *const id[] = {log_child, log_id, log_served};
    if (!h.path) {
        char live[96], base[96];
        struct err e;
        snprintf(live, sizeof live, "%s/live.db", fuzz_folder());
        snprintf(base, sizeof base, "%s/base.db", fuzz_folder());
        log_write(live);
        must(history_backup(live, base, &e), &e);
        log_memory();
        must(db_open(&h.db, ":memory:", SQLITE_OPEN_READWRITE, &e), &e);
        log_load(base, h.db.h);
        h.path = xstrdup(base);
    }
    log_edit(data, n);
    for (int i = 0; i < 3; i++) {
        look_rows(&h, id[i], false, n == 0);
        look_recorded(&h, id[i], n == 0);
    }
    look_lists(&h);
    log_take_back();
    return 0;
}
