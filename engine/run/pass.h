/* pass.h - prepares a forward pass: builds and checks the plan, and uploads it only if no rule is
 * violated.
 *
 * A pass keeps the last plan of each mode for commands, and a digest over all plans since
 * pass_begin_step(). Engine thread.
 */
#pragma once

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
    /* carries out the page copies that the cache queued (pass_copies()) */
    void (*copy)(void *arg, const struct page_copy *copy, int n);
    void *copy_arg;
    /* takes (on) or releases the lock that views of another thread hold; NULL: there is no lock */
    void (*hold)(void *arg, bool on);
    void *hold_arg;
    uint64_t digest; /* of all plans of the step */
    struct buf *trace; /* takes each plan as JSON, or NULL */
};

void pass_init(struct pass *ps, struct device dev, struct kv *kv);
void pass_free(struct pass *ps);
void pass_begin_step(struct pass *ps);
/* Take and release the lock around every change of sequences and pools. */
void pass_lock(struct pass *ps);
void pass_unlock(struct pass *ps);
/* Carries out the page copies that the cache queued; to be called before the next pass. */
void pass_copies(struct pass *ps);
/* Builds ps->plan[mode] and checks it: the only way to a plan that kernels run. Under pass_lock().
 * False: a rule is violated (ERR_INVARIANT), and the plan must not be uploaded. */
bool pass_plan(struct pass *ps, enum plan_mode mode, const struct plan_req *req, int n_req,
               const struct plan_opts *o, struct err *e);
/* On success ps->plan[mode] and ps->kp describe the pass to run. False: a rule is violated
 * (ERR_INVARIANT) or the device is out of memory; nothing was launched. Takes the lock itself. */
bool pass_prepare(struct pass *ps, enum plan_mode mode, const struct plan_req *req, int n_req,
                  struct err *e);
