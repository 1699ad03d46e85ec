/* pickle.c - see pickle.h. */
#include "engine/tools/pickle.h"

enum { MARKED = -1, MOST_MEMO = 1 << 20, MOST_TEXT = 1 << 20 };

struct reader {
    struct pickle *p;
    const uint8_t *b;
    size_t n, at, op; /* op: offset of the opcode that is read */
    int *stack;       /* indices of values, or MARKED */
    int n_stack;
    int *memo; /* value of each slot, or -1 */
    int n_memo;
    struct err *e;
};

static bool refuse(const struct reader *r, const char *what)
{
    return err_set(r->e, ERR_USAGE, "the pickle at byte %zu: %s", r->op, what);
}

/* ---- values ---------------------------------------------------------------------------------- */

static bool push_value(struct reader *r, int v)
{
    *APPEND(r->stack, r->n_stack) = v;
    return true;
}

/* Makes a value and pushes it. */
static bool make(struct reader *r, struct pickle_value v)
{
    struct pickle *p = r->p;
    if (p->n == PICKLE_VALUES) {
        free(v.item);
        return refuse(r, "more than 1048576 values");
    }
    *APPEND(p->v, p->n) = v;
    return push_value(r, p->n - 1);
}

static void add_item(struct pickle_value *v, int item)
{
    *APPEND(v->item, v->n_item) = item;
}

/* The value on top of the stack; NULL: there is none, or a mark. */
static struct pickle_value *top(const struct reader *r, int below)
{
    int at = r->n_stack - 1 - below;
    return at >= 0 && r->stack[at] != MARKED ? &r->p->v[r->stack[at]] : NULL;
}

/* Where the entries above the last mark begin; -1: there is no mark. */
static int above_mark(const struct reader *r)
{
    int at = r->n_stack;
    while (at > 0 && r->stack[at - 1] != MARKED)
        at--;
    return at > 0 ? at : -1;
}

/* Takes the last n entries off as a list. */
static bool take_list(struct reader *r, int n)
{
    struct pickle_value v = {.kind = PK_LIST};
    for (int i = 0; i < n; i++)
        if (!top(r, i))
            return refuse(r, "the stack has too few values");
    for (int i = n; i > 0; i--)
        add_item(&v, r->stack[r->n_stack - i]);
    r->n_stack -= n;
    return make(r, v);
}

static bool take_marked(struct reader *r)
{
    int from = above_mark(r);
    if (from < 0)
        return refuse(r, "no mark on the stack");
    struct pickle_value v = {.kind = PK_LIST};
    for (int i = from; i < r->n_stack; i++)
        add_item(&v, r->stack[i]);
    r->n_stack = from - 1;
    return make(r, v);
}

/* Adds the entries from `from` on to the list or dict below them. */
static bool add_to(struct reader *r, int from, bool marked, enum pickle_kind kind)
{
    int at = from - 1 - marked;
    if (from < 0 || at < 0 || r->stack[at] == MARKED || r->p->v[r->stack[at]].kind != kind)
        return refuse(r, kind == PK_DICT ? "no dict to add to" : "no list to add to");
    if (kind == PK_DICT && (r->n_stack - from) % 2)
        return refuse(r, "a key without a value");
    for (int i = from; i < r->n_stack; i++) {
        if (r->stack[i] == MARKED)
            return refuse(r, "a mark among the values");
        add_item(&r->p->v[r->stack[at]], r->stack[i]);
    }
    r->n_stack = at + 1;
    return true;
}

/* ---- tensors --------------------------------------------------------------------------------- */

const struct pickle_value *pickle_item(const struct pickle *p, const struct pickle_value *v, int k)
{
    static const struct pickle_value none;
    return k >= 0 && k < v->n_item ? &p->v[v->item[k]] : &none;
}

bool pickle_is(const struct pickle_value *v, const char *text)
{
    return (v->kind == PK_TEXT || v->kind == PK_GLOBAL) && v->n == strlen(text) &&
           memcmp(v->s, text, v->n) == 0;
}

static bool has_ints(const struct pickle *p, const struct pickle_value *v)
{
    for (int i = 0; i < v->n_item; i++)
        if (pickle_item(p, v, i)->kind != PK_INT)
            return false;
    return v->kind == PK_LIST;
}

/* The persistent id ("storage", class, key, place, elements) becomes a storage. */
static bool persistent(struct reader *r)
{
    struct pickle *p = r->p;
    const struct pickle_value *id = top(r, 0);
    if (!id || id->kind != PK_LIST || id->n_item != 5 ||
        !pickle_is(pickle_item(p, id, 0), "storage") ||
        pickle_item(p, id, 1)->kind != PK_GLOBAL || pickle_item(p, id, 2)->kind != PK_TEXT ||
        pickle_item(p, id, 4)->kind != PK_INT || pickle_item(p, id, 4)->i < 0)
        return refuse(r, "a persistent id that is no storage");
    struct pickle_value v = {.kind = PK_STORAGE};
    add_item(&v, id->item[1]);
    add_item(&v, id->item[2]);
    add_item(&v, id->item[4]);
    r->n_stack--;
    return make(r, v);
}

/* Tensors: (storage, first, sizes, strides, requires_grad, hooks[, dtype][, metadata]). */
static bool rebuild(struct reader *r, const struct pickle_value *args, bool typed)
{
    const struct pickle *p = r->p;
    const struct pickle_value *sizes = pickle_item(p, args, 2), *strides = pickle_item(p, args, 3);
    if (args->n_item < 6 + typed || args->n_item > 7 + typed ||
        pickle_item(p, args, 0)->kind != PK_STORAGE || pickle_item(p, args, 1)->kind != PK_INT ||
        !has_ints(p, sizes) || !has_ints(p, strides) || sizes->n_item != strides->n_item ||
        (typed && pickle_item(p, args, 6)->kind != PK_GLOBAL))
        return refuse(r, "a tensor whose arguments are not storage, offset, sizes and strides");
    if (args->n_item == 7 + typed && pickle_item(p, args, 6 + typed)->n_item > 0)
        return refuse(r, "a tensor that is to be negated or conjugated");
    struct pickle_value v = {.kind = PK_TENSOR};
    for (int i = 0; i < 4; i++)
        add_item(&v, args->item[i]);
    if (typed)
        add_item(&v, args->item[6]);
    r->n_stack -= 2;
    return make(r, v);
}

static bool reduce(struct reader *r)
{
    const struct pickle_value *args = top(r, 0), *f = top(r, 1);
    if (!args || !f || args->kind != PK_LIST || f->kind != PK_GLOBAL)
        return refuse(r, "a call of something that is no function");
    if (pickle_is(f, "torch._utils _rebuild_tensor_v2"))
        return rebuild(r, args, false);
    if (pickle_is(f, "torch._utils _rebuild_tensor_v3"))
        return rebuild(r, args, true);
    bool of_state = pickle_is(f, "torch._utils _rebuild_parameter_with_state");
    if ((pickle_is(f, "torch._utils _rebuild_parameter") || of_state) &&
        args->n_item == 3 + of_state && pickle_item(r->p, args, 0)->kind == PK_TENSOR) {
        int tensor = args->item[0];
        r->n_stack -= 2;
        return push_value(r, tensor);
    }
    if (pickle_is(f, "collections OrderedDict") && args->n_item == 0) {
        r->n_stack -= 2;
        return make(r, (struct pickle_value){.kind = PK_DICT});
    }
    char what[120];
    snprintf(what, sizeof what, "a call of %.60s, whose arguments are not a tensor's", f->s);
    return refuse(r, what);
}

/* ---- operands -------------------------------------------------------------------------------- */

static bool has(const struct reader *r, size_t n)
{
    return n <= r->n - r->at || refuse(r, "it ends within an opcode");
}

static uint64_t number(struct reader *r, int bytes)
{
    r->at += (size_t)bytes;
    return little(r->b + r->at - bytes, bytes);
}

static bool whole(struct reader *r, int bytes, bool sign)
{
    if (!has(r, (size_t)bytes))
        return false;
    uint64_t v = number(r, bytes);
    if (sign && bytes > 0 && bytes < 8 && v >> (8 * bytes - 1))
        v |= ~UINT64_C(0) << (8 * bytes);
    return make(r, (struct pickle_value){.kind = PK_INT, .i = (int64_t)v});
}

static bool long_whole(struct reader *r)
{
    if (!has(r, 1))
        return false;
    int bytes = r->b[r->at++];
    return bytes <= 8 ? whole(r, bytes, true) : refuse(r, "a number of more than 64 bits");
}

static bool real(struct reader *r)
{
    uint64_t bits = 0;
    double f;
    if (!has(r, 8))
        return false;
    for (int i = 0; i < 8; i++)
        bits = bits << 8 | r->b[r->at++];
    memcpy(&f, &bits, sizeof f);
    return make(r, (struct pickle_value){.kind = PK_FLOAT, .f = f});
}

static bool text(struct reader *r, int bytes)
{
    if (!has(r, (size_t)bytes))
        return false;
    uint64_t n = number(r, bytes);
    if (n > MOST_TEXT)
        return refuse(r, "a text of more than 1 MiB");
    if (!has(r, (size_t)n))
        return false;
    const char *s = (const char *)r->b + r->at;
    r->at += (size_t)n;
    return make(r, (struct pickle_value){.kind = PK_TEXT, .s = s, .n = (size_t)n});
}

/* The constant text of a name that may occur: "module name"; NULL: it may not. */
static const char *known_name(const char *name)
{
    static const char *const known[] = {
        "torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_tensor_v3",
        "torch._utils _rebuild_parameter", "torch._utils _rebuild_parameter_with_state",
        "collections OrderedDict", "torch FloatStorage",
        "torch DoubleStorage", "torch HalfStorage", "torch BFloat16Storage", "torch IntStorage",
        "torch LongStorage", "torch ShortStorage", "torch CharStorage", "torch ByteStorage",
        "torch BoolStorage", "torch.storage UntypedStorage", "torch float8_e4m3fn",
        "torch float8_e5m2", "torch float8_e4m3fnuz", "torch float8_e5m2fnuz",
        "torch float8_e8m0fnu", "torch float4_e2m1fn_x2", "torch uint16", "torch uint32",
        "torch uint64"};
    const char *const *row = ROW_NAMED(known, name);
    return row ? *row : NULL;
}

/* "module\nname\n" */
static bool global(struct reader *r)
{
    const char *s = (const char *)r->b + r->at;
    size_t left = r->n - r->at;
    const char *middle = left ? memchr(s, '\n', left) : NULL;
    const char *end = middle ? memchr(middle + 1, '\n', left - (size_t)(middle + 1 - s)) : NULL;
    if (!end || end - s > 200)
        return refuse(r, "the name of a class or function has no end");
    char name[208], what[300];
    size_t n = (size_t)(end - s);
    for (size_t i = 0; i < n; i++)
        name[i] = s[i] == '\n' ? ' ' : s[i] < ' ' || s[i] > '~' ? '?' : s[i];
    name[n] = '\0';
    const char *known = known_name(name);
    if (!known) {
        snprintf(what, sizeof what, "it names %s, which is no part of a tensor; nothing was run",
                 name);
        return refuse(r, what);
    }
    r->at += n + 1;
    return make(r, (struct pickle_value){.kind = PK_GLOBAL, .s = known, .n = n});
}

static bool memo_put(struct reader *r, int bytes)
{
    if (!has(r, (size_t)bytes))
        return false;
    uint64_t i = number(r, bytes);
    if (i >= MOST_MEMO || !top(r, 0))
        return refuse(r, "a memo that is too large or of nothing");
    if ((int)i >= r->n_memo) {
        int was = r->n_memo;
        RESERVE(r->memo, (int)i + 1, r->n_memo);
        for (int k = was; k < r->n_memo; k++)
            r->memo[k] = -1;
    }
    r->memo[i] = r->stack[r->n_stack - 1];
    return true;
}

static bool memo_get(struct reader *r, int bytes)
{
    if (!has(r, (size_t)bytes))
        return false;
    uint64_t i = number(r, bytes);
    if (i >= (uint64_t)r->n_memo || r->memo[i] < 0)
        return refuse(r, "a memo that nothing was put into");
    return push_value(r, r->memo[i]);
}

/* The state of an object, which is dropped: attributes of dicts and tensors. */
static bool build(struct reader *r)
{
    const struct pickle_value *state = top(r, 0), *of = top(r, 1);
    if (!state || !of || (of->kind != PK_DICT && of->kind != PK_TENSOR))
        return refuse(r, "a state of something that is no dict and no tensor");
    r->n_stack--;
    return true;
}

/* ---- opcodes --------------------------------------------------------------------------------- */

static bool unknown(const struct reader *r, int op)
{
    static const struct {
        char op;
        const char *name;
    } names[] = {
        {'0', "POP"}, {'1', "POP_MARK"}, {'2', "DUP"}, {'F', "FLOAT"}, {'I', "INT"}, {'L', "LONG"},
        {'P', "PERSID"}, {'S', "STRING"}, {'T', "BINSTRING"}, {'V', "UNICODE"}, {'d', "DICT"},
        {'i', "INST"}, {'o', "OBJ"}, {'g', "GET"}, {'p', "PUT"}, {'l', "LIST"}, {'B', "BINBYTES"},
        {'C', "SHORT_BINBYTES"}, {'\x81', "NEWOBJ"}, {'\x82', "EXT1"}, {'\x83', "EXT2"},
        {'\x84', "EXT4"}, {'\x8b', "LONG4"}, {'\x8c', "SHORT_BINUNICODE"}, {'\x8d', "BINUNICODE8"},
        {'\x8e', "BINBYTES8"}, {'\x8f', "EMPTY_SET"}, {'\x90', "ADDITEMS"}, {'\x91', "FROZENSET"},
        {'\x92', "NEWOBJ_EX"}, {'\x93', "STACK_GLOBAL"}, {'\x94', "MEMOIZE"}, {'\x95', "FRAME"},
        {'\x96', "BYTEARRAY8"}, {'\x97', "NEXT_BUFFER"}, {'\x98', "READONLY_BUFFER"}};
    char what[120];
    const char *name = "no opcode";
    for (size_t i = 0; i < LEN(names); i++)
        if ((unsigned char)names[i].op == op)
            name = names[i].name;
    snprintf(what, sizeof what, "opcode 0x%02x (%s), which torch.save() writes for no tensor", op,
             name);
    return refuse(r, what);
}

static bool value_op(struct reader *r, int op)
{
    switch (op) {
    case 'N': return make(r, (struct pickle_value){.kind = PK_NONE});
    case 0x88: return make(r, (struct pickle_value){.kind = PK_BOOL, .i = 1});
    case 0x89: return make(r, (struct pickle_value){.kind = PK_BOOL});
    case '}': return make(r, (struct pickle_value){.kind = PK_DICT});
    case ']':
    case ')': return make(r, (struct pickle_value){.kind = PK_LIST});
    case 'J': return whole(r, 4, true);
    case 'K': return whole(r, 1, false);
    case 'M': return whole(r, 2, false);
    case 0x8a: return long_whole(r);
    case 'G': return real(r);
    case 'X': return text(r, 4);
    case 'U': return text(r, 1);
    default: return unknown(r, op);
    }
}

static bool one_op(struct reader *r, int op)
{
    switch (op) {
    case '(': return push_value(r, MARKED);
    case 't': return take_marked(r);
    case 0x85: return take_list(r, 1);
    case 0x86: return take_list(r, 2);
    case 0x87: return take_list(r, 3);
    case 'a': return add_to(r, r->n_stack - 1, false, PK_LIST);
    case 'e': return add_to(r, above_mark(r), true, PK_LIST);
    case 's': return add_to(r, r->n_stack - 2, false, PK_DICT);
    case 'u': return add_to(r, above_mark(r), true, PK_DICT);
    case 'q': return memo_put(r, 1);
    case 'r': return memo_put(r, 4);
    case 'h': return memo_get(r, 1);
    case 'j': return memo_get(r, 4);
    case 'c': return global(r);
    case 'Q': return persistent(r);
    case 'R': return reduce(r);
    case 'b': return build(r);
    default: return value_op(r, op);
    }
}

static bool run(struct reader *r)
{
    if (r->n < 2 || r->b[0] != 0x80 || r->b[1] != 2)
        return refuse(r, "expected a pickle of protocol 2, as torch.save() writes it");
    for (r->at = 2;;) {
        r->op = r->at;
        if (!has(r, 1))
            return false;
        int op = r->b[r->at++];
        if (op == '.')
            break;
        if (!one_op(r, op))
            return false;
    }
    if (r->n_stack != 1 || r->stack[0] == MARKED)
        return refuse(r, "it ends with more or less than one value");
    r->p->root = r->stack[0];
    return true;
}

bool pickle_read(struct pickle *p, const uint8_t *bytes, size_t n, struct err *e)
{
    *p = (struct pickle){0};
    struct reader r = {.p = p, .b = bytes, .n = n, .e = e};
    bool ok = n <= PICKLE_BYTES ? run(&r) : refuse(&r, "more than 16 MiB");
    FREE(r.stack, r.memo);
    if (!ok)
        pickle_free(p);
    return ok;
}

void pickle_free(struct pickle *p)
{
    for (int i = 0; i < p->n; i++)
        free(p->v[i].item);
    free(p->v);
    *p = (struct pickle){0};
}
