/* batch.h - many replies at once: `aerie run --batch`, and the chat's /n.
 *
 * Prompts join a batch of lanes as others leave it; every lane's tokens are those of its solo run,
 * because rows do not depend on their neighbours. What all prompts begin with is computed once and
 * its pages are shared. A prompt joins only when the pools hold its pages and one more cycle of every
 * lane. When a pool is short all the same, the youngest lane gives its pages back and is computed
 * again once another lane has ended. The caller's thread; results arrive in prompt order.
 */
#ifndef AERIE_BATCH_H
#define AERIE_BATCH_H

#include "engine/event.h"
#include "engine/opts.h"

struct loaded;
struct stop;

struct batch_result {
    int index;
    const char *text;          /* the reply, final channel */
    int n_prompt, n_tokens;
    int n_computed;            /* prompt rows run for it: more than n_prompt when it joined again */
    enum stop_reason reason;
    const char *error;         /* of this prompt alone, or NULL */
};

/* o: as for engine_open(); lanes: how many at once, 1 .. 32. False: loading failed, or a rule was
 * violated; results told before stay valid. */
bool batch_run(const struct engine_opts *o, const char *const *prompt, int n, int lanes,
               const char *system, void (*tell)(void *arg, const struct batch_result *r), void *arg,
               struct err *e);

/* n continuations of one prompt in one batch over its shared pages, on a rig of its own: sampled
 * with the seeds seed, seed + 1, ..., at temperature 0.8 where the settings say greedy. Called on
 * the engine's thread; `stop` ends it early: lanes with text so far report that text. *shared:
 * full pages that all of them share. */
struct several {
    struct loaded *l;
    const struct settings *set;
    const struct ids *prompt;
    int n, page_size, context;
    const struct bugs *bugs; /* historical faults that are on; NULL: none */
    const struct stop *stop; /* or NULL */
};
bool batch_several(const struct several *o, int *shared,
                   void (*tell)(void *arg, const struct batch_result *r), void *arg, struct err *e);

#endif
