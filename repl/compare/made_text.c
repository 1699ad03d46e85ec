/* made_text.c - see made_text.h. */
#include "repl/compare/made_text.h"

enum { KINDS = 5, EACH = 16 };

static const char *const word[KINDS][EACH] = {
    {"The fox", "A sailor", "Our teacher", "The old miller", "A young doctor", "Nobody",
     "The river", "My neighbour", "A clerk", "The gardener", "Every child", "The captain",
     "Some traveller", "The baker", "A quiet engineer", "The judge"},
    {"carries", "counts", "forgets", "paints", "sells", "measures", "hides", "repairs", "follows",
     "remembers", "explains", "borrows", "collects", "divides", "weighs", "opens"},
    {"seven stones", "a wooden boat", "the blue letters", "forty coins", "an empty basket",
     "the longest rope", "two silver keys", "a broken clock", "the second map", "many red apples",
     "a heavy door", "the last question", "nine small lamps", "a bag of salt", "the green window",
     "an unknown number"},
    {"behind the mill", "near the harbour", "under the bridge", "before sunrise", "in the valley",
     "at the station", "on a cold morning", "after the storm", "beside the road",
     "between two hills", "without a sound", "during the winter", "above the clouds",
     "inside the library", "across the field", "until midnight"},
    {"because the water rises", "and asks for help", "while the others sleep",
     "although it is late", "so that the ship can leave", "and writes a long answer",
     "before the market closes", "when the bell rings", "but keeps the receipt",
     "as the rules demand", "and returns alone", "unless it rains", "and nobody sees it",
     "since the year began", "to learn the truth", "and starts again"}};

static uint64_t next_random(uint64_t *state)
{
    uint64_t x = *state += UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
    return x ^ x >> 31;
}

void made_text(uint64_t seed, int words, struct buf *out)
{
    uint64_t state = seed;
    for (int n = 0; n < words;) {
        uint64_t pick = next_random(&state);
        for (int k = 0; k < KINDS; k++, pick >>= 4) {
            const char *part = word[k][pick % EACH];
            buf_printf(out, "%s%s", k ? " " : "", part);
            for (n++; *part; part++)
                n += *part == ' ';
        }
        buf_str(out, ". ");
    }
}
