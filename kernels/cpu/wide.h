/* wide.h - products of many rows: the lanes of a vector are rows.
 *
 * Included by math.h. Rows come in panels of PANEL: for each input element, the values of the
 * panel's rows. A tile's weights are converted to float32 once for all panels; then each is loaded
 * as a broadcast and multiplied with up to PANELS panels, and each load of a panel serves several
 * outputs. A result is the same as multiply()'s, bit for bit: 32 running sums over the inputs and
 * the tree of v_sum4(). Here a lane is a row, so the sums of a row cannot be held at once: they are
 * computed one after the other, in an order in which the tree needs few of them at a time.
 */

/* Outputs that wide_block() computes together, by the number of panels. */
#if CPU_ISA == 2
enum { PANELS = 2, WIDE_OUT_1 = 8, WIDE_OUT_2 = 6 };
#elif CPU_ISA == 1
enum { PANELS = 1, WIDE_OUT_1 = 3 };
#else
enum { PANELS = 1, WIDE_OUT_1 = 1 };
#endif
enum { N_PAIRS = 16, MOST_SUMS = 12 /* vectors of one running sum: outputs times panels */ };

/* Running sums are computed in pairs: those of the packed elements i and i + 16 of 32, which the tree
 * adds first. The pairs come in an order (i: the four bits of the number, reversed; its own inverse)
 * in which those that the tree adds next, 8, 4, 2 and 1 apart, are neighbours, so that few partial
 * results wait for others. */
static const uint8_t reversed[N_PAIRS] = {0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15};

/* Packed rows (PANEL, k) to a panel: by blocks of WIDE_K inputs, by pairs of sums, by groups of 32
 * inputs; (2, PANEL) each. */
static void row_panel(const float *rows, int k, float *panel)
{
    for (int at = 0; at < k; at += WIDE_K) {
        int groups = (k - at < WIDE_K ? k - at : WIDE_K) / 32;
        float *to = panel + (size_t)at * PANEL;
        for (int g = 0; g < groups; g++)
            for (int half = 0; half < 2; half++) {
                v16 v[16];
                UNROLL
                for (int r = 0; r < 16; r++)
                    v[r] = v_load(rows + (size_t)r * (size_t)k + at + g * 32 + half * 16);
                v_transpose(v);
                UNROLL
                for (int i = 0; i < 16; i++)
                    v_store(to + ((reversed[i] * groups + g) * 2 + half) * PANEL, v[i]);
            }
    }
}

V_FN void widen_as(const struct cpu_mat *w, int out, int n, float *dst, const enum cpu_store type)
{
    const int size = type == STORED_F32 ? 4 : 2, n32 = w->k / 32, tail = w->k % 32;
    for (int o = 0; o < n; o++) {
        const uint8_t *p = w->data + (size_t)(out + o) * w->pitch;
        for (int c = 0; c < n32 + (tail > 0); c++) {
            float *to = dst + (size_t)(c / (WIDE_K / 32) * TILE_OUT + o) * WIDE_PITCH +
                        c % (WIDE_K / 32) * 32;
            v16 even, odd;
            __builtin_prefetch(p + (size_t)n * w->pitch + (size_t)c * 32 * (size_t)size);
            if (c < n32)
                v_split_any(p + (size_t)c * 32 * (size_t)size, type, &even, &odd);
            else
                v_split_tail(p + (size_t)c * 32 * (size_t)size, type, tail, &even, &odd);
            v_store(to, even);
            v_store(to + 16, odd);
        }
    }
}

static void widen_tile(const struct cpu_mat *w, int out, int n, float *dst)
{
    CHECK(w->type != STORED_MXFP4);
    if (w->type == STORED_BF16)
        widen_as(w, out, n, dst, STORED_BF16);
    else if (w->type == STORED_F16)
        widen_as(w, out, n, dst, STORED_F16);
    else
        widen_as(w, out, n, dst, STORED_F32);
}

/* O outputs of the rows of V panels: sums[(o * PANELS + panel) * PANEL + row]. w: of the first
 * output, as widen_tile() stores it; k: a multiple of 32; panels are k * PANEL floats apart. */
V_FN void wide_block(const float *w, int k, const float *x, float *sums, const int O, const int V)
{
    v16 even[MOST_SUMS], odd[MOST_SUMS], held[5][MOST_SUMS];
    v16 between[N_PAIRS][2][MOST_SUMS]; /* sums over earlier blocks of WIDE_K inputs */
    for (int at = 0;; at += WIDE_K, w += TILE_OUT * WIDE_PITCH) {
        const int groups = (k - at < WIDE_K ? k - at : WIDE_K) / 32;
        const bool first = at == 0, last = at + WIDE_K >= k;
        const float *from = x + (size_t)at * PANEL;
        for (int i = 0; i < N_PAIRS; i++) {
            const float *weight = w + reversed[i];
            UNROLL
            for (int j = 0; j < O * V; j++) {
                even[j] = first ? v_zero() : between[i][0][j];
                odd[j] = first ? v_zero() : between[i][1][j];
            }
            for (int g = 0; g < groups; g++, weight += 32, from += 2 * PANEL) {
                v16 in[PANELS];
                UNROLL
                for (int p = 0; p < V; p++)
                    in[p] = v_pinned(v_load(from + (size_t)p * (size_t)k * PANEL));
                UNROLL
                for (int j = 0; j < O * V; j++)
                    even[j] = v_fma(v_set(weight[j / V * WIDE_PITCH]), in[j % V], even[j]);
                UNROLL
                for (int p = 0; p < V; p++)
                    in[p] = v_pinned(v_load(from + (size_t)p * (size_t)k * PANEL + PANEL));
                UNROLL
                for (int j = 0; j < O * V; j++)
                    odd[j] = v_fma(v_set(weight[j / V * WIDE_PITCH + 16]), in[j % V], odd[j]);
            }
            if (!last) {
                UNROLL
                for (int j = 0; j < O * V; j++)
                    between[i][0][j] = even[j], between[i][1][j] = odd[j];
                continue;
            }
            v16(*to)[MOST_SUMS] = held;
            UNROLL
            for (int j = 0; j < O * V; j++)
                even[j] = v_add(even[j], odd[j]);
            for (int bits = i; bits & 1; bits >>= 1, to++) { /* as a binary counter carries */
                UNROLL
                for (int j = 0; j < O * V; j++)
                    even[j] = v_add((*to)[j], even[j]);
            }
            UNROLL
            for (int j = 0; j < O * V; j++)
                (*to)[j] = even[j];
        }
        if (last)
            break;
    }
    UNROLL
    for (int j = 0; j < O * V; j++)
        v_store(sums + (j / V * PANELS + j % V) * PANEL, held[4][j]);
}

#define WIDE(V)                                                                                    \
    static void wide_##V(const float *w, int k, const float *x, int n, float *sums)                \
    {                                                                                              \
        int o = 0;                                                                                 \
        for (; o + WIDE_OUT_##V <= n; o += WIDE_OUT_##V)                                           \
            wide_block(w + o * WIDE_PITCH, k, x, sums + o * PANELS * PANEL, WIDE_OUT_##V, V);      \
        for (; o + 2 <= n && WIDE_OUT_##V > 2; o += 2)                                             \
            wide_block(w + o * WIDE_PITCH, k, x, sums + o * PANELS * PANEL, 2, V);                 \
        for (; o < n; o++)                                                                         \
            wide_block(w + o * WIDE_PITCH, k, x, sums + o * PANELS * PANEL, 1, V);                 \
    }
WIDE(1)
#if CPU_ISA == 2
WIDE(2)
#endif

static void multiply_wide(const float *w, int k, const float *x, int panels, int n, float *tile)
{
    typedef void wide_fn(const float *, int, const float *, int, float *);
#if CPU_ISA == 2
    static wide_fn *const by_panels[PANELS] = {wide_1, wide_2};
#else
    static wide_fn *const by_panels[PANELS] = {wide_1};
#endif
    _Alignas(64) float sums[TILE_OUT * PANELS * PANEL];
    for (int p = 0, blocks = (panels + PANELS - 1) / PANELS; blocks; blocks--) {
        int m = (panels - p + blocks - 1) / blocks; /* blocks of equal size */
        by_panels[m - 1](w, k, x + (size_t)p * (size_t)k * PANEL, n, sums);
        for (int i = 0; i < m; i++, p++)
            for (int o = 0; o < n; o += 16) {
                v16 v[16];
                UNROLL
                for (int j = 0; j < 16; j++)
                    v[j] = o + j < n ? v_load(sums + ((o + j) * PANELS + i) * PANEL) : v_zero();
                v_transpose(v);
                UNROLL
                for (int r = 0; r < PANEL; r++)
                    v_store(tile + (p * PANEL + r) * TILE_OUT + o, v[r]);
            }
    }
}
