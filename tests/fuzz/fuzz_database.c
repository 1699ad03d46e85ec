/* A session log whose cells and bytes were edited: opened, listed, searched, shown, exported,
 * packed, checked, and looked at as a recording. */
#include "tests/fuzz/log_file.h"

const int fuzz_inputs = 25;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static int fd;
    static char path[96];
    if (!fd) {
        char live[96];
        struct err e;
        snprintf(live, sizeof live, "%s/live.db", fuzz_folder());
        snprintf(path, sizeof path, "%s/base.db", fuzz_folder());
        log_write(live);
        log_memory();
        must(history_backup(live, path, &e), &e);
        log_load(path, NULL);
        snprintf(path, sizeof path, "%s/edited.db", fuzz_folder());
        fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        CHECK(fd > 0);
    }
    size_t size;
    unsigned char *bytes = log_edited(data, n, &size);
    CHECK(ftruncate(fd, 0) == 0 && pwrite(fd, bytes, size, 0) == (ssize_t)size);
    sqlite3_free(bytes);
    look_at(path, false, data, n);
    return 0;
}
