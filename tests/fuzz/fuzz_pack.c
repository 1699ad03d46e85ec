/* A pack whose cells and bytes were edited and which was sealed again: opened, shown, exported, and
 * looked at as a recording. With an odd number of bytes in the input the seal is not renewed. */
#include "tests/fuzz/log_file.h"

/* history/internal.h */
bool pack_write(const char *path, const void *bytes, size_t n, struct err *e);

const int fuzz_inputs = 40;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static char path[96], seal[96];
    struct err e = {0};
    if (!path[0]) {
        char live[96], whole[96];
        snprintf(live, sizeof live, "%s/live.db", fuzz_folder());
        snprintf(whole, sizeof whole, "%s/whole.aerie", fuzz_folder());
        snprintf(path, sizeof path, "%s/edited.aerie", fuzz_folder());
        log_write(live);
        log_memory();
        struct hdb *d = hdb_open(live, &e);
        must(d != NULL, &e);
        must(hdb_pack(d, log_child, &(struct pack_opts){.level = PACK_TEXT, .made_by = "fuzz"},
                      whole, NULL, &e), &e);
        hdb_close(d);
        struct buf file;
        must(buf_read_file(&file, whole, 64 << 20, &e), &e);
        snprintf(seal, sizeof seal, "%s", file.p + file.n - 85);
        CHECK(strncmp(seal, "aerie-pack", 10) == 0);
        buf_free(&file);
        log_load(whole, NULL);
    }
    size_t size;
    unsigned char *bytes = log_edited(data, n, &size);
    unlink(path);
    if (n % 2) {
        FILE *f = fopen(path, "w");
        CHECK(f && fwrite(bytes, size, 1, f) == 1 && fputs(seal, f) >= 0 && fclose(f) == 0);
    } else {
        must(pack_write(path, bytes, size, &e), &e);
    }
    sqlite3_free(bytes);
    look_at(path, true, data, n);
    return 0;
}
