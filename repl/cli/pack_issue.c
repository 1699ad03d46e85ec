/* pack_issue.c - a session as a bug report, in the shape of an engine's form.
 *
 * The headings are the fields of the bug forms of SGLang, vLLM and llama.cpp. Fields that only the
 * reporter can fill in are left as comments, boxes are left unticked. The report has text only if
 * the pack has text, and ids only if the pack has ids. */
#include "repl/cli/pack.h"

#include <math.h>

#include "kernels/lines.h"
#include "repl/cli/show_served.h"
#include "repl/compare/facts.h"

enum { SGLANG, VLLM, LLAMA, N_FORMS };
static const char *const forms[] = {"sglang", "vllm", "llama.cpp"};

enum { IDS_SHOWN = 4000 }; /* of the prompt; a report has to fit a form's field */

int issue_form(const char *name, struct err *e)
{
    const char *const *row = ROW_NAMED(forms, name);
    if (row)
        return (int)(row - forms);
    return FAILED(-1, e, ERR_USAGE, "--issue cannot be \"%.40s\"; expected sglang, vllm or "
                  "llama.cpp", name);
}

/* ---- pieces ---- */

static void fenced(struct buf *out, const char *lang, const char *text)
{
    const char *fence = strstr(text, "```") ? "````" : "```";
    buf_printf(out, "%s%s\n%s%s%s\n\n", fence, lang, text,
               *text && text[strlen(text) - 1] == '\n' ? "" : "\n", fence);
}

static void add_ids(struct buf *out, const struct ids *ids)
{
    buf_char(out, '[');
    for (int i = 0; i < ids->n; i++)
        buf_printf(out, "%s%d", i ? "," : "", ids->v[i]);
    buf_char(out, ']');
}

/* The value of a line of `lines`, or `usual`; the caller frees. */
static char *value_or(const char *lines, const char *name, const char *usual)
{
    char *v = facts_value(lines, name);
    if (v && *v)
        return v;
    free(v);
    return xstrdup(usual);
}

/* The name that a report gives a model: the last component of its folder. */
static char *model_name(const struct pack_job *j, const char *key, const char *usual)
{
    char *dir = value_or(j->about.p, key, usual), *slash = strrchr(dir, '/');
    char *name = xstrdup(slash && slash[1] ? slash + 1 : dir);
    free(dir);
    return name;
}

static bool is_on(const struct pack_job *j, const char *name)
{
    FREED(free_at) char *v = value_or(j->user.sampling, name, "on");
    return !strcmp(v, "on");
}

static bool has_draft(const struct pack_job *j)
{
    FREED(free_at) char *v = value_or(j->about.p, "draft_dir", "");
    return *v && is_on(j, "spec");
}

/* ---- acceptance ---- */

struct accept_sum {
    const struct past_part *part;
    struct draft_sums drafts;
};

static bool sum_step(const struct step_row *r, void *arg)
{
    struct accept_sum *s = arg;
    if (r->turn > s->part->upto)
        return false;
    draft_sums_add(&s->drafts, &r->rec, r->tree ? tree_depth(r->tree) : 0);
    return true;
}

/* For a server's reply: the server's counts, with the formula, because servers define acceptance
 * differently. */
static bool served_acceptance(const struct pack_job *j, struct buf *out)
{
    const struct served *v = j->reply.served;
    if (!v)
        return false;
    if (v->drafted < 0)
        buf_str(out, "The server reports no drafted tokens of this request.\n\n");
    else
        buf_printf(out, "The server counts %lld of %lld drafted tokens accepted in this request "
                        "(accepted / drafted = %.3f).",
                   (long long)v->accepted, (long long)v->drafted,
                   v->drafted ? (double)v->accepted / (double)v->drafted : 0);
    if (v->drafted >= 0 && v->verifies > 0)
        buf_printf(out, " Mean acceptance length %.2f (1 + accepted / verifying steps, of which it "
                        "counts %lld).",
                   1 + (double)v->accepted / (double)v->verifies, (long long)v->verifies);
    if (v->drafted >= 0)
        buf_str(out, "\n\n");
    return true;
}

static void acceptance(const struct pack_job *j, struct buf *out)
{
    struct accept_sum s = {0};
    bool by_step = j->at.turn && j->at.rec.source != STEP_PIECE;
    if (served_acceptance(j, out) && !by_step)
        return;
    for (int i = 0; i < j->past.n_part; i++) {
        s.part = &j->past.part[i];
        hdb_steps(j->d, s.part->session, 0, sum_step, &s, NULL);
    }
    const struct draft_sums *d = &s.drafts;
    if (!d->drafted && j->reply.served)
        return;
    if (!d->drafted) {
        buf_str(out, "No step of the session drafted.\n\n");
        return;
    }
    buf_printf(out, "Mean acceptance length %.2f (1 + accepted / steps that drafted): %llu of %llu "
               "drafted tokens in %llu such steps of the session.\n\n", draft_sums_mal(d),
               (unsigned long long)d->accepted, (unsigned long long)d->drafted,
               (unsigned long long)d->cycles);
    if (!d->depth[1].drafted)
        return;
    buf_str(out, "| depth | accepted | of steps with a node there | rate |\n|---|---|---|---|\n");
    for (int k = 1; k < TREE_MAX && d->depth[k].drafted; k++)
        buf_printf(out, "| %d | %llu | %llu | %.3f |\n", k,
                   (unsigned long long)d->depth[k].accepted,
                   (unsigned long long)d->depth[k].drafted,
                   (double)d->depth[k].accepted / (double)d->depth[k].drafted);
    buf_char(out, '\n');
}

/* ---- how to reproduce ---- */

static void launch_line(const struct pack_job *j, int form, struct buf *out)
{
    FREED(free_at) char *model = model_name(j, "model_dir", "MODEL");
    FREED(free_at) char *draft = model_name(j, "draft_dir", "DRAFT");
    FREED(free_at) char *steps = value_or(j->user.sampling, "draft.steps", "5");
    FREED(free_at) char *topk = value_or(j->user.sampling, "draft.topk", "1");
    FREED(free_at) char *nodes = value_or(j->user.sampling, "draft.nodes", "6");
    FREED(free_at) char *page = value_or(j->about.p, "page_size", "16");
    bool ngram = !strcmp(draft, "ngram"), spec = has_draft(j);
    switch (form) {
    case SGLANG:
        buf_printf(out, "python3 -m sglang.launch_server --model-path %s --page-size %s", model,
                   page);
        if (spec && ngram)
            buf_printf(out, " --speculative-algorithm NGRAM --speculative-num-draft-tokens %s",
                       nodes);
        else if (spec)
            buf_printf(out, " --speculative-algorithm EAGLE3 --speculative-draft-model-path %s"
                       " --speculative-num-steps %s --speculative-eagle-topk %s"
                       " --speculative-num-draft-tokens %s", draft, steps, topk, nodes);
        break;
    case VLLM:
        buf_printf(out, "vllm serve %s --block-size %s", model, page);
        if (spec && ngram)
            buf_printf(out,
                       " --speculative-config "
                       "'{\"method\":\"ngram\",\"num_speculative_tokens\":%s}'", steps);
        else if (spec)
            buf_printf(out, " --speculative-config '{\"method\":\"eagle3\",\"model\":\"%s\","
                       "\"num_speculative_tokens\":%s}'", draft, steps);
        break;
    default:
        buf_printf(out, "llama-server -m %s.gguf", model);
        if (spec && !ngram)
            buf_printf(out, " --model-draft %s.gguf --draft-max %s", draft, steps);
    }
    buf_char(out, '\n');
}

/* Settings that a server's API has, too: ,"temperature":0.7 ... */
static void sampling_json(const struct pack_job *j, int form, struct buf *out)
{
    static const char *const name[] = {"temperature", "top_p", "top_k", "min_p", "seed"};
    static const char *const usual[] = {"0", "1", "0", "0", ""};
    FREED(free_at) char *heat = value_or(j->user.sampling, "temperature", "0");
    bool greedy = strtod(heat, NULL) == 0;
    for (int i = 0; i < 5; i++) {
        FREED(free_at) char *v = value_or(j->user.sampling, name[i], usual[i]);
        bool shown = i == 0 || (!greedy && strcmp(v, usual[i]) != 0 && !(i == 4 && form == SGLANG));
        if (shown)
            buf_printf(out, ",\"%s\":%s", name[i], v);
    }
}

static void curl_line(const struct pack_job *j, int form, struct buf *out)
{
    static const char *const url[] = {"http://localhost:30000/v1/completions",
                                      "http://localhost:8000/v1/completions",
                                      "http://localhost:8080/completion"};
    FREED(free_at) char *model = model_name(j, "model_dir", "MODEL");
    buf_printf(out, "curl -s %s -H 'Content-Type: application/json' -d '{", url[form]);
    if (form != LLAMA)
        buf_printf(out, "\"model\":\"%s\",", model);
    buf_str(out, "\"prompt\":");
    if (j->user.tokens.n <= IDS_SHOWN)
        add_ids(out, &j->user.tokens);
    else
        buf_str(out, "PROMPT_IDS");
    buf_printf(out, ",\"%s\":%d", form == LLAMA ? "n_predict" : "max_tokens",
               max_int(1, j->reply.tokens.n));
    sampling_json(j, form, out);
    buf_printf(out, ",%s}'\n", form == LLAMA ? "\"return_tokens\":true,\"cache_prompt\":false"
                                             : "\"return_token_ids\":true,\"logprobs\":1");
}

/* The launch facts of the server, without its machine and folders unless the pack has text. */
static void reported_launch(const struct pack_job *j, struct buf *out)
{
    FREED(free_at) char *facts = value_or(j->about.p, "server_facts", "{}");
    FREED(buf_free) struct buf plain = {0}, lines = {0};
    if (j->level == PACK_TEXT || !hdb_plain_launch(j->d, facts, &plain))
        buf_str(&plain, j->level == PACK_TEXT ? facts : "{}");
    FREED(free_at) char *about = xasprintf("server_facts=%s\n", plain.p);
    show_launch_lines(about, &lines);
    if (lines.n) {
        buf_str(out, "Launch, as the server reports it:\n\n");
        fenced(out, "", lines.p);
    } else {
        buf_str(out, "Launch: the server reports nothing. <!-- paste the command -->\n\n");
    }
}

static void reproduction(const struct pack_job *j, int form, struct buf *out)
{
    FREED(buf_free) struct buf text = {0};
    if (j->reply.served) {
        reported_launch(j, out);
    } else {
        launch_line(j, form, &text);
        buf_str(out, "Launch (a line that fits the settings below; yours, if it was another):\n\n");
        fenced(out, "sh", text.p);
    }
    buf_clear(&text);
    if (j->reply.served && j->user.tokens.n == 0) {
        buf_str(out, "The server reported no ids of the prompt, so there is no request in ids to "
                     "repeat.\n\n");
    } else if (j->level == PACK_SHAPE) {
        buf_str(out, "Token ids were left out of this report (`--no-ids`), so there is no request "
                     "to repeat.\n\n");
    } else {
        curl_line(j, form, &text);
        buf_printf(out, "The prompt of turn %d as token ids (%d of them), and no chat template in "
                   "between:\n\n", j->turn, j->user.tokens.n);
        fenced(out, "sh", text.p);
    }
    if (j->level != PACK_SHAPE && j->user.tokens.n > IDS_SHOWN)
        buf_printf(out, "PROMPT_IDS is too long for this form: `aerie --json show %s:%d` prints it "
                        "as `tokens`.\n"
                        "\n", j->path, j->turn);
}

/* ---- what was seen ---- */

static void margin_line(const struct pack_job *j, struct buf *out)
{
    const struct step_rec *r = &j->at.rec;
    if (!j->at.turn) {
        buf_printf(out, "Step %d.%d is not in the log.\n\n", j->turn, j->step);
        return;
    }
    if (r->source == STEP_PIECE)
        buf_printf(out, "Piece %d.%d of the stream (%s), at position %d", j->turn, j->step,
                   j->chosen, r->pos0);
    else
        buf_printf(out, "Step %d.%d (%s): %s at position %d, %d row%s, %d of %d drafted tokens "
                        "accepted",
                   j->turn, j->step, j->chosen, step_kind_name(r->kind), r->pos0, r->rows,
                   plural(r->rows), r->accepted, r->drafted);
    if (isnan(r->margin))
        buf_str(out, "; its margin was not recorded.\n\n");
    else
        buf_printf(out, "; margin %.6f (best less second best log probability of its last token).\n"
                        "\n", (double)r->margin);
}

static void text_block(struct buf *out, const char *title, const char *text)
{
    FREED(buf_free) struct buf clean = {0};
    FOR_LINES(l, text) {
        text_sanitise(&clean, l.p, l.n, false);
        buf_char(&clean, '\n');
    }
    buf_printf(out, "%s:\n\n", title);
    fenced(out, "", clean.n ? clean.p : "\n");
}

static void observed(const struct pack_job *j, const char *control, struct buf *out)
{
    const struct served *v = j->reply.served;
    buf_printf(out, "<!-- What is wrong with the server's answer, in a sentence or two.%s -->\n\n",
               v ? "" : " Its output ids go below those of the reference.");
    buf_printf(out, "%s, session %s, turn %d.\n\n", v ? "Recorded by aerie" : "Reference: aerie",
               j->row->id, j->turn);
    if (j->level == PACK_TEXT) {
        text_block(out, "Message", j->user.text);
        text_block(out, "Reply", j->reply.text ? j->reply.text : "");
    }
    if (j->level != PACK_SHAPE) {
        FREED(buf_free) struct buf ids = {0};
        const char *end = j->reply.n ? stop_name(j->reply.stop) : "";
        add_ids(&ids, &j->reply.tokens);
        if (v && !v->reply_ids) {
            buf_str(out, "The server reported no ids of its output.\n\n");
        } else {
            buf_printf(out, "Output ids of the %s (%d, ended: %s%s%s):\n\n", v ? "server"
                       : "reference", j->reply.tokens.n, *end ? end : "not ended",
                       v && v->finish[0] ? ", finish " : "", v ? v->finish : "");
            fenced(out, "", ids.p);
        }
        if (!v)
            buf_str(out, "Output ids of the server: <!-- paste -->\n\n");
    }
    margin_line(j, out);
    acceptance(j, out);
    buf_printf(out, "Control run: %s\n\n", control);
}

/* What computed the session; for a server its kind and version, with its address only if the pack
 * has text. */
static void served_line(const struct pack_job *j, struct buf *out)
{
    if (!j->reply.served) {
        facts_computed(j->about.p, out);
        return;
    }
    FREED(free_at) char *kind = value_or(j->about.p, "server_kind", "a server");
    FREED(free_at) char *version = value_or(j->about.p, "server_version", "of no reported version");
    FREED(free_at) char *url = value_or(j->about.p, "server_url", ""),
                       *aerie = value_or(j->about.p, "version", "?");
    buf_printf(out, "%s %s%s%s; recorded by aerie %s", kind, version,
               j->level == PACK_TEXT && *url ? " at " : "", j->level == PACK_TEXT ? url : "",
               aerie);
}

/* Settings, build, device, models: as lines, for a code block. */
static void environment(const struct pack_job *j, struct buf *out)
{
    FREED(buf_free) struct buf lines = {0}, settings = {0};
    static const char *const names[] = {"model_sha", "draft_sha", "tokenizer_sha"};
    FREED(free_at) char *model = model_name(j, "model_dir", "?");
    FREED(free_at) char *draft = model_name(j, "draft_dir", "none");
    served_line(j, &lines);
    facts_settings(j->user.sampling, &settings);
    buf_printf(out, "%s%s\nsettings       %s\nmodel          %s\ndraft          %s\n",
               j->reply.served ? "server         " : "reference      ", lines.p,
               settings.n ? settings.p : "defaults", model, draft);
    for (int i = 0; i < 3; i++) {
        FREED(free_at) char *sha = value_or(j->about.p, names[i], "none");
        buf_printf(out, "%-14s %s\n", names[i], sha);
    }
    buf_printf(out, "pack           %s\n", strrchr(j->path, '/') ? strrchr(j->path, '/') + 1
               : j->path);
}

/* ---- the forms ---- */

static void sglang_form(const struct pack_job *j, const char *control, struct buf *out)
{
    FREED(buf_free) struct buf env = {0};
    buf_str(out, "### Checklist\n\n- [ ] I searched related issues.\n- [ ] The bug persists in the "
                 "latest version.\n- [ ] Environment and a minimal reproduction are below.\n\n### "
                 "Describe the bug\n\n");
    observed(j, control, out);
    buf_str(out, "### Reproduction\n\n");
    reproduction(j, SGLANG, out);
    buf_str(out, "### Environment\n\n<!-- output of: python3 -m sglang.check_env -->\n\n");
    environment(j, &env);
    fenced(out, "", env.p);
}

static void vllm_form(const struct pack_job *j, const char *control, struct buf *out)
{
    FREED(buf_free) struct buf env = {0};
    buf_str(out, "### Your current environment\n\n<details>\n<summary>The output of <code>python "
                 "collect_env.py</code></summary>\n\n<!-- paste -->\n\n</details>\n\n");
    environment(j, &env);
    fenced(out, "text", env.p);
    buf_str(out, "### \xF0\x9F\x90\x9B Describe the bug\n\n");
    observed(j, control, out);
    reproduction(j, VLLM, out);
    buf_str(out, "### Before submitting a new issue...\n\n- [ ] I searched for relevant issues.\n");
}

static void llama_form(const struct pack_job *j, const char *control, struct buf *out)
{
    FREED(buf_free) struct buf env = {0};
    FREED(free_at) char *device = value_or(j->about.p, "device", "?");
    FREED(free_at) char *model = model_name(j, "model_dir", "?");
    buf_str(out, "### Name and Version\n\n<!-- output of: llama-cli --version -->\n\n### Operating "
                 "systems\n\nLinux\n\n### GGML backends\n\n");
    buf_str(out, strncmp(device, "cuda", 4) ? "CPU\n\n" : "CUDA\n\n");
    buf_printf(out, "### Hardware\n\n%s\n\n### Models\n\n%s <!-- file and quantization -->\n\n"
               "### Problem description & steps to reproduce\n\n", device, model);
    observed(j, control, out);
    reproduction(j, LLAMA, out);
    buf_str(out, "### First Bad Commit\n\n<!-- if you bisected -->\n\n### Relevant log output\n\n");
    environment(j, &env);
    fenced(out, "shell", env.p);
}

void issue_report(const struct pack_job *j, int form, const char *control, struct buf *out)
{
    static void (*const write[])(const struct pack_job *, const char *, struct buf *) = {
        sglang_form, vllm_form, llama_form};
    write[form](j, control, out);
}
