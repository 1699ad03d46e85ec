/* coded_config.c - see coded_config.h.
 *
 * Names of modules that are not quantized come in three spellings: plain ("lm_head"), regular
 * expressions of Python behind "re:" (compressed-tensors), wildcards of the shell (modelopt). Both
 * kinds of patterns are compiled to one form, in which ANY_ONE and ANY stand for a character and
 * for any number of characters. A regular expression that needs more is not understood, and then
 * nothing is said of modules that only it could mean.
 */
#include "models/checkpoint/coded_config.h"

#include "models/checkpoint/keys.h"

enum { ANY_ONE = 1, ANY = 2, MOST_PATTERNS = 256, MOST_STEPS = 200000000 };

static const char *const kind_names[N_KIND] = {
    [KIND_FP8] = "FP8",     [KIND_MXFP8] = "MXFP8", [KIND_NVFP4] = "NVFP4",
    [KIND_MXFP4] = "MXFP4", [KIND_INT8] = "INT8",   [KIND_INT4] = "INT4",
};

const char *coded_kind_name(enum coded_kind k)
{
    return kind_names[k];
}

bool coded_method(const char *method)
{
    return !strcmp(method, "compressed-tensors") || !strcmp(method, "modelopt") ||
           !strcmp(method, "modelopt_fp4") || !strcmp(method, "fp8");
}

const char *coded_method_of(const struct conf *c)
{
    bool mlx = conf_has(c, "bits") && conf_has(c, "group_size"); /* which names no method */
    return conf_str(c, "quant_method", conf_has(c, "quantization") ? "modelopt" : mlx ? "mlx"
                    : "?");
}

/* ---- modules that are not quantized ---- */

/* Whether the pattern means s; false, too, when all steps are used. */
static bool same(const char *pattern, const char *s, int64_t *steps)
{
    const char *star = NULL, *back = NULL;
    while (*s)
        if (--*steps < 0)
            return false;
        else if (*pattern == ANY)
            star = ++pattern, back = s;
        else if (*pattern == ANY_ONE || *pattern == *s)
            pattern++, s++;
        else if (star)
            pattern = star, s = ++back;
        else
            return false;
    while (*pattern == ANY)
        pattern++;
    return !*pattern;
}

static char *compile_shell(const char *p)
{
    if (strchr(p, '['))
        return NULL;
    char *out = xstrdup(p);
    for (char *c = out; *c; c++)
        *c = *c == '*' ? (char)ANY : *c == '?' ? (char)ANY_ONE : *c;
    return out;
}

/* Such an expression matches the beginning of a name. */
static char *compile_regex(const char *p)
{
    struct buf out = {0};
    bool open = true;
    for (p += *p == '^'; *p; p++)
        if (*p == '$' && !p[1]) {
            open = false;
        } else if (*p == '.') {
            buf_char(&out, p[1] == '*' ? (char)ANY : (char)ANY_ONE);
            p += p[1] == '*';
        } else if (*p == '\\' && p[1] && strchr(".-_/", p[1])) {
            buf_char(&out, *++p);
        } else if (strchr("\\[](){}|+*?^$", *p)) {
            buf_free(&out);
            return NULL;
        } else {
            buf_char(&out, *p);
        }
    if (open)
        buf_char(&out, ANY);
    buf_char(&out, 0);
    return out.p;
}

static void read_ignored(const struct conf *c, const char *key, bool shell, struct coded_config *q)
{
    const json_t *list = conf_value(c, key), *v;
    size_t i;
    if (list && !json_is_array(list))
        conf_refuse(c, key, "is not a list");
    json_array_foreach(list, i, v)
    {
        const char *s = json_string_value(v);
        if (!s) {
            conf_refuse(c, key, "has an entry that is not a string");
            return;
        }
        if (shell ? !strpbrk(s, "*?[") : strncmp(s, "re:", 3) != 0) {
            json_object_set_new(q->modules, s, json_true());
            continue;
        }
        char *p = q->n_pattern == MOST_PATTERNS ? NULL
                  : shell                       ? compile_shell(s)
                                                : compile_regex(s + 3);
        q->all_linear &= p != NULL;
        if (p)
            q->pattern[q->n_pattern++] = p;
    }
}

/* Whether the list has the name, a module that contains it, or the last parts of the name. */
static bool lists(struct coded_config *q, const char *name)
{
    char part[200];
    if ((size_t)snprintf(part, sizeof part, "%s", name) >= sizeof part)
        return false;
    for (const char *p = part; p; p = strchr(p, '.'))
        if (json_object_get(q->modules, p += *p == '.'))
            return true;
    for (char *dot; (dot = strrchr(part, '.'));) {
        *dot = 0;
        if (json_object_get(q->modules, part))
            return true;
    }
    return ANY(i, q->n_pattern, same(q->pattern[i], name, &q->steps));
}

bool coded_ignores(struct coded_config *q, const char *module)
{
    static const char *const prefix[] = {
        "model.language_model.", "language_model.model.", "language_model.", "model.", "",
    };
    char name[200];
    size_t i = 0;
    while (strncmp(module, prefix[i], strlen(prefix[i])) != 0)
        i++;
    const char *rest = module + strlen(prefix[i]);
    for (i = 0; i < LEN(prefix); i++)
        if ((size_t)snprintf(name, sizeof name, "%s%s", prefix[i], rest) < sizeof name &&
            lists(q, name))
            return true;
    return false;
}

/* ---- compressed-tensors ---- */

static bool is_str(const struct conf *c, const char *key, const char *value)
{
    return !strcmp(conf_str(c, key, ""), value);
}

static void read_kind(const struct conf *g, const struct conf *w, const char *format,
                      struct coded_config *q)
{
    static const struct {
        const char *format, *type;
        int bits;
        enum coded_kind kind;
    } formats[] = {
        {"float-quantized", "float", 8, KIND_FP8},
        {"naive-quantized", "float", 8, KIND_FP8},
        {"mxfp8-quantized", "float", 8, KIND_MXFP8},
        {"naive-quantized", "int", 8, KIND_INT8},
        {"int-quantized", "int", 8, KIND_INT8},
        {"pack-quantized", "int", 8, KIND_INT8},
        {"pack-quantized", "int", 4, KIND_INT4},
        {"nvfp4-pack-quantized", "float", 4, KIND_NVFP4},
        {"mxfp4-pack-quantized", "float", 4, KIND_MXFP4},
    };
    const char *type = conf_str(w, "type", "int");
    int bits = conf_int(w, "num_bits", 8, 1, 64);
    for (size_t i = 0; i < LEN(formats); i++)
        if (!strcmp(format, formats[i].format) && !strcmp(type, formats[i].type) &&
            bits == formats[i].bits) {
            q->kind[formats[i].kind] = true;
            return;
        }
    conf_refuse(g, "weights",
                "is %d bits, %.20s, in format \"%.40s\", which is not supported; fetch the "
                "model in FP8, NVFP4 or bf16, or a GGUF file of it",
                bits, show(type).s, show(format).s);
}

static const char *inputs_of(const struct conf *g)
{
    struct conf in;
    if (!conf_enter(g, "input_activations", &in))
        return "bf16";
    int bits = conf_int(&in, "num_bits", 8, 1, 64);
    bool real = is_str(&in, "type", "float"), tensor = is_str(&in, "strategy", "tensor");
    int group = conf_int(&in, "group_size", 0, -1, 1 << 20);
    if (bits == 8 && real)
        return tensor         ? "FP8, one scale a tensor"
               : group == 128 ? "FP8, one scale a token and 128 inputs"
               : group == 32  ? "FP8, one scale a token and 32 inputs"
                              : "FP8, one scale a token";
    if (bits == 4 && real)
        return group == 32 ? "FP4, one scale a token and 32 inputs"
                           : "FP4, one scale a token and 16 inputs";
    if (bits == 8)
        return tensor ? "INT8, one scale a tensor" : "INT8, one scale a token";
    return "quantized in a way that is not known here";
}

static void read_inputs(const char *inputs, struct coded_config *q)
{
    q->inputs = !q->inputs || !strcmp(q->inputs, inputs) ? inputs : "quantized in several ways";
}

/* The numbers of a list of two, or of a text such as "128x128", which older files have. */
static bool read_pair(const struct conf *c, const char *key, int64_t v[2])
{
    const char *s = json_string_value(json_object_get(c->obj, key));
    char *end;
    if (!s)
        return conf_ints(c, key, v, 2) == 2;
    v[0] = strtoll(s, &end, 10);
    if (*end != 'x')
        return false;
    v[1] = strtoll(end + 1, &end, 10);
    return !*end;
}

static void read_block(const struct conf *c, const char *key, struct coded_config *q)
{
    int64_t v[2] = {0};
    if (!conf_has(c, key))
        return;
    if (!read_pair(c, key, v) || v[0] < 1 || v[1] < 1 || v[0] > 1 << 20 || v[1] > 1 << 20)
        conf_refuse(c, key, "is not a pair of sizes");
    else
        q->block[0] = (int)v[0], q->block[1] = (int)v[1];
}

static void refuse_object(const struct conf *c, const char *key)
{
    struct conf in;
    if (conf_enter(c, key, &in) && json_object_size(in.obj))
        conf_refuse(c, key, "is not supported, expected none");
}

static void read_compressed(const struct conf *c, struct coded_config *q)
{
    struct conf groups, in;
    const char *format = conf_str(c, "format", "dense"), *name;
    const char *status = conf_str(c, "quantization_status", "compressed");
    json_t *v;
    /* "frozen": older files, whose weights are codes all the same; the tensors tell */
    if (strcmp(status, "compressed") != 0 && strcmp(status, "frozen") != 0)
        conf_refuse(c, "quantization_status",
                    "is \"%.40s\", expected \"compressed\" or \"frozen\"", show(status).s);
    refuse_object(c, "transform_config");
    if (conf_enter(c, "sparsity_config", &in) && json_object_size(in.obj) &&
        !is_str(&in, "format", "dense"))
        conf_refuse(c, "sparsity_config", "is not supported, expected the format \"dense\"");
    read_ignored(c, "ignore", false, q);
    if (!conf_enter(c, "config_groups", &groups))
        return;
    json_object_foreach((json_t *)groups.obj, name, v)
    {
        struct conf g, w;
        if (!conf_enter(&groups, name, &g))
            continue;
        read_inputs(inputs_of(&g), q);
        const json_t *targets = conf_value(&g, "targets");
        q->all_linear &= json_array_size(targets) == 1 &&
                         json_is_string(json_array_get(targets, 0)) &&
                         !strcmp(json_string_value(json_array_get(targets, 0)), "Linear");
        if (!conf_enter(&g, "weights", &w))
            continue;
        if (!conf_bool(&w, "symmetric", true))
            conf_refuse(&w, "symmetric",
                        "is false, expected true: zero points are not supported; fetch a "
                        "symmetric checkpoint, FP8, NVFP4, bf16 or a GGUF file");
        read_block(&w, "block_structure", q);
        read_kind(&g, &w, conf_str(&g, "format", format), q);
    }
}

/* ---- modelopt, fp8 ---- */

static void read_modelopt(const struct conf *c, struct coded_config *q)
{
    const char *algo = conf_str(c, "quant_algo", "");
    bool mixed = !strcmp(algo, "MIXED_PRECISION");
    q->kind[KIND_FP8] = mixed || !strcmp(algo, "FP8");
    q->kind[KIND_NVFP4] = mixed || !strcmp(algo, "NVFP4") || !strcmp(algo, "W4A16_NVFP4");
    if (!q->kind[KIND_FP8] && !q->kind[KIND_NVFP4])
        conf_refuse(c, "quant_algo",
                    "\"%.40s\" is not supported, expected FP8, NVFP4, W4A16_NVFP4 or "
                    "MIXED_PRECISION; fetch the model in one of them, in bf16, or as a GGUF file",
                    show(algo).s);
    read_inputs(mixed                    ? "quantized in several ways"
                : !strcmp(algo, "FP8")   ? "FP8, one scale a tensor"
                : !strcmp(algo, "NVFP4") ? "FP4, one scale a token and 16 inputs"
                                         : "bf16",
                q);
    q->all_linear &= !mixed;
    read_ignored(c, "exclude_modules", true, q);
    read_ignored(c, "ignore", true, q);
}

static void read_fp8(const struct conf *c, struct coded_config *q)
{
    q->kind[KIND_FP8] = true;
    const char *fmt = conf_str(c, "fmt", "e4m3");
    if (strcmp(fmt, "e4m3") != 0 && strcmp(fmt, "float8_e4m3fn") != 0)
        conf_refuse(c, "fmt", "is \"%.40s\", expected \"e4m3\"", show(fmt).s);
    read_block(c, "weight_block_size", q);
    read_inputs(is_str(c, "activation_scheme", "static") ? "FP8, one scale a tensor"
                : q->block[0]                            ? "FP8, one scale a token and 128 inputs"
                                                         : "FP8, one scale a token",
                q);
    read_ignored(c, "modules_to_not_convert", false, q);
    read_ignored(c, "ignored_layers", false, q);
}

/* ---- the file ---- */

static void read_method(const struct conf *c, const char *method, struct coded_config *q)
{
    q->found = true;
    if (!strcmp(method, "mxfp4"))
        return; /* gpt-oss: the family reads it */
    snprintf(q->method, sizeof q->method, "%.31s", method);
    if (!strcmp(method, "compressed-tensors"))
        read_compressed(c, q);
    else if (!strcmp(method, "fp8"))
        read_fp8(c, q);
    else if (coded_method(method))
        read_modelopt(c, q);
    else
        conf_refuse(c, "quant_method",
                    "\"%.40s\" is not supported; fetch the model in bf16, in FP8 or NVFP4 "
                    "(compressed-tensors, modelopt), or a GGUF file of it, instead",
                    show(method).s);
}

/* The config.json has no quantization_config: modelopt writes a file of its own. */
static void read_beside(const char *dir, struct conf_file *file, struct coded_config *q)
{
    bool absent = false;
    FREED(free_at) char *path = xasprintf("%s/hf_quant_config.json", dir);
    FREED(json_decrefp) json_t *root = json_open(path, &absent, file->e);
    file->bad |= !root && !absent;
    if (!root)
        return;
    SWAP(q->path, path);
    file->path = q->path;
    struct conf top = {.obj = root, .file = file}, in;
    if (conf_enter(&top, "quantization", &in))
        read_method(&in, "modelopt", q);
    else
        conf_refuse(&top, "quantization", "is missing");
}

bool coded_config_read(const char *dir, struct coded_config *q, struct err *e)
{
    bool absent = false;
    *q = (struct coded_config){.path = xasprintf("%s/config.json", dir),
                               .modules = json_object(),
                               .pattern = xcalloc(MOST_PATTERNS, sizeof *q->pattern),
                               .all_linear = true,
                               .steps = MOST_STEPS};
    struct conf_file file = {.path = q->path, .e = e};
    FREED(json_decrefp) json_t *root = json_open(q->path, &absent, e);
    if (!root)
        return absent;
    struct conf top = {.obj = root, .file = &file}, text, c, in;
    if (conf_enter(&top, "quantization_config", &c) ||
        (conf_enter(&top, "text_config", &text) && conf_enter(&text, "quantization_config", &c))) {
        bool nested = conf_enter(&c, "quantization", &in);
        read_method(nested ? &in : &c, coded_method_of(&c), q);
    } else if (conf_ok(&top)) {
        read_beside(dir, &file, q);
    }
    return conf_ok(&top);
}

void coded_config_free(struct coded_config *q)
{
    for (int i = 0; i < q->n_pattern; i++)
        free(q->pattern[i]);
    FREE(q->pattern, q->path);
    json_decref(q->modules);
    *q = (struct coded_config){0};
}
