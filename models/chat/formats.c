/* formats.c - the table of formats, and the variants of a format.
 *
 * The template in a model's folder is a Jinja program, which is not run. It is searched for the few
 * literal texts in which variants of a format differ, and its hash is compared with those of the
 * templates that the format's row was checked against.
 */
#include "models/chat/parts.h"

#include <time.h>

/* Turns of ChatML, in several formats: <|im_start|>ROLE, a line break, a text, <|im_end|>, a line
 * break; "<think>" around thoughts. stop: the token that ends a text. */
#define CHATML_TURNS(stop)                                                                         \
    .mark = {[MARK_OPEN] = "<|im_start|>", [MARK_CLOSE] = "<|im_end|>", [MARK_STOP] = (stop)},     \
    .before = "\n", .after = "\n", .think = THINK_TAGS

const struct format chat_formats[] = {
    {
        .name = "chatml",
        .family = {"qwen3", "qwen2"},
        CHATML_TURNS("<|endoftext|>"),
        .tools = TOOLS_TAGS,
        .switches = true,
        .template_texts = true,
        .known = {"872be49dbb638044ad01b60388f48d469ff2980e5f0dccdc22ec907db54d0788", /* SmolLM2 */
                  "cd8e9439f0570856fd70470bf8889ebd8b5d1107207f67a5efb46e342330527f"} /* Qwen2.5 */,
        .later_system = true,
    },
    {
        .name = "olmo",
        .family = {"olmo3"},
        CHATML_TURNS("<|endoftext|>"),
        .template_texts = true,
        .system_default = "You are a helpful function-calling AI assistant. You do not currently "
                          "have access to any functions. <functions></functions>",
        .system_suffix = " You do not currently have access to any functions. "
                         "<functions></functions>",
    },
    {
        .name = "gemma",
        .family = {"gemma2", "gemma3"},
        .mark = {[MARK_BOS] = "<bos>", [MARK_OPEN] = "<start_of_turn>",
                 [MARK_CLOSE] = "<end_of_turn>", [MARK_STOP] = "<eos>"},
        .role = {[ROLE_ASSISTANT] = "model"},
        .before = "\n",
        .after = "\n",
        .system = SYSTEM_PREPEND,
        .tools = TOOLS_GEMMA,
        .alternate = true,
        .trim = true,
        .known = {"dc01dfb0312d85e381a884cfd19ddce0d716ec89ffe18635e7545c30f5ecb9e0", /* nestling */
                  "1e51d5c0fec2f83da1953fb850b7b532b7da02d0dc35f9201e671e0b9a35a123"} /* gemma-2 */,
    },
    {
        .name = "gemma-4",
        .family = {"gemma4"},
        .mark = {[MARK_BOS] = "<bos>", [MARK_OPEN] = "<|turn>", [MARK_CLOSE] = "<turn|>",
                 [MARK_CHANNEL] = "<|channel>", [MARK_CHANNEL_END] = "<channel|>",
                 [MARK_STOP] = "<eos>", [MARK_TOOL_RESPONSE] = "<|tool_response>",
                 [MARK_TOOL] = "<|tool>", [MARK_TOOL_END] = "<tool|>",
                 [MARK_TOOL_CALL] = "<|tool_call>", [MARK_TOOL_CALL_END] = "<tool_call|>",
                 [MARK_TOOL_RESPONSE_END] = "<tool_response|>", [MARK_QUOTE] = "<|\"|>"},
        .role = {[ROLE_ASSISTANT] = "model"},
        .before = "\n",
        .after = "\n",
        .think = THINK_CHANNEL,
        .tools = TOOLS_GEMMA4,
        .trim = true,
    },
    {
        .name = "harmony",
        .family = {"gpt_oss"},
        .mark = {[MARK_OPEN] = "<|start|>", [MARK_MID] = "<|message|>", [MARK_CLOSE] = "<|end|>",
                 [MARK_CHANNEL] = "<|channel|>", [MARK_STOP] = "<|return|>",
                 [MARK_STOP + 1] = "<|call|>", [MARK_STOP + 2] = "<|endoftext|>"},
        .role = {[ROLE_SYSTEM] = "developer"},
        .think = THINK_HARMONY,
        .tools = TOOLS_HARMONY,
        .effort = "medium",
        .conversation = harmony_conversation,
    },
    {
        .name = "smollm",
        .family = {"smollm3"},
        CHATML_TURNS("<|end_of_text|>"),
        .switches = true,
        .switch_text = "/no_think",
        .no_thought = "<think>\n\n</think>\n",
        .back = THOUGHT_IF_OFF,
        .system_turn = smollm_system,
    },
    {
        .name = "exaone",
        .family = {"exaone4"},
        .mark = {[MARK_USER] = "[|user|]", [MARK_ASSISTANT] = "[|assistant|]",
                 [MARK_SYSTEM] = "[|system|]", [MARK_CLOSE] = "[|endofturn|]"},
        .begin = {"[|system|]\n", "[|user|]\n", "[|assistant|]\n"},
        .end = {"[|endofturn|]\n", "[|endofturn|]\n", "[|endofturn|]\n"},
        .think = THINK_TAGS,
        .switches = true,
        .switch_text = "enable_thinking is true",
        .thought = "<think>\n",
        .quiet = true,
        .back = THOUGHT_ALWAYS,
    },
    {
        .name = "mistral", /* of tokenizers with [SYSTEM_PROMPT] */
        .family = {"mistral"},
        .mark = {[MARK_BOS] = "<s>", [MARK_USER] = "[INST]", [MARK_USER_END] = "[/INST]",
                 [MARK_SYSTEM] = "[SYSTEM_PROMPT]", [MARK_SYSTEM_END] = "[/SYSTEM_PROMPT]",
                 [MARK_CLOSE] = "</s>"},
        .begin = {"[SYSTEM_PROMPT]", "[INST]", ""},
        .end = {"[/SYSTEM_PROMPT]", "[/INST]", "</s>"},
        .alternate = true,
    },
    {
        .name = "olmo-2",
        .family = {"olmo2"},
        .mark = {[MARK_BOS] = "<|endoftext|>", [MARK_CLOSE] = "<|endoftext|>"},
        .begin = {"<|system|>\n", "<|user|>\n", "<|assistant|>\n"},
        .end = {"\n", "\n", "<|endoftext|>\n"},
    },
    {
        .name = "phi-4",
        .family = {"phi3"},
        .mark = {[MARK_OPEN] = "<|im_start|>", [MARK_MID] = "<|im_sep|>",
                 [MARK_CLOSE] = "<|im_end|>", [MARK_STOP] = "<|endoftext|>"},
        .think = THINK_TAGS,
        .later_system = true,
    },
    {
        .name = "phi-3",
        .family = {"phi3"},
        .mark = {[MARK_USER] = "<|user|>", [MARK_ASSISTANT] = "<|assistant|>",
                 [MARK_SYSTEM] = "<|system|>", [MARK_CLOSE] = "<|end|>",
                 [MARK_STOP] = "<|endoftext|>"},
        .begin = {"<|system|>\n", "<|user|>\n", "<|assistant|>\n"},
        .end = {"<|end|>\n", "<|end|>\n", "<|end|>\n"},
        .later_system = true,
    },
    {
        .name = "chatml-text", /* the turns of chatml; how functions are called differs */
        .family = {"afmoe", "mimo_v2", "step3p5"},
        CHATML_TURNS("<|endoftext|>"),
    },
    {
        .name = "granite",
        .family = {"granite"},
        .mark = {[MARK_OPEN] = "<|start_of_role|>", [MARK_MID] = "<|end_of_role|>",
                 [MARK_CLOSE] = "<|end_of_text|>"},
        .after = "\n",
        .later_system = true,
    },
    {
        .name = "command",
        .family = {"cohere2"},
        .mark = {[MARK_BOS] = "<BOS_TOKEN>", [MARK_USER] = "<|USER_TOKEN|>",
                 [MARK_ASSISTANT] = "<|CHATBOT_TOKEN|>", [MARK_SYSTEM] = "<|SYSTEM_TOKEN|>",
                 [MARK_SYSTEM_END] = "<|START_OF_TURN_TOKEN|>", /* of every turn */
                 [MARK_CLOSE] = "<|END_OF_TURN_TOKEN|>"},
        .begin = {"<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>",
                  "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>",
                  "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>"},
        .end = {"<|END_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>"},
    },
    {
        .name = "llama-4",
        .family = {"llama4"},
        .mark = {[MARK_BOS] = "<|begin_of_text|>", [MARK_OPEN] = "<|header_start|>",
                 [MARK_MID] = "<|header_end|>", [MARK_CLOSE] = "<|eot|>",
                 [MARK_STOP] = "<|end_of_text|>", [MARK_STOP + 1] = "<|eom|>"},
        .before = "\n\n",
        .trim = true,
    },
    {
        .name = "llama-3",
        .family = {"llama"},
        .mark = {[MARK_BOS] = "<|begin_of_text|>", [MARK_OPEN] = "<|start_header_id|>",
                 [MARK_MID] = "<|end_header_id|>", [MARK_CLOSE] = "<|eot_id|>",
                 [MARK_STOP] = "<|end_of_text|>", [MARK_STOP + 1] = "<|eom_id|>"},
        .before = "\n\n",
        .tools = TOOLS_LLAMA,
        .think = THINK_TAGS,
        .trim = true,
        .later_system = true,
    },
    {0},
};

const struct format chat_raw = {.name = "raw"};

/* ---- variants by template ---- */

/* Behind s in the template's text at p, or NULL if p does not begin with s. A newline of s may be
 * written as \n in the template. */
static const char *match_text(const char *p, const char *s)
{
    for (; *s; s++) {
        if (*s == '\n' && p[0] == '\\' && p[1] == 'n')
            p += 2;
        else if (*p == *s)
            p++;
        else
            return NULL;
    }
    return p;
}

/* Behind the first occurrence of s at or after p, or NULL. */
static const char *find_text(const char *p, const char *s)
{
    for (; *p; p++) {
        const char *after = match_text(p, s);
        if (after)
            return after;
    }
    return NULL;
}

/* The first non-empty literal of the template between `open` and `close` that holds no template
 * code, or NULL. The caller frees it. */
static char *literal_between(const char *template, const char *open, const char *close)
{
    size_t width = strlen(close);
    for (const char *p = template; (p = find_text(p, open));) {
        const char *end = p + strcspn(p, "<'\"{}\\");
        while (*end == '<' && strncmp(end, close, width) != 0)
            end += 1 + strcspn(end + 1, "<'\"{}\\");
        if (end > p && strncmp(end, close, width) == 0) {
            char *s = xcalloc((size_t)(end - p) + 1, 1);
            return memcpy(s, p, (size_t)(end - p));
        }
    }
    return NULL;
}

/* Whether the template, if there is one, has enable_thinking in the form that is rendered here. */
static bool has_switch(const struct chat *c)
{
    const char *t = c->template;
    if (c->format->think == THINK_CHANNEL)
        return c->think_mark >= 0 && (!t || strstr(t, "<|think|>"));
    const char *text = c->format->switch_text ? c->format->switch_text : "enable_thinking is false";
    const char *empty = c->format->no_thought ? c->format->no_thought : "<think>\n\n</think>\n\n";
    return t ? strstr(t, text) && find_text(t, empty) : c->format->switches;
}

#define SMOLLM "You are a helpful AI assistant named SmolLM"

/* The template's text from where it names the assistant to the end of that line; *t: behind
 * it. NULL: there is none. The caller frees it. */
static char *next_persona(const char **t)
{
    const char *at = *t ? find_text(*t, SMOLLM) : NULL;
    size_t n = at ? strcspn(at, "\\\"'\n") : 0;
    *t = at ? at + n : NULL;
    return at ? xasprintf(SMOLLM "%.*s", (int)n, at) : NULL;
}

/* Whether the template ends the system turn in the block of its tools, so not without tools. */
static bool ends_with_tools(const char *t)
{
    const char *at = t ? find_text(t, "### Tools") : NULL;
    const char *end = at ? strstr(at, "<|im_end|>") : NULL;
    int depth = 1; /* of blocks: that of the tools is open */
    for (; end && (at = strstr(at, "{%")) && at < end; at += 2) {
        const char *word = at + 2 + strspn(at + 2, "- ");
        depth += !strncmp(word, "if ", 3) ? 1 : !strncmp(word, "endif", 5) ? -1 : 0;
    }
    return end && depth > 0;
}

/* The default texts of SmolLM 3's system turn: for replies that think, then for others. */
static void read_personas(struct chat *c)
{
    const char *t = c->template;
    c->system_default = next_persona(&t);
    c->system_quiet = next_persona(&t);
    if (!c->system_default)
        c->system_default = xstrdup(SMOLLM ", trained by Hugging Face.");
    if (!c->system_quiet)
        c->system_quiet = xstrdup(c->system_default);
    c->open_system = ends_with_tools(c->template);
}

/* Llama 3.1's and 3.3's templates name one date forever, some copies with the whole month ("26 July
 * 2024"); llama-3.2's asks for the day. */
static void read_date(struct chat *c)
{
    static const char *const fixed = "set date_string = \"";
    const char *at = strstr(c->template, "strftime_now") ? NULL : find_text(c->template, fixed);
    const char *month = at ? strchr(at, ' ') : NULL;
    struct tm tm = {0};
    if (!month || !strptime(at, "%d %b %Y", &tm))
        return;
    strftime(c->date, sizeof c->date, "%Y-%m-%d", &tm);
    c->whole_month = strcspn(month + 1, " ") > 3;
}

void chat_read_template(struct chat *c, const struct model *m)
{
    const struct format *f = c->format;
    const char *t = c->template;
    c->switches = has_switch(c);
    if (f->think == THINK_CHANNEL) /* larger models: an empty thought switches thinking off */
        c->empty_thought = t ? find_text(t, "<|channel>thought\n<channel|>") != NULL
                             : m->cfg.ple == 0;
    if (f->system_turn)
        read_personas(c);
    if (f->system_turn)
        return;
    if (!t) {
        c->system_default = f->system_default ? xstrdup(f->system_default) : NULL;
        c->system_suffix = f->system_suffix ? xstrdup(f->system_suffix) : NULL;
        return;
    }
    c->tight = f->begin[ROLE_USER] && strstr(t, "<|end|>") && !find_text(t, "<|end|>\n");
    c->date_lines = strstr(t, "Cutting Knowledge Date: December 2023") != NULL;
    if (c->date_lines)
        read_date(c);
    const char *thought = f->think == THINK_TAGS ? find_text(t, "assistant\n<think>") : NULL;
    if (thought)
        c->open_thought = match_text(thought, "\n") ? "<think>\n" : "<think>";
    if (!f->template_texts)
        return;
    c->system_default = literal_between(t, "<|im_start|>system\n", "<|im_end|>");
    if (f->system_suffix && strstr(t, f->system_suffix))
        c->system_suffix = xstrdup(f->system_suffix);
}
