/* ask_fields.c - which fields requests may have: see ask_parts.h. */
#include "repl/http/ask_parts.h"

#include "kernels/json_read.h"

/* ---- the fields that are not read -------------------------------------------------------------
 * Those of OpenAI, vLLM, llama-server, ollama and their clients: which are read, which cannot
 * change an answer, and which ask for what every answer is anyway. */

#define READ "" /* by the functions above */
#define IGNORED NULL /* ignored: it cannot change the answer */

/* neutral: READ, IGNORED, or the JSON values that ask for what the server does anyway, separated by
 * "|". */
static const struct ask_fields {
    int where;
    const char *neutral;
    const char *names; /* separated by blanks */
} fields[] = {
    {BOTH, READ, "model n temperature top_p top_k min_p presence_penalty frequency_penalty "
         "repetition_penalty repeat_penalty logit_bias seed max_tokens max_completion_tokens "
         "n_predict ignore_eos stop stop_token_ids include_stop_str_in_output stream "
         "stream_options logprobs prompt_logprobs return_token_ids return_tokens_as_token_ids"},
    {CHAT, READ, "messages top_logprobs reasoning_effort chat_template_kwargs"},
    {COMPLETION, READ, "prompt add_special_tokens echo"},

    /* accounting, and how a server should work: no token depends on it. num_keep is of a context
     * that is shifted; this one never is */
    {BOTH, IGNORED, "user metadata store service_tier safety_identifier prompt_cache_key "
         "prompt_cache_retention request_id rid session_id priority cache_salt cache_prompt "
         "n_cache_reuse id_slot keep_alive num_ctx num_batch num_gpu num_thread num_keep n_keep "
         "n_discard stream_interval timings_per_token return_progress sse_ping_interval verbose "
         "return_metadata speculative.n_max speculative.n_min speculative.p_min"},

    /* of what is off, by the fields further down */
    {CHAT, READ, "parallel_tool_calls"},
    {COMPLETION, IGNORED, "parallel_tool_calls"},
    {BOTH, IGNORED, "parse_tool_calls mirostat_tau mirostat_eta repeat_last_n penalize_nl "
         "penalize_newline xtc_threshold dry_base dry_allowed_length dry_penalty_last_n "
         "dry_sequence_breakers dynatemp_exponent adaptive_decay truncation_side"},

    /* sampling */
    {BOTH, "1", "encoder_repetition_penalty length_penalty best_of typical_p typ_p tfs_z "
         "guidance_scale"},
    {BOTH, "0", "no_repeat_ngram_size mirostat top_a epsilon_cutoff eta_cutoff penalty_alpha "
         "xtc_probability dry_multiplier dynatemp_range smoothing_factor min_keep min_tokens"},
    {BOTH, "false", "use_beam_search early_stopping watermark watermarking"},
    {BOTH, "-1|0", "top_n_sigma"},
    {BOTH, "-1", "adaptive_target"},
    {BOTH, "[]", "bad_words allowed_token_ids samplers logits_processors lora"},

    /* lengths and time */
    {BOTH, "-1|-2", "num_predict"},
    {BOTH, "0", "n_indent truncate_prompt_tokens"},
    {BOTH, "-1|0", "t_max_predict_ms t_max_prompt_ms"},
    {BOTH, "-1", "thinking_token_budget reasoning_budget reasoning_budget_tokens"},
    {BOTH, "{}", "repetition_detection"},

    /* tools and forms */
    {CHAT, READ, "tools tool_choice"},
    {COMPLETION, "[]", "tools"},
    {COMPLETION, "\"none\"|\"auto\"", "tool_choice"},
    {BOTH, "[]", "functions guided_choice grammar_triggers preserved_tokens image_data"},
    {BOTH, "\"none\"|\"auto\"", "function_call"},
    {BOTH, READ, "response_format structured_outputs guided_json json_schema"},
    {BOTH, "\"\"", "format guided_regex guided_grammar grammar"},
    {BOTH, IGNORED, "guided_decoding_backend guided_whitespace_pattern"},
    {BOTH, "false", "grammar_lazy"},
    {BOTH, "[\"text\"]", "modalities"},
    {BOTH, "{}", "audio prediction web_search_options mm_processor_kwargs media_io_kwargs"},
    {BOTH, "\"medium\"", "verbosity"},

    /* the prompt */
    {COMPLETION, "\"\"", "suffix reasoning_effort prompt_embeds"},
    {CHAT, "false", "echo add_special_tokens"},
    {BOTH, "true", "add_generation_prompt"},
    {BOTH, "false", "continue_final_message raw"},
    {BOTH, "\"\"", "chat_template template"},
    {COMPLETION, "{}", "chat_template_kwargs"},
    {BOTH, "[]", "documents"},
    {BOTH, "{}", "options"},

    /* the answer's text and fields */
    {COMPLETION, "0", "top_logprobs"},
    {BOTH, "0", "n_probs"},
    {BOTH, "false", "post_sampling_probs return_tokens return_prompt_text return_token_offsets "
         "return_hidden_states return_routed_experts"},
    {BOTH, "[]", "logprob_token_ids response_fields"},
    {BOTH, "true", "skip_special_tokens include_reasoning separate_reasoning stream_reasoning"},
    {BOTH, "true|false", "spaces_between_special_tokens"}, /* replies have none in their text */
    {BOTH, "\"auto\"|\"deepseek\"", "reasoning_format"},
    {BOTH, "{}", "kv_transfer_params ec_transfer_params vllm_xargs"},
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

static bool has_name(const char *names, const char *name)
{
    size_t n = strlen(name);
    for (const char *p = names; *p; p += strcspn(p, " "), p += *p == ' ')
        if (strcspn(p, " ") == n && !strncmp(p, name, n))
            return true;
    return false;
}

static const struct ask_fields *find_field(const char *name, int kind)
{
    for (size_t i = 0; i < LEN(fields); i++)
        if ((fields[i].where & kind) && has_name(fields[i].names, name))
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
        const struct ask_fields *f = find_field(name, kind);
        if (json_is_null(v) || (f && (!f->neutral || !*f->neutral || is_neutral(v, f->neutral))))
            continue;
        if (!f)
            return refuse(r, 400, name, "%.60s: this server does not know the field, so it cannot "
                          "tell whether the field changes the answer", name);
        return refuse(r, 400, name, "%s is not supported by this server: only its default, %s, is "
                      "accepted", name, f->neutral);
    }
    return true;
}
