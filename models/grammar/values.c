/* values.c - see values.h. */
#include "models/grammar/values.h"

#include <math.h>
#include <stdint.h>

#include "kernels/base.h"

enum { MOST_REFS = 64 };

json_t *schema_get(const json_t *o, const char *key)
{
    return json_object_get(o, key);
}

static bool has_type(const json_t *v, const char *type)
{
    return (!strcmp(type, "string") && json_is_string(v)) ||
           (!strcmp(type, "number") && json_is_number(v)) ||
           (!strcmp(type, "integer") &&
            (json_is_integer(v) ||
             (json_is_real(v) && json_real_value(v) == floor(json_real_value(v))))) ||
           (!strcmp(type, "boolean") && json_is_boolean(v)) ||
           (!strcmp(type, "null") && json_is_null(v)) ||
           (!strcmp(type, "object") && json_is_object(v)) ||
           (!strcmp(type, "array") && json_is_array(v));
}

bool schema_type_allows(const json_t *type, const json_t *v)
{
    json_t *one;
    size_t i;
    if (json_is_string(type))
        return has_type(v, json_string_value(type));
    json_array_foreach(type, i, one)
        if (json_is_string(one) && has_type(v, json_string_value(one)))
            return true;
    return !type;
}

const json_t *schema_at(const json_t *root, const char *ref)
{
    const json_t *at = root;
    if (*ref++ != '#')
        return NULL;
    while (at && *ref == '/') {
        FREED(buf_free) struct buf name = {0};
        buf_str(&name, "");
        for (ref++; *ref && *ref != '/'; ref++)
            if (ref[0] == '~' && (ref[1] == '0' || ref[1] == '1'))
                buf_char(&name, *++ref == '0' ? '~' : '/');
            else
                buf_char(&name, *ref);
        bool number = name.n && strspn(name.p, "0123456789") == name.n;
        at = !json_is_array(at) ? schema_get(at, name.p)
             : number           ? json_array_get(at, (size_t)strtoul(name.p, NULL, 10))
                                : NULL;
    }
    return *ref ? NULL : at;
}

static const json_t *behind_refs(const json_t *root, const json_t *o)
{
    for (int i = 0; i < MOST_REFS && o; i++) {
        const char *ref = json_string_value(schema_get(o, "$ref"));
        if (!ref)
            return o;
        o = schema_at(root, ref);
    }
    return NULL;
}

bool schema_holds(const json_t *list, const json_t *v)
{
    json_t *one;
    size_t i;
    json_array_foreach(list, i, one)
        if (json_equal(one, (json_t *)(uintptr_t)v) ||
            (json_is_number(one) && json_is_number(v) &&
             json_number_value(one) == json_number_value(v)))
            return true;
    return false;
}

/* Adds the values of a schema that allows constants, booleans and null only. False: it allows
 * others. */
static bool add_values(const json_t *root, const json_t *o, json_t *list, int depth)
{
    FREED(json_decrefp) json_t *all = json_array();
    json_t *one;
    const json_t *is = behind_refs(root, o);
    const char *type = json_string_value(schema_get(is, "type"));
    bool ok = is && depth < MOST_REFS;
    size_t i;
    if (ok && (schema_get(is, "const") || json_is_array(schema_get(is, "enum")))) {
        if (schema_get(is, "const"))
            json_array_append(all, schema_get(is, "const"));
        else
            json_array_extend(all, schema_get(is, "enum"));
    } else if (ok && json_is_array(schema_get(is, "anyOf"))) {
        json_array_foreach(schema_get(is, "anyOf"), i, one) {
            ok = ok && add_values(root, one, list, depth + 1);
        }
    } else if (ok && type && !strcmp(type, "boolean")) {
        json_array_append_new(all, json_true());
        json_array_append_new(all, json_false());
    } else if (ok && type && !strcmp(type, "null")) {
        json_array_append_new(all, json_null());
    } else {
        ok = false;
    }
    json_array_foreach(all, i, one) {
        if (schema_type_allows(schema_get(is, "type"), one) && !schema_holds(list, one))
            json_array_append(list, one);
    }
    return ok;
}

json_t *schema_values(const json_t *root, const json_t *o)
{
    json_t *list = json_array();
    if (add_values(root, o, list, 0))
        return list;
    json_decref(list);
    return NULL;
}

/* The constants that a schema allows, as a new list; NULL: others, too. */
static json_t *constants(const json_t *o)
{
    json_t *one = schema_get(o, "const"), *list = schema_get(o, "enum");
    if (one) {
        json_t *all = json_array();
        json_array_append(all, one);
        return all;
    }
    return json_is_array(list) ? json_incref(list) : NULL;
}

static bool no_common_constant(const json_t *a, const json_t *b)
{
    FREED(json_decrefp) json_t *x = constants(a), *y = constants(b);
    json_t *u;
    size_t i;
    bool apart = x && y;
    json_array_foreach(x, i, u) {
        apart = apart && !schema_holds(y, u);
    }
    return apart;
}

static bool types_apart(const json_t *a, const json_t *b)
{
    const char *x = json_string_value(schema_get(a, "type"));
    const char *y = json_string_value(schema_get(b, "type"));
    bool numbers = x && y && (!strcmp(x, "number") || !strcmp(x, "integer")) &&
                   (!strcmp(y, "number") || !strcmp(y, "integer"));
    return x && y && strcmp(x, y) != 0 && !numbers;
}

bool schema_apart(const json_t *root, const json_t *a, const json_t *b)
{
    const char *name;
    json_t *v;
    a = behind_refs(root, a), b = behind_refs(root, b);
    if (!a || !b)
        return false;
    if (types_apart(a, b) || no_common_constant(a, b))
        return true;
    json_object_foreach(schema_get(a, "properties"), name, v) {
        json_t *w = schema_get(schema_get(b, "properties"), name);
        if (w && schema_requires(a, name) && schema_requires(b, name) && no_common_constant(v, w))
            return true;
    }
    return false;
}

bool schema_requires(const json_t *o, const char *name)
{
    json_t *one;
    size_t i;
    json_array_foreach(schema_get(o, "required"), i, one)
        if (json_is_string(one) && !strcmp(json_string_value(one), name))
            return true;
    return false;
}
