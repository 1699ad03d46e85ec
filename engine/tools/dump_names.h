/* dump_names.h - the modules of a dump by the names that SGLang and transformers give them, and
 * what aerie has for each. Pure functions. */
#pragma once

#include "models/models.h"

/* What aerie has for a module, in the order of computation within a layer. */
enum tapped {
    TAP_ENTRY,   /* the residual stream that enters a layer; of layer 0: the embedding */
    TAP_NORMED,  /* its norm */
    TAP_Q, TAP_K, TAP_V,
    TAP_ATTN,
    TAP_ADDED,   /* what attention adds to the residual stream */
    TAP_MIDDLE,  /* the residual stream after attention */
    TAP_NORMED2, /* its norm */
    TAP_FED,     /* what the MLP or the experts add */
    TAP_LEFT,    /* the residual stream that leaves the layer */
    TAP_FINAL,   /* the final norm */
    TAP_LOGITS,
    N_TAPS
};

/* A module that is known by its name behind "layers.N." (IN_LAYER) or "model.".
 * port: ".K" of several outputs, "inputs.K" of a module's arguments. */
struct module_name {
    const char *module, *port;
    enum tapped tap;
    int where;
    enum { IN_MODEL, IN_LAYER, LAST_COLUMNS } in; /* LAST_COLUMNS: of a layer's tensor */
};

/* A name of a dump in its parts. */
struct dump_name {
    int layer; /* -1: of no layer */
    char module[128], port[128];
};

/* Reads "non_intrusive__model.layers.3.self_attn.o_proj.output.0" and the like. */
void dump_name_parse(const char *name, struct dump_name *p);
/* aerie's row for a module of this family; NULL: it has none. */
const struct module_name *dump_name_find(const struct model *model, const struct dump_name *p);
/* The place of a module among those of a layer, in the order of computation. */
int dump_name_order(const struct module_name *m);
