/* ask_fields.c - which fields requests may have: see ask_parts.h. */
#include "repl/http/ask_parts.h"

#include <string.h>

#include "kernels/json_read.h"

/* ---- the fields that are not read -------------------------------------------------------------
 * Those of OpenAI, vLLM, llama-server, ollama and their clients: which are read, which cannot
 * change an answer, and which ask for what every answer is anyway. */

#define READ "" /* by the functions above */
#define ANY NULL /* ignored: it cannot change the answer */

/* neutral: READ, ANY, or the JSON values that ask for what the server does anyway, separated by
 * "|". */
static const struct ask_field {
    const char *name;
    int where;
    const char *neutral;
} fields[] = {
    {"model", BOTH, READ},
    {"messages", CHAT, READ},
    {"prompt", COMPLETION, READ},
    {"add_special_tokens", COMPLETION, READ},
    {"n", BOTH, READ},
    {"temperature", BOTH, READ},
    {"top_p", BOTH, READ},
    {"top_k", BOTH, READ},
    {"min_p", BOTH, READ},
    {"presence_penalty", BOTH, READ},
    {"frequency_penalty", BOTH, READ},
    {"repetition_penalty", BOTH, READ},
    {"repeat_penalty", BOTH, READ},
    {"logit_bias", BOTH, READ},
    {"seed", BOTH, READ},
    {"max_tokens", BOTH, READ},
    {"max_completion_tokens", BOTH, READ},
    {"n_predict", BOTH, READ},
    {"ignore_eos", BOTH, READ},
    {"stop", BOTH, READ},
    {"stop_token_ids", BOTH, READ},
    {"include_stop_str_in_output", BOTH, READ},
    {"stream", BOTH, READ},
    {"stream_options", BOTH, READ},
    {"logprobs", BOTH, READ},
    {"top_logprobs", CHAT, READ},
    {"prompt_logprobs", BOTH, READ},
    {"echo", COMPLETION, READ},
    {"return_token_ids", BOTH, READ},
    {"return_tokens_as_token_ids", BOTH, READ},
    {"reasoning_effort", CHAT, READ},
    {"chat_template_kwargs", CHAT, READ},

    /* accounting, and how a server should work: no token depends on it */
    {"user", BOTH, ANY},
    {"metadata", BOTH, ANY},
    {"store", BOTH, ANY},
    {"service_tier", BOTH, ANY},
    {"safety_identifier", BOTH, ANY},
    {"prompt_cache_key", BOTH, ANY},
    {"prompt_cache_retention", BOTH, ANY},
    {"request_id", BOTH, ANY},
    {"rid", BOTH, ANY},
    {"session_id", BOTH, ANY},
    {"priority", BOTH, ANY},
    {"cache_salt", BOTH, ANY},
    {"cache_prompt", BOTH, ANY},
    {"n_cache_reuse", BOTH, ANY},
    {"id_slot", BOTH, ANY},
    {"keep_alive", BOTH, ANY},
    {"num_ctx", BOTH, ANY},
    {"num_batch", BOTH, ANY},
    {"num_gpu", BOTH, ANY},
    {"num_thread", BOTH, ANY},
    {"num_keep", BOTH, ANY}, /* of a context that is shifted; this one never is */
    {"n_keep", BOTH, ANY},
    {"n_discard", BOTH, ANY},
    {"stream_interval", BOTH, ANY},
    {"timings_per_token", BOTH, ANY},
    {"return_progress", BOTH, ANY},
    {"sse_ping_interval", BOTH, ANY},
    {"verbose", BOTH, ANY},
    {"return_metadata", BOTH, ANY},
    {"speculative.n_max", BOTH, ANY},
    {"speculative.n_min", BOTH, ANY},
    {"speculative.p_min", BOTH, ANY},

    /* of what is off, by the fields further down */
    {"parallel_tool_calls", CHAT, READ},
    {"parallel_tool_calls", COMPLETION, ANY},
    {"parse_tool_calls", BOTH, ANY},
    {"mirostat_tau", BOTH, ANY},
    {"mirostat_eta", BOTH, ANY},
    {"repeat_last_n", BOTH, ANY},
    {"penalize_nl", BOTH, ANY},
    {"penalize_newline", BOTH, ANY},
    {"xtc_threshold", BOTH, ANY},
    {"dry_base", BOTH, ANY},
    {"dry_allowed_length", BOTH, ANY},
    {"dry_penalty_last_n", BOTH, ANY},
    {"dry_sequence_breakers", BOTH, ANY},
    {"dynatemp_exponent", BOTH, ANY},
    {"adaptive_decay", BOTH, ANY},
    {"truncation_side", BOTH, ANY},

    /* sampling */
    {"encoder_repetition_penalty", BOTH, "1"},
    {"length_penalty", BOTH, "1"},
    {"no_repeat_ngram_size", BOTH, "0"},
    {"best_of", BOTH, "1"},
    {"use_beam_search", BOTH, "false"},
    {"early_stopping", BOTH, "false"},
    {"mirostat", BOTH, "0"},
    {"typical_p", BOTH, "1"},
    {"typ_p", BOTH, "1"},
    {"tfs_z", BOTH, "1"},
    {"top_a", BOTH, "0"},
    {"epsilon_cutoff", BOTH, "0"},
    {"eta_cutoff", BOTH, "0"},
    {"penalty_alpha", BOTH, "0"},
    {"guidance_scale", BOTH, "1"},
    {"xtc_probability", BOTH, "0"},
    {"dry_multiplier", BOTH, "0"},
    {"dynatemp_range", BOTH, "0"},
    {"smoothing_factor", BOTH, "0"},
    {"top_n_sigma", BOTH, "-1|0"},
    {"adaptive_target", BOTH, "-1"},
    {"min_keep", BOTH, "0"},
    {"min_tokens", BOTH, "0"},
    {"bad_words", BOTH, "[]"},
    {"allowed_token_ids", BOTH, "[]"},
    {"samplers", BOTH, "[]"},
    {"logits_processors", BOTH, "[]"},
    {"watermark", BOTH, "false"},
    {"watermarking", BOTH, "false"},
    {"lora", BOTH, "[]"},

    /* lengths and time */
    {"num_predict", BOTH, "-1|-2"},
    {"n_indent", BOTH, "0"},
    {"t_max_predict_ms", BOTH, "-1|0"},
    {"t_max_prompt_ms", BOTH, "-1|0"},
    {"truncate_prompt_tokens", BOTH, "0"},
    {"thinking_token_budget", BOTH, "-1"},
    {"reasoning_budget", BOTH, "-1"},
    {"reasoning_budget_tokens", BOTH, "-1"},
    {"repetition_detection", BOTH, "{}"},

    /* tools and forms */
    {"tools", CHAT, READ},
    {"tools", COMPLETION, "[]"},
    {"tool_choice", CHAT, READ},
    {"tool_choice", COMPLETION, "\"none\"|\"auto\""},
    {"functions", BOTH, "[]"},
    {"function_call", BOTH, "\"none\"|\"auto\""},
    {"response_format", BOTH, READ},
    {"format", BOTH, "\"\""},
    {"structured_outputs", BOTH, READ},
    {"guided_json", BOTH, READ},
    {"guided_regex", BOTH, "\"\""},
    {"guided_choice", BOTH, "[]"},
    {"guided_grammar", BOTH, "\"\""},
    {"guided_decoding_backend", BOTH, ANY},
    {"guided_whitespace_pattern", BOTH, ANY},
    {"grammar", BOTH, "\"\""},
    {"grammar_lazy", BOTH, "false"},
    {"grammar_triggers", BOTH, "[]"},
    {"preserved_tokens", BOTH, "[]"},
    {"json_schema", BOTH, READ},
    {"modalities", BOTH, "[\"text\"]"},
    {"audio", BOTH, "{}"},
    {"image_data", BOTH, "[]"},
    {"prediction", BOTH, "{}"},
    {"web_search_options", BOTH, "{}"},
    {"verbosity", BOTH, "\"medium\""},
    {"mm_processor_kwargs", BOTH, "{}"},
    {"media_io_kwargs", BOTH, "{}"},

    /* the prompt */
    {"suffix", COMPLETION, "\"\""},
    {"echo", CHAT, "false"},
    {"add_special_tokens", CHAT, "false"},
    {"add_generation_prompt", BOTH, "true"},
    {"continue_final_message", BOTH, "false"},
    {"chat_template", BOTH, "\"\""},
    {"chat_template_kwargs", COMPLETION, "{}"},
    {"reasoning_effort", COMPLETION, "\"\""},
    {"documents", BOTH, "[]"},
    {"template", BOTH, "\"\""},
    {"raw", BOTH, "false"},
    {"options", BOTH, "{}"},
    {"prompt_embeds", COMPLETION, "\"\""},

    /* the answer's text and fields */
    {"top_logprobs", COMPLETION, "0"},
    {"n_probs", BOTH, "0"},
    {"post_sampling_probs", BOTH, "false"},
    {"logprob_token_ids", BOTH, "[]"},
    {"skip_special_tokens", BOTH, "true"},
    {"spaces_between_special_tokens", BOTH, "true|false"}, /* replies have none in their text */
    {"include_reasoning", BOTH, "true"},
    {"separate_reasoning", BOTH, "true"},
    {"stream_reasoning", BOTH, "true"},
    {"reasoning_format", BOTH, "\"auto\"|\"deepseek\""},
    {"return_tokens", BOTH, "false"},
    {"return_prompt_text", BOTH, "false"},
    {"return_token_offsets", BOTH, "false"},
    {"return_hidden_states", BOTH, "false"},
    {"return_routed_experts", BOTH, "false"},
    {"response_fields", BOTH, "[]"},
    {"kv_transfer_params", BOTH, "{}"},
    {"ec_transfer_params", BOTH, "{}"},
    {"vllm_xargs", BOTH, "{}"},
};

/* Equal as JSON, but 1 equals 1.0. */
static bool same(const json_t *a, const json_t *b)
{
    if (json_is_number(a) && json_is_number(b))
        return json_number_value(a) == json_number_value(b);
    return json_equal((json_t *)a, (json_t *)b) == 1;
}

static bool is_neutral(const json_t *v, const char *list)
{
    bool found = false;
    while (*list && !found) {
        size_t n = strcspn(list, "|");
        json_auto_t *one = json_parse(list, n, JSON_DECODE_ANY, NULL);
        found = same(v, one);
        list += n + (list[n] == '|');
    }
    return found;
}

static const struct ask_field *find_field(const char *name, int kind)
{
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if ((fields[i].where & kind) && !strcmp(fields[i].name, name))
            return &fields[i];
    return NULL;
}

/* Checks all fields of a request of one kind that are not read. A field that is null counts as
 * absent. False and *r: one would change the answer, or is not known. */
bool check_fields(const json_t *o, int kind, struct refusal *r)
{
    const char *name;
    json_t *v;
    json_object_foreach((json_t *)o, name, v) {
        const struct ask_field *f = find_field(name, kind);
        if (json_is_null(v) || (f && (!f->neutral || !*f->neutral || is_neutral(v, f->neutral))))
            continue;
        if (!f)
            return refuse(r, 400, name,
                          "%.60s: this server does not know the field, so it cannot tell whether "
                          "the field changes the answer", name);
        return refuse(r, 400, name,
                      "%s is not supported by this server: only its default, %s, is accepted",
                      name, f->neutral);
    }
    return true;
}
