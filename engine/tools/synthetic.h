/* synthetic.h - published models by name, described by their shapes alone, without a checkpoint.
 * net_open() and drafter_open() let the device generate their weights. */
#pragma once

#include "models/models.h"

/* The model of a name and an EAGLE3 head for it. "NAME:TYPE": with its matrices packed, all in one
 * type ("gemma-3-27b:Q4_0"). "NAME+dflash", "NAME:TYPE+dspark": with a block draft instead of the
 * head. *brief is its name in benchmarks ("20b", "g27b.Q4_0", "20b.dflash"), valid until the next
 * call. An unknown name: ERR_USAGE and the list. The caller frees both. */
bool synthetic_open(struct model *m, struct draft *d, const char *name, const char **brief,
                    struct err *e);
bool synthetic_known(const char *name, struct err *e); /* false: the same error */
