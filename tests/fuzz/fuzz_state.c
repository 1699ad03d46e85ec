/* The file of `aerie probe --state` behind its first line: every line is a case, or the file is
 * refused in one line. */
#include "repl/cli/hunt.h"
#include "repl/cli/hunt.h"
#include "tests/fuzz/fuzz.h"

const int fuzz_inputs = 4000;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static struct hunt p;
    struct err e = {0};
    const char *text = fuzz_tail(data, n);
    int next = -1, lines = 0;
    memset(&p, 0, sizeof p);
    for (size_t i = 0; i < n; i++)
        lines += text[i] == '\n';
    if (!hunt_state_read(text, n, &p, &next, &e)) {
        CHECK(e.kind == ERR_USAGE && p.n_before < lines);
        fuzz_message(&e);
        fuzz_clean(e.msg, strlen(e.msg), false);
        return 0;
    }
    CHECK(p.n_before == lines && next >= (lines > 0) && p.asked_before >= 0 && p.found_before >= 0);
    return 0;
}
