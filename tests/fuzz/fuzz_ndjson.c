/* JSON lines of a server: the same lines however the bytes are cut. */
#include "tests/fuzz/stream.h"

const int fuzz_inputs = 4000;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    same_events(WIRE_LINES, data, n);
    return 0;
}
