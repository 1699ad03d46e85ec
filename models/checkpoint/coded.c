/* coded.c - see coded.h.
 *
 * A matrix L is found by the tensor of its codes: L.weight of type F8_E4M3, I8 or U8, or
 * L.weight_packed. The other tensors of the matrix have the same beginning.
 */
#include "models/checkpoint/coded.h"

#include "kernels/packed.h"
#include "models/checkpoint/json.h"
#include "models/checkpoint/coded_config.h"

#include <math.h>

enum { NAME_ROOM = 200 };

struct finder {
    struct safetensors *st;
    struct coded_config q;
    struct coded *v;
    struct err *e;
    int count[N_KIND];
    int inputs, kv; /* scales that are not used */
    int packed; /* matrices that stay packed */
};

/* Sets *e to "FILE: tensor NAME <text>". Returns false. */
__attribute__((format(printf, 3, 4)))
static bool bad(const struct finder *f, const struct st_entry *p, const char *fmt, ...)
{
    char what[300];
    PRINT_ARGS(what, fmt);
    return err_file(f->e, st_path(f->st, &p->t), "tensor %s %s", show(p->t.name).s, what);
}

/* If the name ends so, its beginning is stored in base. */
static bool base_of(const char *name, const char *suffix, char base[NAME_ROOM])
{
    size_t n = strlen(name), s = strlen(suffix);
    if (n <= s || n - s >= NAME_ROOM || strcmp(name + n - s, suffix) != 0)
        return false;
    snprintf(base, NAME_ROOM, "%.*s", (int)(n - s), name);
    return true;
}

static struct st_entry *part(const struct finder *f, const char *base, const char *suffix)
{
    char name[NAME_ROOM + 40];
    snprintf(name, sizeof name, "%s%s", base, suffix);
    return (struct st_entry *)(uintptr_t)st_find(f->st, name);
}

/* Of a tensor of at most two dimensions, else -1. */
static int64_t count_of(const struct st_entry *p)
{
    int64_t n = 1;
    for (int i = 0; i < p->t.n_dim && i < 2; i++)
        n *= p->t.dim[i];
    return p->t.n_dim > 2 ? -1 : n;
}

static bool type_of_scale(const struct finder *f, const struct st_entry *p, enum scale_type *type)
{
    static const struct scale_name {
        const char *name;
        enum scale_type type;
    } types[] = {
        {"F32", SCALE_F32},      {"F16", SCALE_F16},      {"BF16", SCALE_BF16},
        {"F8_E4M3", SCALE_E4M3}, {"F8_E8M0", SCALE_E8M0}, {"U8", SCALE_E8M0},
    };
    const struct scale_name *found = ROW_NAMED(types, p->type);
    if (found)
        return *type = found->type, true;
    return bad(f, p, "has type %s, which is no type of scales", p->type);
}

/* A scale of a whole tensor. */
static bool read_one(const struct finder *f, const struct st_entry *p, float *value)
{
    enum scale_type type;
    char raw[4];
    if (count_of(p) != 1)
        return bad(f, p, "has %d dimensions and %zu bytes, expected one number", p->t.n_dim,
                   p->t.bytes);
    if (!type_of_scale(f, p, &type) || !st_read(f->st, &p->t, raw, f->e))
        return false;
    *value = scale_value(type, raw);
    return isfinite(*value) || bad(f, p, "is not finite");
}

/* ---- shapes ---- */

static bool sizes_ok(const struct finder *f, const struct st_entry *p)
{
    return (p->t.n_dim == 2 && p->t.dim[0] > 0 && p->t.dim[1] > 0 && p->t.dim[0] <= INT32_MAX &&
            p->t.dim[1] <= INT32_MAX) ||
           bad(f, p, "has %d dimensions, expected the rows and columns of one matrix", p->t.n_dim);
}

static bool has_shape(const struct st_entry *p, int64_t rows, int64_t cols)
{
    return p->t.n_dim == 2 && p->t.dim[0] == rows && p->t.dim[1] == cols;
}

/* Sets the blocks of a matrix whose scales have one of the shapes that FP8 and INT8 use. */
static bool set_blocks(const struct finder *f, const struct st_entry *scale, struct scaled *s)
{
    int rows = f->q.block[0], cols = f->q.block[1];
    s->block_rows = 1, s->block_cols = s->cols;
    if (count_of(scale) == 1)
        s->block_rows = s->rows;
    else if (!has_shape(scale, s->rows, 1) &&
             !(scale->t.n_dim == 1 && scale->t.dim[0] == s->rows)) {
        if (!rows || !has_shape(scale, (s->rows + rows - 1) / rows, (s->cols + cols - 1) / cols))
            return bad(
                f, scale,
                "has a shape that does not fit %lld x %lld weights, expected one scale, one a "
                "row%s",
                (long long)s->rows, (long long)s->cols,
                rows ? ", or one for each block of the config" : "");
        s->block_rows = rows, s->block_cols = cols;
    }
    return true;
}

/* Sets blocks of `group` columns. 0: the number of scales says how many. */
static bool set_groups(const struct finder *f, const struct st_entry *scale, int group,
                       struct scaled *s)
{
    if (!group && count_of(scale) > 0 && scale->t.n_dim == 2 && s->cols % scale->t.dim[1] == 0)
        group = (int)(s->cols / scale->t.dim[1]);
    if (!group || s->cols % group || !has_shape(scale, s->rows, s->cols / group))
        return bad(f, scale, "has a shape that does not fit %lld x %lld weights%s",
                   (long long)s->rows, (long long)s->cols,
                   group == 16 ? " with a scale for 16 columns"
                   : group     ? " with a scale for 32 columns"
                               : "");
    s->block_rows = 1, s->block_cols = group;
    return true;
}

/* ---- formats ---- */

/* Whether the config names the kind that the tensors have. */
static bool allowed(struct finder *f, const struct st_entry *p, enum coded_kind k)
{
    if (!f->q.kind[k])
        return bad(f, p, "is stored as %s, which the quantization_config does not name",
                   coded_kind_name(k));
    f->count[k]++;
    return true;
}

static bool plain_codes(struct finder *f, const struct st_entry *p,
                        const struct st_entry *scale, struct scaled *s)
{
    s->rows = p->t.dim[0], s->cols = p->t.dim[1];
    if (s->code == CODE_E4M3 && s->type == SCALE_E8M0 && f->q.kind[KIND_MXFP8])
        return allowed(f, p, KIND_MXFP8) && set_groups(f, scale, 32, s);
    return allowed(f, p, s->code == CODE_E4M3 ? KIND_FP8 : KIND_INT8) && set_blocks(f, scale, s);
}

/* outer NULL: MXFP4. */
static bool fp4_codes(struct finder *f, const struct st_entry *p, const struct st_entry *scale,
                      struct st_entry *outer, struct scaled *s)
{
    s->code = CODE_E2M1;
    s->rows = p->t.dim[0], s->cols = 2 * p->t.dim[1];
    if (!allowed(f, p, outer ? KIND_NVFP4 : KIND_MXFP4) ||
        !set_groups(f, scale, outer ? 16 : 32, s))
        return false;
    if (s->type != (outer ? SCALE_E4M3 : SCALE_E8M0))
        return bad(f, scale, "has type %s, expected %s", scale->type, outer ? "F8_E4M3" : "U8");
    if (!outer)
        return true;
    outer->hidden = true;
    return read_one(f, outer, &s->outer) &&
           ((s->outer != 0 || !s->divide) || bad(f, outer, "is 0"));
}

static bool packed_codes(struct finder *f, const char *base, const struct st_entry *p,
                         const struct st_entry *scale, struct scaled *s)
{
    struct st_entry *shape = part(f, base, ".weight_shape");
    int64_t dim[2] = {p->t.dim[0], 0};
    int32_t narrow[2] = {0};
    if (!shape)
        return bad(f, p, "has no %s.weight_shape", show(base).s);
    if (count_of(shape) != 2 || (shape->t.type != DT_I64 && shape->t.type != DT_I32))
        return bad(f, shape, "is not a pair of integers");
    if (!st_read(f->st, &shape->t, shape->t.type == DT_I64 ? (void *)dim : (void *)narrow, f->e))
        return false;
    if (shape->t.type == DT_I32)
        dim[0] = narrow[0], dim[1] = narrow[1];
    shape->hidden = true;
    bool four = f->q.kind[KIND_INT4] && p->t.dim[1] == (dim[1] + 7) / 8;
    if (dim[0] != p->t.dim[0] || dim[1] < 1 || dim[1] > INT32_MAX ||
        (!four && p->t.dim[1] != (dim[1] + 3) / 4))
        return bad(f, shape, "says %lld x %lld, which %lld x %lld words do not hold",
                   (long long)dim[0], (long long)dim[1], (long long)p->t.dim[0],
                   (long long)p->t.dim[1]);
    s->code = four ? CODE_U4 : CODE_U8;
    s->rows = dim[0], s->cols = dim[1];
    s->code_bytes = 4 * (size_t)p->t.dim[1];
    return allowed(f, p, four ? KIND_INT4 : KIND_INT8) && set_groups(f, scale, 0, s);
}

/* Parts that would change the values. */
static bool no_other_parts(const struct finder *f, const char *base)
{
    static const char *const parts[][2] = {
        {".weight_zero_point", "zero points are not supported; fetch a symmetric checkpoint"},
        {".weight_g_idx",
         "groups in another order are not supported; fetch a checkpoint without actorder"},
        {".pre_quant_scale",
         "scales of inputs before quantization are not supported; fetch NVFP4 or FP8"},
    };
    for (size_t i = 0; i < LEN(parts); i++) {
        const struct st_entry *p = part(f, base, parts[i][0]);
        if (p)
            return bad(f, p, "was found: %s", parts[i][1]);
    }
    return true;
}

/* Fills m->scaled of the matrix whose codes are p. */
static bool find_format(struct finder *f, const char *base, const struct st_entry *p,
                        const struct st_entry *scale, struct scaled *s)
{
    const char *type = p->type;
    struct st_entry *by = part(f, base, ".weight_global_scale"),
                      *times = part(f, base, ".weight_scale_2");
    char unused[NAME_ROOM];
    bool packed = base_of(p->t.name, ".weight_packed", unused);
    *s = (struct scaled){.outer = 1};
    if (!sizes_ok(f, p) || !type_of_scale(f, scale, &s->type) || !no_other_parts(f, base))
        return false;
    if (packed && strcmp(type, "I32") != 0 && strcmp(type, "U8") != 0)
        return bad(f, p, "has type %s, expected U8 or I32", type);
    if (!strcmp(type, "I32"))
        return packed_codes(f, base, p, scale, s);
    s->code = !strcmp(type, "I8") ? CODE_I8 : CODE_E4M3;
    s->divide = packed;
    bool ok = strcmp(type, "U8") != 0 ? plain_codes(f, p, scale, s)
              : (packed ? times : by)
                  ? bad(f, packed ? times : by, "belongs to NVFP4 of another kind")
              : packed || times ? fp4_codes(f, p, scale, packed ? by : times, s)
                                : bad(f, p, "has no %s.weight_scale_2", show(base).s);
    s->code_bytes = scaled_code_bytes(s->code, s->cols);
    return ok;
}

static bool add_matrix(struct finder *f, const char *base, struct st_entry *p)
{
    struct st_entry *scale = part(f, base, ".weight_scale"),
                      *inverse = part(f, base, ".weight_scale_inv");
    if (scale && inverse)
        return bad(f, p, "has both weight_scale and weight_scale_inv, expected one of them");
    scale = scale ? scale : inverse;
    if (!scale)
        return bad(f, p, "has type %s, but there is no %s.weight_scale", p->type, show(base).s);
    struct coded *v = f->v;
    struct coded_matrix *m = &v->m[v->n];
    *m = (struct coded_matrix){.code = p, .scale = scale};
    if (!find_format(f, base, p, scale, &m->scaled))
        return false;
    scale->hidden = true;
    m->t = (struct tensor){.name = xasprintf("%s.weight", base),
                           .type = DT_BF16,
                           .n_dim = 2,
                           .dim = {m->scaled.rows, m->scaled.cols},
                           .bytes = 2 * (size_t)m->scaled.rows * (size_t)m->scaled.cols};
    v->n++;
    return true;
}

/* Whether the scales are all numbers of the type that they have in blocks: by their type, or
 * because they say so if they are few enough to be read. */
static bool are_exact(const struct finder *f, const struct st_entry *p, const struct scaled *s)
{
    enum { MOST = 1 << 24 };
    const enum scale_type to = scaled_block_scale(s);
    const size_t each = scale_size(s->type), n = p->t.bytes / each;
    if (s->type == to || (s->type == SCALE_E8M0 && to == SCALE_BF16))
        return true;
    if (p->t.bytes > MOST)
        return false;
    struct err unused; /* reading the matrix fails, too, and says why */
    FREED(free_at) char *raw = xmalloc(p->t.bytes + 1);
    bool are = st_read(f->st, &p->t, raw, &unused);
    for (size_t i = 0; are && i < n; i++) {
        const float v = scale_value(s->type, raw + i * each);
        uint16_t half;
        are = to == SCALE_F16 ? f16_of(v, &half) : bf16_to_f32(f32_to_bf16(v)) == v;
    }
    return are;
}

/* Whether p holds codes of a matrix. */
static bool is_codes(const struct st_entry *p, char base[NAME_ROOM])
{
    const char *type = p->type;
    if (base_of(p->t.name, ".weight_packed", base))
        return true;
    return base_of(p->t.name, ".weight", base) &&
           (!strcmp(type, "F8_E4M3") || !strcmp(type, "U8") || !strcmp(type, "I8"));
}

/* ---- scales that are not used ---- */

static bool add_unused(struct finder *f, struct st_entry *p)
{
    static const struct {
        const char *suffix;
        bool kv;
    } unused[] = {
        {".input_scale", false},      {".input_global_scale", false},
        {".activation_scale", false}, {".input_zero_point", false},
        {".k_scale", true},           {".v_scale", true},
        {".q_scale", true},           {".kv_scale", true},
        {".k_zero_point", true},      {".v_zero_point", true},
        {".output_scale", true},      {".prob_output_scale", true},
    };
    char base[NAME_ROOM];
    for (size_t i = 0; i < LEN(unused); i++)
        if (base_of(p->t.name, unused[i].suffix, base)) {
            p->hidden = true;
            *(unused[i].kv ? &f->kv : &f->inputs) += 1;
            return true;
        }
    if (p->hidden || !base_of(p->t.name, ".weight_scale", base))
        return true;
    const struct st_entry *w = part(f, base, ".weight");
    return !w || bad(f, p, "was found, but %s.weight has type %s", show(base).s, w->type);
}

/* ---- experts ---- */

/* Whether the name is that of a matrix of one expert: "....experts.NUMBER....". */
static bool of_expert(const char *name)
{
    const char *at = strstr(name, "experts.");
    return at && (at == name || at[-1] == '.') && at[8] >= '0' && at[8] <= '9';
}

/* Experts of one layer are one tensor (weights.h), so they must have one type: all of a folder stay
 * packed as that type, or none stays packed: DT_NONE. */
static enum dtype experts_stay(const struct finder *f)
{
    char base[NAME_ROOM];
    enum dtype as = DT_NONE;
    for (int i = 0; i < f->st->n; i++) {
        const struct st_entry *p = f->st->by_name[i];
        if (of_expert(p->t.name) && base_of(p->t.name, ".weight", base) && !is_codes(p, base))
            return DT_NONE;
    }
    for (int i = 0; i < f->v->n; i++)
        if (of_expert(f->v->m[i].t.name)) {
            const enum dtype one = scaled_packs_as(&f->v->m[i].scaled);
            if (one == DT_NONE || (as && one != as))
                return DT_NONE;
            as = one;
        }
    return as;
}

/* Lets matrices stay packed. */
static void pack_matrices(struct finder *f)
{
    FOR_EACH(struct coded_matrix, m, f->v->m, f->v->n) {
        m->scaled.exact = are_exact(f, m->scale, &m->scaled);
        scaled_multiply(&m->scaled);
    }
    const enum dtype experts = experts_stay(f);
    FOR_EACH(struct coded_matrix, m, f->v->m, f->v->n) {
        struct tensor *t = &m->t;
        const enum dtype as = of_expert(t->name) ? experts : scaled_packs_as(&m->scaled);
        if (as == DT_NONE)
            continue;
        t->type = as;
        t->bytes = (size_t)t->dim[0] * dtype_bytes(t->type, (size_t)t->dim[1]);
        f->packed++;
    }
}

/* ---- what is said of the folder ---- */

/* Contradictions between the config and the tensors. */
static void compare(struct finder *f)
{
    int extra = 0, missing = 0;
    char base[NAME_ROOM], first[2][NAME_ROOM] = {"", ""};
    for (int i = 0; i < f->v->n; i++)
        if (base_of(f->v->m[i].t.name, ".weight", base) && coded_ignores(&f->q, base) && !extra++)
            snprintf(first[0], sizeof first[0], "%s", base);
    for (int i = 0; i < f->st->n && f->q.all_linear; i++) {
        const struct st_entry *p = f->st->by_name[i];
        if (p->t.n_dim == 2 && p->t.type != DT_OTHER &&
            base_of(p->t.name, "_proj.weight", base) && base_of(p->t.name, ".weight", base) &&
            !is_codes(p, base) && !coded_ignores(&f->q, base) && !missing++)
            snprintf(first[1], sizeof first[1], "%s", base);
    }
    if (f->q.steps < 0)
        extra = missing = 0; /* too many names and patterns */
    FREED(buf_free) struct buf b = {0};
    if (!f->v->n)
        buf_printf(&b, "; it names a format, but no matrix is quantized");
    if (extra)
        buf_printf(&b, "; it leaves out %d matri%s that %s quantized (%s)", extra,
                   extra > 1 ? "ces" : "x", extra > 1 ? "are" : "is", show(first[0]).s);
    if (missing && f->v->n)
        buf_printf(&b, "; it does not leave out %d matri%s that %s not quantized (%s)", missing,
                   missing > 1 ? "ces" : "x", missing > 1 ? "are" : "is", show(first[1]).s);
    if (b.n)
        f->v->note = xasprintf("%s: quantization_config and tensors differ, the tensors count%s",
                               show_path(f->q.path).s, b.p);
}

static void describe(struct finder *f)
{
    struct buf b = {0};
    const char *sep = ", ";
    buf_str(&b, f->q.method);
    for (int k = 0; k < N_KIND; k++)
        if (f->count[k]) {
            buf_printf(&b, "%s%d %s", sep, f->count[k], coded_kind_name((enum coded_kind)k));
            sep = " + ";
        }
    f->v->inputs = f->q.inputs ? f->q.inputs : "bf16";
    buf_str(&b, f->v->n == 1  ? " matrix"
                : f->v->n > 1 ? " matrices"
                              : ", nothing");
    if (f->packed == f->v->n && f->packed)
        buf_str(&b, f->packed == 1 ? ", which stays packed" : ", which stay packed");
    else
        buf_str(&b, " unpacked to BF16");
    if (f->packed && f->packed < f->v->n)
        buf_printf(&b, " except %d that stay%s packed", f->packed, f->packed == 1 ? "s" : "");
    if (f->packed < f->v->n)
        buf_str(&b, " (what stays packed: rows of whole blocks of 32, FP8 with bf16 numbers as "
                    "scales, integers with f16 numbers; experts, if all can)");
    buf_printf(&b, "; a server's inputs of matrices: %s", f->v->inputs);
    if (f->inputs || f->kv)
        buf_printf(&b, "; not used: %d scales of inputs, %d of a KV cache", f->inputs, f->kv);
    f->v->about = b.p;
}

/* No config says that matrices are quantized. */
static bool refuse_unnamed(const struct finder *f)
{
    char base[NAME_ROOM];
    for (int i = 0; i < f->st->n; i++) {
        const struct st_entry *p = f->st->by_name[i];
        if (is_codes(p, base) &&
            (part(f, base, ".weight_scale") || part(f, base, ".weight_scale_inv")))
            return bad(f, p, "has type %s and scales, but %s has no quantization_config", p->type,
                       show_path(f->q.path).s);
    }
    return true;
}

static bool find_all(struct finder *f)
{
    char base[NAME_ROOM];
    int n = f->st->n;
    f->v->m = xcalloc((size_t)n, sizeof *f->v->m);
    for (int i = 0; i < n; i++)
        if (is_codes(f->st->by_name[i], base) && !add_matrix(f, base, f->st->by_name[i]))
            return false;
    for (int i = 0; i < n; i++)
        if (!add_unused(f, f->st->by_name[i]))
            return false;
    pack_matrices(f);
    compare(f);
    describe(f);
    return true;
}

bool coded_find(struct safetensors *s, struct coded *v, struct err *e)
{
    *v = (struct coded){0};
    struct finder f = {.st = s, .v = v, .e = e};
    bool ok = coded_config_read(s->dir, &f.q, e) &&
              (*f.q.method ? find_all(&f) : f.q.found || refuse_unnamed(&f));
    coded_config_free(&f.q);
    return ok;
}

void coded_free(struct coded *v)
{
    for (int i = 0; i < v->n; i++)
        free((char *)v->m[i].t.name);
    FREE(v->m, v->about, v->note);
    *v = (struct coded){0};
}
