/* hunt_report.c - what `aerie probe` found: lines for people, JSON, a script of curl calls, and a
 * report in the form of an engine's issues. See hunt.h. */
#include <math.h>

#include "repl/cli/hunt.h"

/* ---- a difference in words ------------------------------------------------------------------- */

static void say_difference(const struct hunt_diff *d, struct buf *b)
{
    switch (d->how) {
    case DIFF_FAILED: buf_printf(b, "the request fails: %s", d->why); break;
    case DIFF_LOGP:
        buf_printf(b, "equal ids, but log probabilities that differ by up to %.3g, first at token "
                   "%d (position %d)", d->by, d->token + 1, d->position);
        break;
    case DIFF_READ:
        buf_printf(b, "its log probabilities at decode and as a prompt differ by up to %.3g, at "
                   "token %d (position %d)", d->by, d->token + 1, d->position);
        break;
    default:
        buf_printf(b, "token %d (position %d) is ", d->token + 1, d->position);
        if (d->is >= 0)
            buf_printf(b, "%d", d->is);
        else
            buf_str(b, "missing");
        buf_printf(b, " instead of %d", d->was);
        if (d->by > 0)
            buf_printf(b, "; before it log probabilities differ by up to %.3g", d->by);
    }
    if (!isnan(d->margin) && d->how != DIFF_FAILED)
        buf_printf(b, "; margin of the control there %.3g", d->margin);
}

static void say_ask(const struct hunt_case *c, int i, int n, struct buf *b)
{
    const struct hunt_ask *a = &c->ask[i];
    buf_printf(b, "a prompt of %d tokens", n ? n : a->n);
    if (a->follows >= 0)
        buf_printf(b, " (request %d, its reply and %d more)", a->follows + 1, a->n);
    else if (a->fork)
        buf_printf(b, " (%d of text %d, then text %d)", a->fork, a->text, a->other);
    else
        buf_printf(b, " (text %d)", a->text);
    buf_printf(b, ", reply of %d", a->most);
    if (i && a->group == c->ask[i - 1].group)
        buf_str(b, ", beside the one before");
    if (a->after_ms)
        buf_printf(b, ", %d ms later", a->after_ms);
    if (a->cancel_ms)
        buf_printf(b, ", cancelled after %d ms", a->cancel_ms);
}

static void print_asks(const struct hunt_found *f, const struct printer *to)
{
    PRINT_IN(to, "small", '[');
    for (int i = 0; i < f->c.n; i++) {
        FREED(buf_free) struct buf b = {0};
        bool here = i == f->d.ask;
        say_ask(&f->c, i, f->prompt[i].n, &b);
        print_line(to, here ? ST_BOLD : ST_TEXT, "     %d. %s{request}%s\f%d{judged?}", i + 1, b.p,
                   here ? "  <- judged" : "", here);
    }
}

void hunt_print_found(const struct hunt *p, int i, const struct printer *to)
{
    const struct hunt_found *f = &p->found[i];
    FREED(buf_free) struct buf said = {0};
    say_difference(&f->d, &said);
    PRINT_IN(to, NULL, '{');
    print_add(to, ST_BAD, "%d{number}. ", i + 1);
    print_add(to, ST_BOLD, "%s{kind}", f->c.kind);
    print_facts(to, ST_TEXT, ": %s{what}", said.p);
    print_add(to, ST_TEXT, "\f%d{case}%d{token}%d{position}%d{was}%d{is}%g{by}%g{margin}",
              f->number, f->d.token, f->d.position, f->d.was, f->d.is, f->d.by, f->d.margin);
    if (!f->c.read) {
        print_add(to, ST_TEXT, "   seen in %d{seen} of %d{runs} runs of the case", f->n_differ,
                  f->n_repeat);
        if (f->control_runs > 0)
            print_add(to, ST_TEXT, f->noise > 0 ? "; the control differs from itself by "
                                                  "up to %.3g{noise} in %d{control_runs} runs"
                                                : "; \f%g{noise}\fthe control's "
                                                  "%d{control_runs} runs are equal",
                      f->noise, f->control_runs);
        print_end(to);
    }
    print_add(to, ST_TEXT, "   found after %d{requests} requests, %.0f{seconds} s; ", f->requests,
              f->seconds);
    print_add(to, ST_TEXT, "%d{before} request%s made %d{after}", f->n_before,
              plural(f->n_before), f->c.n);
    print_add(to, ST_DIM, f->session[0] ? "; session %s{session}" : "\f%s{session}",
              f->session[0] ? f->session : NULL);
    print_end(to);
    print_asks(f, to);
    if (to->json) {
        FREED(buf_free) struct buf script = {0};
        hunt_script(p, f, &script);
        print_ints(to, "control", f->control.v, f->control.n);
        print_ints(to, "reply", f->reply.v, f->reply.n);
        print_add(to, ST_TEXT, "\f%s{script}", script.p);
    }
}

void hunt_print_sum(const struct hunt *p, const struct printer *to)
{
    double s = (double)(clock_ns() - p->begin) / 1e9;
    print_add(to, ST_TEXT, "%s{server}, %s{model}: ", upkeep_server(p->u), upkeep_model(p->u));
    print_add(to, ST_TEXT, "%d{cases} case%s, %d{requests} requests, %.0f{seconds} s", p->n_case,
              plural(p->n_case), p->n_asked, s);
    print_add(to, ST_DIM, p->n_before ? " (before: %d{cases_before} case%s, %d{requests_before} "
                                        "requests, %d{found_before} found)"
                                      : "\f%d{cases_before}%s%d{requests_before}%d{found_before}",
              p->n_before, plural(p->n_before), p->asked_before, p->found_before);
    print_end(to);
    print_add(to, ST_TEXT, "\f%d{page:0}%d{window:0}%d{drafts:0}%d{context:0}%d{pool:0}%d{lanes:0}"
              "%d{exact?}", p->page, p->window, p->depth, p->context, p->pool, p->lanes, p->exact);
    if (!p->exact) {
        print_add(to, ST_TEXT, "not counted: %d{as_rounding} that differ no more than decode and "
                  "prompt do (%.3g{rounding})", p->n_rounding, p->rounding);
        print_facts(to, ST_TEXT, ", %d{as_noise} no more than their controls", p->n_noise);
        print_add(to, ST_TEXT, p->n_beside ? "not counted: %d{beside_others} that differ beside "
                                             "others, by up to %.3g{beside_by}: kernels of another "
                                             "width may do so"
                                           : "\f%d{beside_others}%g{beside_by}", p->n_beside,
                  p->beside);
        if (p->n_beside)
            print_end(to);
    }
    print_add(to, ST_TEXT, "\f%ld{compared}%ld{without_logprobs}", (long)p->n_compared,
              (long)p->n_blind);
    if (p->n_blind)
        print_note(to, ST_WARN, "%ld of %ld tokens were compared by their ids alone: the server "
                   "reports no log probabilities of them", (long)p->n_blind, (long)p->n_compared);
    if (p->n_once || p->n_refused) {
        print_add(to, ST_WARN, "%d{once} differed once and not again; %d{refused} whose control "
                  "fails, too", p->n_once, p->n_refused);
        print_add(to, ST_WARN, p->n_refused ? ": %s{why_refused}" : "\f%s{why_refused}",
                  p->refused);
        print_end(to);
    }
    if (p->n_warm)
        print_facts(to, ST_WARN, "%d{warm_controls} control%s reused KV: the server's cache could "
                    "not be emptied", p->n_warm, plural(p->n_warm));
    print_facts(to, p->n_found ? ST_BAD : p->n_compared ? ST_GOOD : ST_WARN,
                p->n_found ? "%s{verdict}: %d{n_found} case%s in which a reply is not that of the "
                             "same request alone"
                           : "%s{verdict}\f%d{n_found}",
                p->n_found ? "different" : p->n_case == 0 ? "nothing was run"
                : p->n_compared == 0 ? "nothing was compared" : "no difference found",
                p->n_found, plural(p->n_found));
}

/* ---- the script ------------------------------------------------------------------------------ */

/* What of an answer is compared, as an extended regular expression. */
static const char *shown_part(const char *path)
{
    if (!strcmp(path, "/generate"))
        return "\"output_ids\":\\[[^]]*\\]|\\[-?[0-9.e-]+, *[0-9]+, *null\\]";
    if (!strcmp(path, "/completion"))
        return "\"tokens\":\\[[^]]*\\]|\"logprob\": *-?[0-9.e-]+";
    return "\"token_ids\":\\[[^]]*\\]|\"token_logprobs\":\\[[^]]*\\]";
}

static void put_call(const struct hunt *p, const struct hunt_found *f, int i, bool alone,
                     struct buf *out)
{
    const struct hunt_ask *q = &f->c.ask[i];
    const char *arena = alone ? "alone-SALT" : "case-SALT";
    struct ids_ask a = {.prompt = f->prompt[i], .most = q->most, .cold = alone, .arena = arena};
    FREED(buf_free) struct buf body = {0};
    const char *path = ids_request(p->u, &a, &body);
    if (!alone && q->cancel_ms)
        buf_printf(out, "MOST='-m %d.%03d' ", q->cancel_ms / 1000, q->cancel_ms % 1000);
    buf_printf(out, "ask %s <<'END'", path);
    if (!alone)
        buf_printf(out, " >\"$T/%s\"", i == f->d.ask ? "judged" : "other");
    else
        buf_str(out, " >\"$T/alone\"");
    bool beside = !alone && i + 1 < f->c.n && f->c.ask[i + 1].group == q->group;
    bool among = beside || (!alone && i && f->c.ask[i - 1].group == q->group);
    buf_printf(out, "%s\n%s\nEND\n", among ? " &" : "", body.p);
    if (beside && f->c.ask[i + 1].after_ms > q->after_ms) {
        int ms = f->c.ask[i + 1].after_ms - q->after_ms;
        buf_printf(out, "sleep %d.%03d\n", ms / 1000, ms % 1000);
    }
    if (among && !beside)
        buf_str(out, "wait\n");
}

static void put_read(const struct hunt *p, const struct hunt_found *f, struct buf *out)
{
    FREED(ids_free) struct ids both = {0};
    ids_cat(&both, f->prompt[0].v, f->prompt[0].n);
    ids_cat(&both, f->control.v, f->control.n);
    struct ids_ask a = {.prompt = both, .most = 1, .score = true, .cold = true,
                        .arena = "read-SALT"};
    FREED(buf_free) struct buf body = {0};
    const char *path = ids_request(p->u, &a, &body);
    buf_str(out, "# prompt and reply as one prompt: its last log probabilities should be those "
                 "above\n");
    buf_printf(out, "PART='\"logprob\": *-?[0-9.e-]+|\\[-?[0-9.e-]+, *[0-9]+, *null\\]' "
               "ask %s <<'END' | tail -n %d\n%s\nEND\n", path, f->control.n, body.p);
}

void hunt_script(const struct hunt *p, const struct hunt_found *f, struct buf *out)
{
    if (f->control_runs == 0) {
        buf_str(out, "# The run was ended before the requests of this case were noted.\n");
        return;
    }
    FREED(buf_free) struct buf body = {0}, said = {0};
    struct ids_ask any = {.prompt = f->prompt[0], .most = 1};
    const char *path = ids_request(p->u, &any, &body), *reset = upkeep_reset_path(p->u);
    say_difference(&f->d, &said);
    buf_printf(out, "#!/bin/bash\n# %s: %s.\n# Exit 1: it differs. The address may be given as an "
               "argument.\nURL=${1:-%s}; URL=${URL%%/}\n", f->c.kind, said.p, upkeep_url(p->u));
    buf_str(out, "SALT=$$-$RANDOM; T=$(mktemp -d) || exit 2; trap 'rm -rf \"$T\"' EXIT\n");
    buf_printf(out, "PART='%s%s'\n", shown_part(path),
               f->d.how == DIFF_FAILED ? "|\"message\": *\"[^\"]*\"" : "");
    buf_str(out, "ask() { sed \"s/-SALT\\\"/-$SALT\\\"/\" | curl -s $MOST \"$URL$1\" "
                 "-H 'Content-Type: application/json' -d @- | grep -oE \"$PART\"; }\n");
    if (reset && !ids_has_arenas(p->u))
        buf_printf(out, "reset() { curl -s -X POST \"$URL%s\" -H 'Content-Type: application/json' "
                   "-d '{}' >/dev/null; sleep 0.2; }\n", reset);
    else
        buf_str(out, "reset() { :; }\n");
    buf_str(out, "# alone and cold\nreset\n");
    put_call(p, f, f->d.ask, true, out);
    buf_str(out, "cat \"$T/alone\"\n");
    if (f->c.read) {
        put_read(p, f, out);
    } else {
        buf_printf(out, "# %s\nreset\n", f->c.n > 1 ? "the same after, or beside, others"
                                                    : "the same once more");
        for (int i = 0; i < f->c.n; i++)
            put_call(p, f, i, false, out);
        if (f->d.how == DIFF_FAILED)
            buf_str(out, "grep -q '\"message\"' \"$T/judged\" && cat \"$T/judged\" && echo "
                         "failed && exit 1\n");
        buf_str(out, "cat \"$T/judged\"\ncmp -s \"$T/alone\" \"$T/judged\" && echo equal && exit 0"
                     "\necho different; exit 1\n");
    }
}

/* ---- the report ------------------------------------------------------------------------------ */

const char *hunt_form(const struct hunt *p)
{
    const char *name = upkeep_server(p->u);
    return !strncmp(name, "SGLang", 6) ? "sglang" : !strncmp(name, "llama", 5) ? "llama.cpp"
                                                                              : "vllm";
}

static void add_ids(const struct ids *v, struct buf *out)
{
    for (int i = 0; i < v->n; i++)
        buf_printf(out, "%s%d", i ? ", " : "", v->v[i]);
}

static void describe(const struct hunt *p, int i, struct buf *out)
{
    const struct hunt_found *f = &p->found[i];
    FREED(buf_free) struct buf said = {0};
    say_difference(&f->d, &said);
    buf_printf(out, "**%d. %s.** Greedy, `ignore_eos`, prompts of token ids. ", i + 1, f->c.kind);
    if (f->c.read)
        buf_printf(out, "The reply to one request, alone and with a cold prefix cache: %s.\n\n",
                   said.p);
    else
        buf_printf(out, "The reply to a request depends on what else the server computed: compared "
                   "with the same request alone and with a cold prefix cache, %s.\n\n", said.p);
    for (int k = 0; k < f->c.n; k++) {
        FREED(buf_free) struct buf ask = {0};
        say_ask(&f->c, k, f->prompt[k].n, &ask);
        buf_printf(out, "%d. %s%s\n", k + 1, ask.p, k == f->d.ask ? " **<- differs**" : "");
    }
    buf_str(out, "\nAlone:");
    buf_str(out, "\n```\n");
    add_ids(&f->control, out);
    if (!f->c.read) {
        buf_str(out, "\n```\nHere:\n```\n");
        add_ids(&f->reply, out);
    }
    buf_printf(out, "\n```\nFound by aerie %s after %d requests; the case of %d request%s was made "
               "smaller to %d. ", AERIE_VERSION, f->requests, f->n_before, plural(f->n_before),
               f->c.n);
    if (!f->c.read)
        buf_printf(out, "The case differed in %d of %d runs. Control: the request alone, %d times, "
                   "differs from itself by %.3g.", f->n_differ, f->n_repeat, f->control_runs,
                   f->noise);
    buf_str(out, "\n\n");
}

static void all_found(const struct hunt *p, struct buf *out)
{
    if (p->n_found == 0)
        buf_str(out, "No difference was found.\n\n");
    for (int i = 0; i < p->n_kept; i++)
        describe(p, i, out);
}

static void reproduction(const struct hunt *p, struct buf *out)
{
    for (int i = 0; i < p->n_kept; i++) {
        FREED(buf_free) struct buf script = {0};
        hunt_script(p, &p->found[i], &script);
        buf_printf(out, "Script for %d (curl only; exit 1: it differs):\n\n```sh\n%s```\n\n", i + 1,
                   script.p);
    }
}

static void environment(const struct hunt *p, struct buf *out)
{
    buf_printf(out, "```text\nserver    %s\nmodel     %s\n", upkeep_server(p->u),
               upkeep_model(p->u));
    buf_printf(out, "shape     page %d, window %d, drafts %d, context %d, pool %d tokens, %d at "
               "once (0: not reported)\n", p->page, p->window, p->depth, p->context, p->pool,
               p->lanes);
    buf_printf(out, "probe     aerie %s, seed %llu: %d case%s, %d requests; decode and prompt of "
               "controls differ by at most %.3g\n```\n\n", AERIE_VERSION,
               (unsigned long long)p->seed, p->n_case, plural(p->n_case), p->n_asked, p->rounding);
}

void hunt_issue(const struct hunt *p, const char *form, struct buf *out)
{
    if (!strcmp(form, "sglang")) {
        buf_str(out, "### Checklist\n\n- [ ] I searched related issues.\n- [ ] The bug persists in "
                     "the latest version.\n\n### Describe the bug\n\n");
        all_found(p, out);
        buf_str(out, "### Reproduction\n\nLaunch: <!-- paste the command -->\n\n");
        reproduction(p, out);
        buf_str(out, "### Environment\n\n<!-- output of: python3 -m sglang.check_env -->\n\n");
        environment(p, out);
    } else if (!strcmp(form, "llama.cpp")) {
        buf_str(out, "### Name and Version\n\n<!-- output of: llama-server --version -->\n\n### "
                     "Operating systems\n\nLinux\n\n### GGML backends\n\n<!-- CPU, CUDA, ... -->"
                     "\n\n### Models\n\n<!-- file and quantization -->\n\n### Problem description "
                     "& steps to reproduce\n\n");
        all_found(p, out);
        reproduction(p, out);
        buf_str(out, "### First Bad Commit\n\n<!-- if you bisected -->\n\n### Relevant log output"
                     "\n\n");
        environment(p, out);
    } else {
        buf_str(out, "### Your current environment\n\n<details>\n<summary>The output of <code>"
                     "python collect_env.py</code></summary>\n\n<!-- paste -->\n\n</details>\n\n");
        environment(p, out);
        buf_str(out, "### \xF0\x9F\x90\x9B Describe the bug\n\nLaunch: <!-- paste the command -->"
                     "\n\n");
        all_found(p, out);
        reproduction(p, out);
        buf_str(out, "### Before submitting a new issue...\n\n- [ ] I searched for relevant issues."
                     "\n");
    }
}
