/* values.h - what a JSON schema says about values, read without making rules. Pure functions; root
 * is the whole schema, in which a $ref names a part. */
#pragma once

#include <jansson.h>
#include <stdbool.h>

json_t *schema_get(const json_t *o, const char *key); /* borrowed; NULL: no such keyword */
/* The schema that "#/a/b" or "#" names, borrowed; NULL: there is none. */
const json_t *schema_at(const json_t *root, const char *ref);
/* Whether a value has a type of a schema's "type", which may be absent. */
bool schema_type_allows(const json_t *type, const json_t *v);
bool schema_requires(const json_t *o, const char *name); /* "required" has this name */

/* The different values that a schema allows, as a list that the caller frees; NULL: it allows
 * others than constants, booleans and null. */
json_t *schema_values(const json_t *root, const json_t *o);
bool schema_holds(const json_t *list, const json_t *v); /* a list holds a value: 1 and 1.0 are
                                                           one */
/* Whether surely no value matches both schemas. */
bool schema_apart(const json_t *root, const json_t *a, const json_t *b);
