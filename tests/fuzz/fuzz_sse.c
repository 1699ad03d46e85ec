/* Server-sent events: the same events however the bytes are cut. */
#include "tests/fuzz/stream.h"

const int fuzz_inputs = 4000;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    same_events(WIRE_SSE, data, n);
    return 0;
}
