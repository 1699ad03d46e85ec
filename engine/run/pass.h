/* pass.h - the one road to a kernel: a plan is built, checked, and only then uploaded.
 *
 * Keeps the last plan of each mode for the debugger and a digest over all plans since
 * pass_begin_step(). Engine thread.
 */
#ifndef AERIE_PASS_H
#define AERIE_PASS_H

#include "engine/plan/check.h"
#include "engine/run/forward.h"

struct pass {
    struct device dev;
    struct kv *kv;
    struct checker check;
    struct plan_opts opts;
    struct plan plan[N_MODES];
    enum plan_mode last; /* the mode prepared last */
    struct k_plan kp;    /* of the last plan, on the device */
    kbuf mem;
    /* carries out the page copies that the cache queued, before the pass that needs them */
    void (*copy)(void *arg, const struct page_copy *copy, int n);
    void *copy_arg;
    /* held while host-side state changes, so that views see whole states; NULL: no lock */
    void (*hold)(void *arg, bool on);
    void *hold_arg;
    uint64_t digest; /* of all plans of the step */
};

void pass_init(struct pass *ps, struct device dev, struct kv *kv);
void pass_free(struct pass *ps);
void pass_begin_step(struct pass *ps);
/* Take and give the lock around changes of sequences and pools. */
void pass_lock(struct pass *ps);
void pass_unlock(struct pass *ps);
/* Carries out the page copies that the cache queued: before the pass that needs them. */
void pass_copies(struct pass *ps);
/* Takes the lock itself. False: a rule is violated (ERR_INVARIANT) or the device is out of memory;
 * nothing was launched. On success ps->plan[mode] and ps->kp describe the pass to run. */
bool pass_prepare(struct pass *ps, enum plan_mode mode, const struct plan_req *req, int n_req,
                  struct err *e);

#endif
