/* triage_server.c - `aerie triage URL`: the draft counters of a server. */
#include "repl/cli/triage.h"

#include <math.h>
#include <stdio.h>

#include "engine/remote/upkeep.h"

bool triage_server(struct cli *c, struct triage *t, const struct stop *stop, struct err *e)
{
    struct draft_totals n;
    (void)stop;
    c->opt.engine.server.url = c->word[0];
    struct upkeep *u = upkeep_open(&c->opt.engine.server,
                                   c->model_given ? c->opt.engine.model : NULL, e);
    if (!u)
        return false;
    upkeep_drafts(u, &n);
    t->server = true;
    t->temperature = NAN;
    snprintf(t->name, sizeof t->name, "%.60s", upkeep_url(u));
    snprintf(t->of, sizeof t->of, "%.150s", upkeep_url(u));
    snprintf(t->who, sizeof t->who, "%.60s, %.90s", upkeep_server(u), upkeep_model(u));
    if (n.drafts > 0) {
        t->per_depth = n.depths > 0;
        for (int d = 0; d < n.depths && d + 1 < TREE_MAX; d++) /* a chain drafts at every depth */
            t->log.drafts.depth[d + 1] = (struct depth_stat){.drafted = (uint64_t)n.drafts,
                                                             .accepted = (uint64_t)n.at[d]};
        t->log.drafts.cycles = (uint64_t)n.drafts;
        t->log.drafts.drafted = n.drafted > 0 ? (uint64_t)n.drafted : 0;
        t->log.drafts.accepted = n.accepted > 0 ? (uint64_t)n.accepted : 0;
    }
    upkeep_close(u);
    return n.drafts > 0 || err_set(e, ERR_NEGATIVE, "%s reports no drafts", t->of);
}
