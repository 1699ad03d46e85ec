/* test_chat.c - prompts as the families were trained, replies read back, and no forged turns.
 *
 * The bundled model's prompts are compared id by id with those of the reference. The other formats
 * run on a tokenizer made here, one token a byte plus the format's markers, so that a prompt can be
 * read as text: a marker's text in a decoded prompt is a marker only if its id says so.
 */
#include "engine/thread/internal.h"
#include "models/chat/chat.h"
#include "tests/gguf_kit.h"
#include "tests/scratch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#define NESTLING "models/nestling/target"

static const char *const markers[] = {
    "<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>", "<|turn>", "<turn|>", "<|channel>",
    "<channel|>", "<|tool_response>", "<|start|>", "<|end|>", "<|message|>", "<|channel|>",
    "<|return|>", "<|call|>", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>",
    "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|think|>",
    "<|im_sep|>", "<|system|>", "<|user|>", "<|assistant|>", "[|system|]", "[|user|]",
    "[|assistant|]", "[|endofturn|]", "<s>", "</s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]", "<BOS_TOKEN>", "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>",
    "<|SYSTEM_TOKEN|>", "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>", "<|header_start|>",
    "<|header_end|>", "<|eot|>", "<|eom|>", "<|start_of_role|>", "<|end_of_role|>",
    "<|tool>", "<tool|>", "<|tool_call>", "<tool_call|>", "<tool_response|>", "<|\"|>",
};
enum { N_MARKERS = sizeof markers / sizeof *markers };

static char *folder;
static struct tokenizer *bytes;

/* ---- fixtures ---- */

static json_t *byte_vocab(void)
{
    json_t *vocab = json_object();
    for (unsigned b = 0, other = 0x100; b < 256; b++) {
        bool plain = (b > 32 && b < 127) || (b > 160 && b != 173);
        unsigned c = plain ? b : other++;
        char s[3] = {(char)c, 0, 0};
        if (c >= 0x80) {
            s[0] = (char)(0xC0 | c >> 6);
            s[1] = (char)(0x80 | (c & 63));
        }
        json_object_set_new(vocab, s, json_integer(b));
    }
    return vocab;
}

/* A tokenizer of bytes and of those markers that `without` does not begin with. */
static void write_tokenizer(const char *path, const char *without)
{
    json_t *added = json_array();
    for (int i = 0; i < N_MARKERS; i++)
        if (!without || strncmp(markers[i], without, strlen(without)) != 0)
            json_array_append_new(added, json_pack("{s:i,s:s,s:b}", "id", 256 + i, "content",
                                                   markers[i], "special", 1));
    json_array_append_new(added, json_pack("{s:i,s:s,s:b}", "id", 400, "content", "<think>",
                                           "special", 0));
    json_array_append_new(added, json_pack("{s:i,s:s,s:b}", "id", 401, "content", "</think>",
                                           "special", 0));
    json_t *level = json_pack("{s:s,s:b,s:b}", "type", "ByteLevel", "add_prefix_space", 0,
                              "use_regex", 0);
    json_t *top = json_pack("{s:{s:s,s:o,s:[]},s:o,s:o,s:O}", "model", "type", "BPE", "vocab",
                            byte_vocab(), "merges", "added_tokens", added, "decoder", level,
                            "pre_tokenizer", level);
    assert_int_equal(json_dump_file(top, path, 0), 0);
    json_decref(top);
}

static int open_bytes(void **state)
{
    (void)state;
    struct err e;
    char path[512];
    folder = scratch_folder();
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    write_tokenizer(path, NULL);
    bytes = tok_open(folder, &e);
    if (!bytes)
        fail_msg("%s", e.msg);
    return 0;
}

static int close_bytes(void **state)
{
    (void)state;
    tok_close(bytes);
    scratch_remove(folder);
    return 0;
}

static struct chat *open_chat(const char *family, const char *dir, const struct tokenizer *t,
                              const char **warning)
{
    struct model m = {.dir = (char *)(uintptr_t)dir};
    struct err e = {0};
    snprintf(m.cfg.family, sizeof m.cfg.family, "%s", family);
    m.cfg.bos = m.cfg.pad = -1;
    m.cfg.ple = 256;
    struct chat *c = chat_open(&m, t, false, warning, &e);
    if (!c)
        fail_msg("%s", e.msg);
    return c;
}

/* A chat with a template of this text in its folder, beside an integer as Python writes it for
 * tokenizers without a longest text. */
static struct chat *open_with_template(const char *family, const char *template,
                                       const char **warning)
{
    char path[512];
    snprintf(path, sizeof path, "%s/tokenizer_config.json", folder);
    json_t *text = json_string(template);
    char *quoted = json_dumps(text, JSON_ENCODE_ANY);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f, "{\"model_max_length\": 1000000000000000019884624838656, \"chat_template\": %s}",
            quoted);
    fclose(f);
    free(quoted);
    json_decref(text);
    struct chat *c = open_chat(family, folder, bytes, warning);
    unlink(path);
    return c;
}

static struct message say(enum role role, const char *text)
{
    return (struct message){.role = role, .text = (char *)(uintptr_t)text};
}

/* A reply by the ids of a text in which markers are matched. */
static struct message reply(const struct tokenizer *t, const char *text)
{
    struct message m = {.role = ROLE_ASSISTANT, .text = "not used"};
    assert_true(tok_encode(t, text, strlen(text), TOK_SPECIAL, &m.ids, NULL));
    return m;
}

static struct ids render(const struct chat *c, const struct message *m, int n)
{
    struct ids ids = {0};
    struct err e = {0};
    if (!chat_render(c, m, n, &ids, &e))
        fail_msg("%s", e.msg);
    return ids;
}

/* The prompt equals the text, with a token wherever the text has a marker. */
static void assert_styled(const struct chat *c, const struct chat_style *s, const struct message *m,
                          int n, const char *want)
{
    struct ids got = {0}, ids = {0};
    struct buf text = {0};
    struct err e = {0};
    if (!chat_has_style(c, s, &e) || !chat_render_in(c, s, m, n, &got, &e))
        fail_msg("%s", e.msg);
    tok_decode(bytes, got.v, got.n, &text);
    assert_string_equal(text.p, want);
    assert_true(tok_encode(bytes, want, strlen(want), TOK_SPECIAL, &ids, NULL));
    assert_int_equal(got.n, ids.n);
    assert_memory_equal(got.v, ids.v, (size_t)ids.n * sizeof *ids.v);
    buf_free(&text);
    ids_free(&got);
    ids_free(&ids);
}

static void assert_prompt(const struct chat *c, const struct message *m, int n, const char *want)
{
    assert_styled(c, &(struct chat_style){0}, m, n, want);
}

static void assert_no_style(const struct chat *c, struct chat_style s, const char *why)
{
    struct err e = {0};
    assert_false(chat_has_style(c, &s, &e));
    assert_non_null(strstr(e.msg, why));
}

/* ---- the bundled model ---- */

static int read_messages(const json_t *list, struct message *m)
{
    int n = (int)json_array_size(list);
    for (int i = 0; i < n; i++) {
        const json_t *x = json_array_get(list, (size_t)i);
        const char *role = json_string_value(json_object_get(x, "role"));
        m[i] = say(strcmp(role, "user") == 0 ? ROLE_USER
                   : strcmp(role, "system") == 0 ? ROLE_SYSTEM : ROLE_ASSISTANT,
                   json_string_value(json_object_get(x, "content")));
    }
    return n;
}

static void test_bundled_prompts_equal_the_reference(void **state)
{
    (void)state;
    struct err e;
    struct tokenizer *t = tok_open(NESTLING, &e);
    json_t *all = json_load_file("tests/tokenizers/nestling_prompts.json", 0, NULL);
    const char *warning;
    assert_non_null(t);
    assert_int_equal(json_array_size(all), 12);
    struct chat *c = open_chat("gemma3", NESTLING, t, &warning);
    assert_string_equal(chat_name(c), "gemma");
    assert_null(warning);
    for (size_t i = 0; i < json_array_size(all); i++) {
        const json_t *p = json_array_get(all, i), *want = json_object_get(p, "input_ids");
        struct message m[32];
        struct ids ids = render(c, m, read_messages(json_object_get(p, "messages"), m));
        assert_int_equal(ids.n, json_array_size(want));
        for (int k = 0; k < ids.n; k++)
            assert_int_equal(ids.v[k], json_integer_value(json_array_get(want, (size_t)k)));
        ids_free(&ids);
    }
    chat_close(c);
    tok_close(t);
    json_decref(all);
}

static void assert_prefix(const struct ids *a, const struct ids *b)
{
    assert_true(a->n <= b->n);
    assert_memory_equal(a->v, b->v, (size_t)a->n * sizeof *a->v);
}

/* Turn after turn the prompt begins with the prompt before and the reply's ids, whatever ids the
 * model chose; so a cache of both is used to the end. */
static void test_a_turn_more_begins_with_prompt_and_reply(void **state)
{
    (void)state;
    enum { TURNS = 6 };
    static const char *const family[] = {"gemma3", "gemma3", "qwen3", "llama", "gemma4"};
    static const char *const stop[] = {"<end_of_turn>", "<end_of_turn>", "<|im_end|>",
                                       "<|eot_id|>", "<turn|>"};
    struct tokenizer *nestling = tok_open(NESTLING, NULL);
    srand(5);
    for (int f = 0; f < 5; f++) {
        const struct tokenizer *t = f ? bytes : nestling;
        struct chat *c = open_chat(family[f], NULL, t, NULL);
        struct message m[2 * TURNS + 1] = {{0}};
        struct ids held = {0};
        for (int turn = 0; turn < TURNS; turn++) {
            m[2 * turn] = say(ROLE_USER, turn % 2 ? " spaces \n" : "\xE4\xBD\xA0\xE5\xA5\xBD?");
            struct ids ids = render(c, m, 2 * turn + 1);
            assert_prefix(&held, &ids);
            ids_free(&held);
            held = ids;
            struct message *r = &m[2 * turn + 1];
            *r = (struct message){.role = ROLE_ASSISTANT};
            for (int i = 0; i < 20; i++)
                ids_add(&r->ids, 6 + rand() % (f ? 250 : 4090));
            if (turn % 3) /* else interrupted */
                ids_add(&r->ids, tok_find(t, stop[f]));
            ids_cat(&held, r->ids.v, r->ids.n);
        }
        for (int i = 0; i <= 2 * TURNS; i++)
            ids_free(&m[i].ids);
        ids_free(&held);
        chat_close(c);
    }
    tok_close(nestling);
}

/* ---- prompts of the formats ---- */

static void test_gemma_folds_the_system_prompt_and_trims(void **state)
{
    (void)state;
    struct chat *c = open_chat("gemma2", NULL, bytes, NULL);
    struct message m[] = {say(ROLE_SYSTEM, " Be brief.\n"), say(ROLE_USER, "\n\xE3\x80\x80Hi \t"),
                          say(ROLE_ASSISTANT, " Hello. \xC2\xA0"), say(ROLE_USER, "")};
    assert_prompt(c, m, 4,
                  "<bos><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\n"
                  "Hello.<end_of_turn>\n<start_of_turn>user\n<end_of_turn>\n"
                  "<start_of_turn>model\n");
    chat_close(c);
}

static void test_gemma4_has_a_system_turn_and_drops_thoughts(void **state)
{
    (void)state;
    struct chat *c = open_chat("gemma4", NULL, bytes, NULL);
    struct message m[] = {say(ROLE_SYSTEM, "Be brief."), say(ROLE_USER, "Hi"),
                          reply(bytes, "<|channel>thought\nhm<channel|>Hello<turn|>"),
                          say(ROLE_USER, "And?"), reply(bytes, "So<|channel>thought\ncut off"),
                          say(ROLE_USER, "?")};
    assert_prompt(c, m, 6,
                  "<bos><|turn>system\nBe brief.<turn|>\n<|turn>user\nHi<turn|>\n<|turn>model\n"
                  "Hello<turn|>\n<|turn>user\nAnd?<turn|>\n<|turn>model\nSo<turn|>\n"
                  "<|turn>user\n?<turn|>\n<|turn>model\n");
    chat_close(c);
    const char *warning;
    c = open_with_template("gemma4", "{{- '<|turn>model\\n' -}}{{- '<|channel>thought\\n<channel|>'"
                           " -}}", &warning);
    assert_non_null(strstr(warning, "chat template"));
    assert_prompt(c, m + 1, 1, "<bos><|turn>user\nHi<turn|>\n<|turn>model\n"
                               "<|channel>thought\n<channel|>");
    assert_no_style(c, (struct chat_style){.think = THINK}, "does not switch thinking");
    chat_close(c);
    c = open_with_template("gemma4", "{{- '<|think|>\\n' -}}{{- '<|channel>thought\\n<channel|>' "
                                     "-}}", NULL);
    assert_styled(c, &(struct chat_style){.think = THINK_NOT}, m + 1, 1,
                  "<bos><|turn>user\nHi<turn|>\n<|turn>model\n<|channel>thought\n<channel|>");
    assert_styled(c, &(struct chat_style){.think = THINK}, m, 2,
                  "<bos><|turn>system\n<|think|>\nBe "
                  "brief.<turn|>\n<|turn>user\nHi<turn|>\n<|turn>model\n");
    assert_styled(c, &(struct chat_style){.think = THINK}, m + 1, 1,
                  "<bos><|turn>system\n<|think|>\n<turn|>\n<|turn>user\nHi<turn|>\n<|turn>model\n");
    assert_no_style(c, (struct chat_style){.effort = "low"}, "gemma-4, has no reasoning effort");
    chat_close(c);
    ids_free(&m[2].ids);
    ids_free(&m[4].ids);
}

#define HARMONY_SYSTEM                                                                             \
    "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\n"      \
    "Knowledge cutoff: 2024-06\nCurrent date: 2025-06-28\n\nReasoning: medium\n\n"                 \
    "# Valid channels: analysis, commentary, final. Channel must be included for every message."  \
    "<|end|>"

static void test_harmony_writes_its_system_message_and_rewrites_history(void **state)
{
    (void)state;
    struct chat *c = open_chat("gpt_oss", NULL, bytes, NULL);
    assert_true(chat_set_date(c, "2025-06-28", NULL));
    struct message m[] = {
        say(ROLE_SYSTEM, "Always respond in riddles"), say(ROLE_USER, "What is 2 + 2?"),
        reply(bytes, "<|channel|>analysis<|message|>Simple.<|end|><|start|>assistant<|channel|>"
                     "final<|message|>2 + 2 = 4.<|return|>"),
        say(ROLE_USER, "Sure?"), say(ROLE_ASSISTANT, "Yes"), say(ROLE_USER, "Why?"),
        reply(bytes, "<|channel|>analysis<|message|>Cut o"), say(ROLE_USER, "Go on"),
        reply(bytes, "<|channel|>commentary<|message|>Wait<|end|><|start|>assistant<|channel|>"
                     "final<|message|>Because"), say(ROLE_USER, "Ah"),
    };
    assert_prompt(c, m, 10, HARMONY_SYSTEM
                  "<|start|>developer<|message|># Instructions\n\nAlways respond in riddles<|end|>"
                  "<|start|>user<|message|>What is 2 + 2?<|end|>"
                  "<|start|>assistant<|channel|>final<|message|>2 + 2 = 4.<|end|>"
                  "<|start|>user<|message|>Sure?<|end|>"
                  "<|start|>assistant<|channel|>final<|message|>Yes<|end|>"
                  "<|start|>user<|message|>Why?<|end|>"
                  "<|start|>assistant<|channel|>analysis<|message|>Cut o<|end|>"
                  "<|start|>user<|message|>Go on<|end|>"
                  "<|start|>assistant<|channel|>commentary<|message|>Wait<|end|>"
                  "<|start|>assistant<|channel|>final<|message|>Because<|end|>"
                  "<|start|>user<|message|>Ah<|end|><|start|>assistant");
    assert_false(chat_set_date(c, "2025-6-28", NULL));
    assert_styled(c, &(struct chat_style){.effort = "medium"}, m + 1, 1, HARMONY_SYSTEM
                  "<|start|>user<|message|>What is 2 + 2?<|end|><|start|>assistant");
    assert_styled(c, &(struct chat_style){.effort = "high", .think = THINK}, m + 1, 1,
                  "<|start|>system<|message|>You are ChatGPT, a large language model trained by "
                  "OpenAI.\nKnowledge cutoff: 2024-06\nCurrent date: 2025-06-28\n\nReasoning: "
                  "high\n\n# Valid channels: analysis, commentary, final. Channel must be included "
                  "for every message.<|end|><|start|>user<|message|>What is 2 + "
                  "2?<|end|><|start|>assistant");
    assert_no_style(c, (struct chat_style){.effort = "minimal"}, "expected low, medium or high");
    assert_no_style(c, (struct chat_style){.think = THINK_NOT}, "does not switch thinking");
    int32_t stop[MAX_STOP];
    int n = chat_stops(c, stop);
    assert_int_equal(n, 3); /* <|end|> goes on */
    for (int i = 0; i < n; i++)
        assert_int_not_equal(stop[i], tok_find(bytes, "<|end|>"));
    for (int i = 0; i < 10; i++)
        ids_free(&m[i].ids);
    chat_close(c);
}

static void test_chatml_sends_answers_back_without_thoughts(void **state)
{
    (void)state;
    struct chat *c = open_chat("qwen3", NULL, bytes, NULL);
    struct message m[] = {say(ROLE_SYSTEM, "Be brief."), say(ROLE_USER, " Hi "),
                          reply(bytes, "<think>\nhm\n</think>\n\nHello<|im_end|>"),
                          say(ROLE_USER, "And?"), reply(bytes, "<think>\ncut off"),
                          say(ROLE_USER, "?")};
    assert_prompt(c, m, 6,
                  "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n Hi <|im_end|>\n"
                  "<|im_start|>assistant\nHello<|im_end|>\n<|im_start|>user\nAnd?<|im_end|>\n"
                  "<|im_start|>assistant\n<think>\ncut off<|im_end|>\n"
                  "<|im_start|>user\n?<|im_end|>\n<|im_start|>assistant\n");
    ids_free(&m[2].ids);
    ids_free(&m[4].ids);
    static const char on[] = "<|im_start|>user\n?<|im_end|>\n<|im_start|>assistant\n",
                      off[] = "<|im_start|>user\n?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
    assert_styled(c, &(struct chat_style){.think = THINK}, m + 5, 1, on);
    assert_styled(c, &(struct chat_style){.think = THINK_NOT}, m + 5, 1, off);
    chat_close(c);
    /* a template without the variable, and one with it, as published */
    c = open_with_template("qwen3", "{{- '<|im_start|>assistant\\n' }}", NULL);
    assert_no_style(c, (struct chat_style){.think = THINK_NOT}, "does not switch thinking");
    assert_no_style(c, (struct chat_style){.think = THINK}, "does not switch thinking");
    chat_close(c);
    c = open_with_template("qwen3", "{{- '<|im_start|>assistant\\n' }}{%- if enable_thinking is "
                                    "defined and enable_thinking "
                           "is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}", NULL);
    assert_styled(c, &(struct chat_style){.think = THINK_NOT}, m + 5, 1, off);
    assert_styled(c, &(struct chat_style){0}, m + 5, 1, on);
    chat_close(c);
}

#define QWEN2_TEXT "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
#define QWEN2_SYSTEM "{{- '<|im_start|>system\\n" QWEN2_TEXT "<|im_end|>\\n' }}"

static void test_qwen2_has_a_system_message_of_its_own(void **state)
{
    (void)state;
    struct message m[] = {say(ROLE_SYSTEM, "Be brief."), say(ROLE_USER, "Hi")};
    struct chat *c = open_with_template("qwen2", QWEN2_SYSTEM, NULL);
    assert_prompt(c, m + 1, 1,
                  "<|im_start|>system\n" QWEN2_TEXT "<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
                  "<|im_start|>assistant\n");
    assert_prompt(c, m, 2,
                  "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
                  "<|im_start|>assistant\n");
    chat_close(c);
}

static void test_olmo_takes_its_texts_from_the_template(void **state)
{
    (void)state;
    static const char *const no_functions =
        " You do not currently have access to any functions. <functions></functions>";
    struct message m[] = {say(ROLE_SYSTEM, "Be brief."), say(ROLE_USER, "Hi")};
    struct chat *c = open_chat("olmo3", NULL, bytes, NULL);
    assert_prompt(c, m + 1, 1,
                  "<|im_start|>system\nYou are a helpful function-calling AI assistant. You do not "
                  "currently have access to any functions. <functions></functions><|im_end|>\n"
                  "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    chat_close(c);
    struct buf t = {0};
    buf_printf(&t, "{%% if not has_system %%}{{ '<|im_start|>system\\nYou are OLMo.%s<|im_end|>"
               "\\n' }}{%% endif %%}{{ '%s<|im_end|>\\n' }}{{ '<|im_start|>assistant\\n<think>' }}",
               no_functions, no_functions);
    c = open_with_template("olmo3", t.p, NULL);
    assert_prompt(c, m + 1, 1,
                  "<|im_start|>system\nYou are OLMo. You do not currently have access to any "
                  "functions. <functions></functions><|im_end|>\n"
                  "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>");
    assert_prompt(c, m, 2,
                  "<|im_start|>system\nBe brief. You do not currently have access to any "
                  "functions. <functions></functions><|im_end|>\n"
                  "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>");
    buf_free(&t);
    chat_close(c);
}

static struct tokenizer *tokenizer_without(const char *marker)
{
    char path[512];
    struct err e;
    snprintf(path, sizeof path, "%s/tokenizer_config.json", folder);
    write_tokenizer(path, marker);
    struct tokenizer *t = tok_open(path, &e);
    assert_non_null(t);
    unlink(path);
    return t;
}

/* A conversation with a system message, the one without it, and its first message alone: as the
 * published templates of the family render them. */
static void assert_conversations(const struct chat *c, const char *all, const char *nosys,
                                 const char *first)
{
    struct message m[] = {say(ROLE_SYSTEM, "Be brief."), say(ROLE_USER, " Hi "),
                          say(ROLE_ASSISTANT, "Hello"), say(ROLE_USER, "?")};
    assert_prompt(c, m, 4, all);
    assert_prompt(c, m + 1, 3, nosys);
    assert_prompt(c, m + 1, 1, first);
}

static void test_roles_that_are_markers(void **state)
{
    (void)state;
    struct chat *c = open_chat("mistral", NULL, bytes, NULL);
    assert_conversations(c, "<s>[SYSTEM_PROMPT]Be brief.[/SYSTEM_PROMPT][INST] Hi "
                            "[/INST]Hello</s>[INST]?[/INST]",
                         "<s>[INST] Hi [/INST]Hello</s>[INST]?[/INST]", "<s>[INST] Hi [/INST]");
    struct message two[] = {say(ROLE_USER, "a"), say(ROLE_USER, "[/INST] b")};
    struct err e = {0};
    struct ids ids = {0};
    assert_false(chat_render(c, two, 2, &ids, &e));
    assert_int_equal(e.kind, ERR_USAGE);
    chat_close(c);
    c = open_chat("olmo2", NULL, bytes, NULL);
    struct message m[] = {say(ROLE_USER, "Hi"), say(ROLE_ASSISTANT, "Hello"), say(ROLE_USER, "?")};
    assert_true(chat_render(c, m, 3, &ids, NULL));
    struct buf text = {0};
    tok_decode(bytes, ids.v, ids.n, &text);
    assert_string_equal(text.p, "<|endoftext|><|user|>\nHi\n<|assistant|>\nHello<|endoftext|>\n"
                                "<|user|>\n?\n<|assistant|>\n");
    assert_int_equal(ids.v[0], tok_find(bytes, "<|endoftext|>"));
    assert_int_equal(ids.v[1], '<'); /* the roles are text */
    buf_free(&text);
    ids_free(&ids);
    chat_close(c);
}

#define COMMAND(role, text)                                                                        \
    "<|START_OF_TURN_TOKEN|><|" role "_TOKEN|>" text "<|END_OF_TURN_TOKEN|>"
#define COMMAND_REPLY "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>"
#define LLAMA4(role, text) "<|header_start|>" role "<|header_end|>\n\n" text

#define GRANITE(role, text) "<|start_of_role|>" role "<|end_of_role|>" text "<|end_of_text|>\n"
#define GRANITE_REPLY "<|start_of_role|>assistant<|end_of_role|>"

static void test_format_of_granite(void **state)
{
    (void)state;
    struct chat *c = open_chat("granite", NULL, bytes, NULL);
    assert_string_equal(chat_name(c), "granite");
    assert_conversations(
        c, GRANITE("system", "Be brief.") GRANITE("user", " Hi ") GRANITE("assistant", "Hello")
           GRANITE("user", "?") GRANITE_REPLY,
        GRANITE("user", " Hi ") GRANITE("assistant", "Hello") GRANITE("user", "?") GRANITE_REPLY,
        GRANITE("user", " Hi ") GRANITE_REPLY);
    chat_close(c);
}

static void test_formats_of_command_and_llama_4(void **state)
{
    (void)state;
    struct chat *c = open_chat("cohere2", NULL, bytes, NULL);
    assert_conversations(
        c, "<BOS_TOKEN>" COMMAND("SYSTEM", "Be brief.") COMMAND("USER", " Hi ")
           COMMAND("CHATBOT", "Hello") COMMAND("USER", "?") COMMAND_REPLY,
        "<BOS_TOKEN>" COMMAND("USER", " Hi ") COMMAND("CHATBOT", "Hello") COMMAND("USER", "?")
        COMMAND_REPLY,
        "<BOS_TOKEN>" COMMAND("USER", " Hi ") COMMAND_REPLY);
    chat_close(c);
    c = open_chat("llama4", NULL, bytes, NULL);
    assert_string_equal(chat_name(c), "llama-4");
    assert_conversations(
        c, "<|begin_of_text|>" LLAMA4("system", "Be brief.<|eot|>") LLAMA4("user", "Hi<|eot|>")
           LLAMA4("assistant", "Hello<|eot|>") LLAMA4("user", "?<|eot|>") LLAMA4("assistant", ""),
        "<|begin_of_text|>" LLAMA4("user", "Hi<|eot|>") LLAMA4("assistant", "Hello<|eot|>")
        LLAMA4("user", "?<|eot|>") LLAMA4("assistant", ""),
        "<|begin_of_text|>" LLAMA4("user", "Hi<|eot|>") LLAMA4("assistant", ""));
    chat_close(c);
}

static void test_phi_formats_follow_the_tokenizer_and_the_template(void **state)
{
    (void)state;
    struct chat *c = open_chat("phi3", NULL, bytes, NULL); /* <|im_sep|>: phi-4 */
    assert_string_equal(chat_name(c), "phi-4");
    assert_conversations(c, "<|im_start|>system<|im_sep|>Be "
                            "brief.<|im_end|><|im_start|>user<|im_sep|> Hi <|im_end|>"
                         "<|im_start|>assistant<|im_sep|>Hello<|im_end|><|im_start|>user<|im_sep|>?<|im_end|>"
                         "<|im_start|>assistant<|im_sep|>",
                         "<|im_start|>user<|im_sep|> Hi "
                         "<|im_end|><|im_start|>assistant<|im_sep|>Hello<|im_end|><|im_start|>user<|im_sep|>?<|im_end|><|im_start|>assistant<|im_sep|>",
                         "<|im_start|>user<|im_sep|> Hi <|im_end|><|im_start|>assistant<|im_sep|>");
    chat_close(c);
    char path[512];
    struct tokenizer *t = tokenizer_without("<|im_sep|>");
    c = open_chat("phi3", NULL, t, NULL);
    assert_string_equal(chat_name(c), "phi-3");
    assert_conversations(c, "<|system|>\nBe brief.<|end|>\n<|user|>\n Hi "
                            "<|end|>\n<|assistant|>\nHello<|end|>\n"
                         "<|user|>\n?<|end|>\n<|assistant|>\n",
                         "<|user|>\n Hi "
                         "<|end|>\n<|assistant|>\nHello<|end|>\n<|user|>\n?<|end|>\n<|assistant|>\n",
                         "<|user|>\n Hi <|end|>\n<|assistant|>\n");
    chat_close(c);
    snprintf(path, sizeof path, "%s/chat_template.jinja", folder);
    FILE *f = fopen(path, "w"); /* phi-4-mini's has no newlines around texts */
    assert_true(f && fputs("{{- '<|' + message['role'] + '|>' -}}{{- '<|end|>' -}}", f) >= 0);
    fclose(f);
    c = open_chat("phi3", folder, t, NULL);
    assert_conversations(c, "<|system|>Be brief.<|end|><|user|> Hi "
                            "<|end|><|assistant|>Hello<|end|><|user|>?<|end|>"
                         "<|assistant|>",
                         "<|user|> Hi <|end|><|assistant|>Hello<|end|><|user|>?<|end|><|assistant|>",
                         "<|user|> Hi <|end|><|assistant|>");
    chat_close(c);
    unlink(path);
    tok_close(t);
}

/* As phi-3's: in a text these tokens include the white space behind them. */
static void test_a_marker_may_include_the_white_space_behind_it(void **state)
{
    (void)state;
    char path[512];
    struct err e = {0};
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    write_tokenizer(path, "<|im_sep|>");
    json_t *top = json_load_file(path, 0, NULL), *x;
    size_t i;
    json_array_foreach(json_object_get(top, "added_tokens"), i, x)
        json_object_set_new(x, "rstrip", json_true());
    assert_int_equal(json_dump_file(top, path, 0), 0);
    json_decref(top);
    struct tokenizer *t = tok_open(folder, &e);
    write_tokenizer(path, NULL);
    assert_non_null(t);
    struct chat *c = open_chat("phi3", NULL, t, NULL);
    struct message m[] = {say(ROLE_SYSTEM, "\n Be"), say(ROLE_USER, " Hi "),
                          say(ROLE_ASSISTANT, "\n"), say(ROLE_USER, "?")};
    struct ids got = {0}, want = {0};
    static const char text[] = "<|system|>\n\n Be<|end|>\n<|user|>\n Hi "
    "<|end|>\n<|assistant|>\n\n<|end|>\n"
                               "<|user|>\n?<|end|>\n<|assistant|>\n";
    assert_true(chat_render(c, m, 4, &got, &e));
    assert_true(tok_encode(t, text, strlen(text), TOK_SPECIAL, &want, NULL));
    assert_int_equal(got.n, want.n);
    assert_memory_equal(got.v, want.v, (size_t)got.n * sizeof *got.v);
    assert_true(got.v[1] == 'B' && got.v[5] == 'H');
    ids_free(&got);
    ids_free(&want);
    chat_close(c);
    tok_close(t);
}

static void test_exaone_sends_empty_thoughts_back(void **state)
{
    (void)state;
    struct chat *c = open_chat("exaone4", NULL, bytes, NULL);
    assert_conversations(c, "[|system|]\nBe brief.[|endofturn|]\n[|user|]\n Hi [|endofturn|]\n"
                         "[|assistant|]\n<think>\n\n</think>\n\nHello[|endofturn|]\n[|user|]\n?[|endofturn|]\n"
                         "[|assistant|]\n<think>\n\n</think>\n\n",
                         "[|user|]\n Hi "
                         "[|endofturn|]\n[|assistant|]\n<think>\n\n</think>\n\nHello[|endofturn|]\n[|user|]\n?[|endofturn|]\n[|assistant|]\n<think>\n\n</think>\n\n",
                         "[|user|]\n Hi [|endofturn|]\n[|assistant|]\n<think>\n\n</think>\n\n");
    struct message m[] = {say(ROLE_USER, "Hi"), reply(bytes, "hm\n</think>\n\nHello[|endofturn|]"),
                          say(ROLE_USER, "?")};
    const struct chat_style on = {.think = THINK};
    assert_styled(c, &on, m, 3,
                  "[|user|]\nHi[|endofturn|]\n[|assistant|]\n<think>\n\n</think>\n\nHello[|endofturn|]\n[|user|]\n?[|endofturn|]\n[|assistant|]\n<think>\n");
    /* the reply to such a prompt begins with its thought */
    struct ids prompt = {0};
    struct buf out = {0};
    struct chat_reader r;
    enum channel channel;
    assert_true(chat_render_in(c, &on, m, 3, &prompt, NULL));
    chat_reader_init(&r, c);
    chat_reader_follow(&r, &prompt);
    chat_reader_push(&r, 'h', &out, &channel);
    assert_true(out.n == 1 && channel == CHAN_ANALYSIS);
    chat_reader_end(&r, &out);
    prompt.n = 0;
    assert_true(chat_render(c, m, 3, &prompt, NULL));
    chat_reader_init(&r, c);
    chat_reader_follow(&r, &prompt);
    chat_reader_push(&r, 'h', &out, &channel);
    assert_true(channel == CHAN_FINAL);
    chat_reader_end(&r, &out);
    buf_free(&out);
    ids_free(&prompt);
    ids_free(&m[1].ids);
    chat_close(c);
}

#define SMOL(mode)                                                                                 \
    "<|im_start|>system\n## Metadata\n\nKnowledge Cutoff Date: June 2025\nToday Date: 28 June 2025\n" \
    "Reasoning Mode: /" mode "\n\n## Custom Instructions\n\n"
#define PERSONA "You are a helpful AI assistant named SmolLM, trained by Hugging Face."
#define EMPTY "<think>\n\n</think>\n"

static void test_smollm_writes_its_system_turn(void **state)
{
    (void)state;
    struct message m[] = {say(ROLE_SYSTEM, "Be brief."), say(ROLE_USER, " Hi "),
                          say(ROLE_ASSISTANT, "Hello"), say(ROLE_USER, "?")};
    struct chat *c = open_chat("smollm3", NULL, bytes, NULL);
    const struct chat_style off = {.think = THINK_NOT}, on = {.think = THINK};
    struct err e;
    assert_true(chat_set_date(c, "2025-06-28", &e));
    static const char hi[] = SMOL("think") "Be brief.\n\n<|im_end|>\n<|im_start|>user\n Hi "
    "<|im_end|>\n"
                             "<|im_start|>assistant\n";
    assert_prompt(c, m, 2, hi);
    chat_close(c);
    /* the first templates do not end the system turn, and have a text for each mode */
    c = open_with_template("smollm3", "{%- set no = \"/no_think\" -%}{{- "
                                      "\"" PERSONA " Think: <think> Thought section "
                           "</think>.\\n\\n\" -}}{%- else -%}{{- \"" PERSONA "\\n\\n\" -}}{%- "
                           "endif -%}\n{%- if tools -%}{{- \"### Tools\\n\\n\" -}}{%- if x -%}{%- "
                           "endif -%}{{- \"<|im_end|>\\n\" -}}{%- endif "
                           "-%}\"<think>\\n\\n</think>\\n\"", NULL);
    assert_true(chat_set_date(c, "2025-06-28", &e));
    assert_prompt(c, m, 4, SMOL("think") "Be brief.\n\n<|im_start|>user\n Hi "
                                         "<|im_end|>\n<|im_start|>assistant\n"
                  "Hello<|im_end|>\n<|im_start|>user\n?<|im_end|>\n<|im_start|>assistant\n");
    assert_styled(c, &on, m + 1, 1, SMOL("think") PERSONA " Think: <think> Thought section "
                                                          "</think>.\n\n"
                  "<|im_start|>user\n Hi <|im_end|>\n<|im_start|>assistant\n");
    assert_styled(c, &off, m + 1, 3,
                  SMOL("no_think") PERSONA "\n\n<|im_start|>user\n Hi <|im_end|>\n"
                  "<|im_start|>assistant\n" EMPTY "Hello<|im_end|>\n<|im_start|>user\n?<|im_end|>\n"
                  "<|im_start|>assistant\n" EMPTY);
    m[0] = say(ROLE_SYSTEM, "Be brief. /no_think ");
    assert_prompt(c, m, 2, SMOL("no_think") "Be brief.\n\n<|im_start|>user\n Hi "
                                            "<|im_end|>\n<|im_start|>assistant\n" EMPTY);
    m[0] = say(ROLE_SYSTEM, "/system_override Be brief.");
    assert_prompt(c, m, 2, "<|im_start|>system\n Be brief.<|im_end|>\n<|im_start|>user\n Hi "
                           "<|im_end|>\n"
                  "<|im_start|>assistant\n");
    assert_styled(c, &off, m, 2, "<|im_start|>system\n Be brief.<|im_end|>\n<|im_start|>user\n Hi "
                                 "<|im_end|>\n"
                  "<|im_start|>assistant\n" EMPTY);
    chat_close(c);
    /* a template that ends the turn always */
    c = open_with_template("smollm3", "{%- if tools -%}{{- \"### Tools\\n\\n\" -}}{%- endif -%}"
                           "{{- \"<|im_end|>\\n\" -}}", NULL);
    assert_true(chat_set_date(c, "2025-06-28", &e));
    m[0] = say(ROLE_SYSTEM, "Be brief.");
    assert_prompt(c, m, 2, hi);
    chat_close(c);
}

static void test_llama3_headers_and_dates(void **state)
{
    (void)state;
    struct message m[] = {say(ROLE_SYSTEM, " Be brief. "), say(ROLE_USER, "Hi"),
                          say(ROLE_ASSISTANT, "Hello"), say(ROLE_USER, "So?")};
    struct chat *c = open_chat("llama", NULL, bytes, NULL);
    assert_prompt(c, m, 4,
                  "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief."
                  "<|eot_id|>"
                  "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
                  "<|start_header_id|>assistant<|end_header_id|>\n\nHello<|eot_id|>"
                  "<|start_header_id|>user<|end_header_id|>\n\nSo?<|eot_id|>"
                  "<|start_header_id|>assistant<|end_header_id|>\n\n");
    chat_close(c);
    c = open_with_template("llama", "{{- \"Cutting Knowledge Date: December 2023\\n\" }}", NULL);
    assert_true(chat_set_date(c, "2024-07-26", NULL));
    assert_prompt(c, m + 1, 1,
                  "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nCutting "
                  "Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n<|eot_id|>"
                  "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
                  "<|start_header_id|>assistant<|end_header_id|>\n\n");
    chat_close(c);
    /* the date of the template itself, unless it asks for the day */
#define DATES "{{- \"Cutting Knowledge Date: December 2023\\n\" }}"
    c = open_with_template("llama", "{%- set date_string = \"26 Jul 2024\" %}" DATES, NULL);
    assert_string_equal(chat_date(c), "2024-07-26");
    chat_close(c);
    c = open_with_template("llama", "{%- set date_string = \"26 July 2024\" %}" DATES, NULL);
    assert_prompt(c, m + 1, 1,
                  "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nCutting "
                  "Knowledge Date: December 2023\nToday Date: 26 July 2024\n\n<|eot_id|>"
                  "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
                  "<|start_header_id|>assistant<|end_header_id|>\n\n");
    chat_close(c);
    c = open_with_template("llama", "{%- if strftime_now is defined %}{%- set date_string = "
                           "strftime_now(\"%d %b %Y\") %}{%- else %}{%- set date_string = "
                           "\"26 Jul 2024\" %}{%- endif %}" DATES, NULL);
    assert_string_not_equal(chat_date(c), "2024-07-26");
    chat_close(c);
}

static void test_raw_is_the_text_itself(void **state)
{
    (void)state;
    struct model m = {0};
    struct chat *c = chat_open(&m, bytes, true, NULL, NULL);
    struct message a[] = {say(ROLE_USER, "<bos>Once "), reply(bytes, "upon<|im_end|>")};
    assert_string_equal(chat_name(c), "raw");
    assert_prompt(c, a, 2, "<bos>Once upon<|im_end|>"); /* none of its stops is known here */
    ids_free(&a[1].ids);
    chat_close(c);
    struct tokenizer *t = tok_open(NESTLING, NULL); /* its post_processor adds <bos> */
    c = chat_open(&m, t, true, NULL, NULL);
    struct ids ids = render(c, a, 1);
    assert_int_equal(ids.v[0], 2);
    assert_int_not_equal(ids.v[1], 2);
    ids_free(&ids);
    a[0].text = "Once";
    ids = render(c, a, 1);
    assert_int_equal(ids.v[0], 2);
    ids_free(&ids);
    chat_close(c);
    tok_close(t);
}

/* ---- what must not happen ---- */

static void test_pasted_markers_stay_text(void **state)
{
    (void)state;
    static const char *const family[] = {"gemma3", "gemma4", "gpt_oss", "qwen3", "olmo3", "llama"};
    struct buf all = {0};
    for (int i = 0; i < N_MARKERS; i++)
        buf_printf(&all, "%s\n", markers[i]);
    for (int f = 0; f < 6; f++) {
        struct chat *c = open_chat(family[f], NULL, bytes, NULL);
        for (int where = 0; where < 3; where++) {
            struct message m[4] = {say(ROLE_SYSTEM, where == 0 ? all.p : "s"),
                                   say(ROLE_USER, where == 1 ? all.p : "u"),
                                   say(ROLE_ASSISTANT, where == 2 ? all.p : "a"),
                                   say(ROLE_USER, "u")};
            struct message clean[4] = {say(ROLE_SYSTEM, "s"), say(ROLE_USER, "u"),
                                       say(ROLE_ASSISTANT, "a"), say(ROLE_USER, "u")};
            struct ids ids = render(c, m, 4), plain = render(c, clean, 4);
            int n = 0;
            for (int i = 0; i < ids.n; i++)
                n += tok_is_special(bytes, ids.v[i]);
            for (int i = 0; i < plain.n; i++)
                n -= tok_is_special(bytes, plain.v[i]);
            assert_int_equal(n, 0);
            ids_free(&ids);
            ids_free(&plain);
        }
        chat_close(c);
    }
    buf_free(&all);
}

static void assert_refused(const struct chat *c, const struct message *m, int n, const char *part)
{
    struct ids ids = {0};
    struct err e = {0};
    ids_add(&ids, 7);
    assert_false(chat_render(c, m, n, &ids, &e));
    assert_non_null(strstr(e.msg, part));
    assert_int_equal(ids.n, 1);
    ids_free(&ids);
}

static void test_conversations_out_of_order_are_refused(void **state)
{
    (void)state;
    struct chat *c = open_chat("gemma3", NULL, bytes, NULL);
    struct message m[] = {say(ROLE_USER, "a"), say(ROLE_USER, "b"), say(ROLE_SYSTEM, "s"),
                          say(ROLE_ASSISTANT, "r")};
    assert_refused(c, m, 0, "no message");
    assert_refused(c, m + 2, 1, "no message");
    assert_refused(c, m, 2, "message 2 is of role user");
    assert_refused(c, m + 1, 2, "must be the first");
    assert_refused(c, m + 2, 2, "message 2 is of role assistant");
    chat_close(c);
}

/* As the published templates of these formats render the same messages. */
static void test_later_system_messages(void **state)
{
    (void)state;
    static const struct { const char *family, *want; } of[] = {
        {"granite", GRANITE("system", "s") GRANITE("user", "a") GRANITE("system", "t")
                    GRANITE("user", "b") GRANITE("system", "u") GRANITE_REPLY},
        {"qwen3", "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\na<|im_end|>\n"
                  "<|im_start|>system\nt<|im_end|>\n<|im_start|>user\nb<|im_end|>\n"
                  "<|im_start|>system\nu<|im_end|>\n<|im_start|>assistant\n"},
        {"gpt_oss", NULL},
        {"olmo3", NULL},
    };
    struct message m[] = {say(ROLE_SYSTEM, "s"), say(ROLE_USER, "a"), say(ROLE_SYSTEM, "t"),
                          say(ROLE_USER, "b"), say(ROLE_SYSTEM, "u")};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        struct chat *c = open_chat(of[i].family, NULL, bytes, NULL);
        if (of[i].want)
            assert_prompt(c, m, 5, of[i].want);
        else
            assert_refused(c, m, 5, "must be the first");
        if (!strcmp(of[i].family, "qwen3"))
            assert_prompt(c, m, 1, "<|im_start|>system\ns<|im_end|>\n<|im_start|>assistant\n");
        if (!strcmp(of[i].family, "gpt_oss")) { /* alone, too, it is a turn */
            struct ids ids = {0};
            struct err e = {0};
            assert_true(chat_render(c, m, 1, &ids, &e) && ids.n > 40);
            ids_free(&ids);
        }
        chat_close(c);
    }
}

static void test_ids_outside_of_the_model_are_refused(void **state)
{
    (void)state;
    struct model m = {.cfg = {.family = "gemma3", .vocab = 256}};
    struct chat *c = chat_open(&m, bytes, false, NULL, NULL);
    struct message a = say(ROLE_USER, "a");
    assert_refused(c, &a, 1, "token 256 is outside");
    chat_close(c);
}

static void test_missing_markers_and_unknown_families(void **state)
{
    (void)state;
    struct err e;
    struct model m = {.cfg = {.family = "gpt_oss"}};
    struct tokenizer *t = tokenizer_without("<|");
    assert_null(chat_open(&m, t, false, NULL, &e));
    assert_int_equal(e.kind, ERR_MODEL);
    assert_non_null(strstr(e.msg, "<|start|>"));
    strcpy(m.cfg.family, "another");
    assert_null(chat_open(&m, t, false, NULL, &e));
    assert_non_null(strstr(e.msg, "\"another\""));
    tok_close(t);

    const char *warning = NULL;
    struct chat *c = open_chat("another", NULL, bytes, &warning);
    assert_string_equal(chat_name(c), "chatml");
    assert_non_null(strstr(warning, "ChatML"));
    chat_close(c);
    t = tokenizer_without("[SYSTEM"); /* as of older mistral models */
    c = open_chat("mistral", NULL, t, &warning);
    assert_string_equal(chat_name(c), "chatml");
    chat_close(c);
    tok_close(t);
}

static void test_templates_are_compared(void **state)
{
    (void)state;
    const char *warning;
    char path[512];
    struct chat *c = open_with_template("gemma3", "{{ bos_token }}drifted", &warning);
    assert_non_null(strstr(warning, "gemma"));
    assert_non_null(strstr(warning, "sha256"));
    chat_close(c);
    c = open_chat("gemma3", folder, bytes, &warning); /* no template: nothing to compare */
    assert_null(warning);
    chat_close(c);

    /* SmolLM2's: a template that a format was compared with needs no warning in any family */
    c = open_with_template("another", "{% for message in messages %}{% if loop.first and "
                                      "messages[0]['role'] != "
                           "'system' %}{{ '<|im_start|>system\nYou are a helpful AI assistant "
                           "named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif "
                           "%}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
                           "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ "
                           "'<|im_start|>assistant\n' }}{% endif %}", &warning);
    assert_null(warning);
    struct message hi = {.role = ROLE_USER, .text = "Hi"};
    assert_prompt(c, &hi, 1, "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, "
                             "trained by Hugging "
                             "Face<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    chat_close(c);

    struct err e;
    struct model m = {.cfg = {.family = "gemma3"}, .dir = folder};
    snprintf(path, sizeof path, "%s/tokenizer_config.json", folder);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs("{\"chat_template\": ", f);
    fclose(f);
    assert_null(chat_open(&m, bytes, false, NULL, &e));
    assert_int_equal(e.kind, ERR_MODEL);
    assert_non_null(strstr(e.msg, "tokenizer_config.json"));
    unlink(path);
}

static void test_stops_are_the_formats_then_the_configs(void **state)
{
    (void)state;
    struct model m = {.cfg = {.family = "gemma3", .stop = {1, 5, 9}, .n_stop = 3}};
    struct tokenizer *t = tok_open(NESTLING, NULL);
    struct chat *c = chat_open(&m, t, false, NULL, NULL);
    int32_t stop[MAX_STOP];
    assert_int_equal(chat_stops(c, stop), 3);
    assert_int_equal(stop[0], 5); /* <end_of_turn> */
    assert_int_equal(stop[1], 1); /* <eos> */
    assert_int_equal(stop[2], 9);
    chat_close(c);
    tok_close(t);
}

/* A model that is a GGUF: the template and the ids that end a reply are in its metadata. */
static void test_a_gguf_has_its_template_and_its_stops(void **state)
{
    (void)state;
    struct gw g = {0};
    struct err e = {0};
    const char *warning;
    int32_t stop[MAX_STOP];
    char *path = xasprintf("%s/x.gguf", folder);
    struct model m = {.cfg = {.family = "qwen3", .stop = {7}, .n_stop = 1}, .dir = path};
    struct message hi = say(ROLE_USER, "Hi");
    for (int bad = 0; bad < 2; bad++) {
        gw_string(&g, "tokenizer.chat_template",
                  "{{- '<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>assistant\n' }}");
        gw_u32(&g, "tokenizer.ggml.eos_token_id", tok_find(bytes, "<|im_end|>"));
        gw_u32(&g, "tokenizer.ggml.eot_token_id", bad ? 1 << 20 : 11);
        gw_u32(&g, "tokenizer.ggml.eom_token_id", UINT32_MAX); /* none */
        struct buf b = gw_bytes(&g);
        FILE *f = fopen(path, "w");
        assert_true(f && fwrite(b.p, 1, b.n, f) == b.n && fclose(f) == 0);
        buf_free(&b);
        struct chat *c = chat_open(&m, bytes, false, &warning, &e);
        if (bad) {
            assert_null(c);
            assert_non_null(strstr(e.msg, "tokenizer.ggml.eot_token_id"));
            break;
        }
        if (!c)
            fail_msg("%s", e.msg);
        assert_string_equal(chat_name(c), "chatml");
        assert_prompt(c, &hi, 1,
                      "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
                                 "<|im_start|>assistant\n");
        assert_non_null(strstr(warning, "the model's chat template"));
        assert_int_equal(chat_stops(c, stop), 4); /* the format's two, the config's and eot */
        assert_int_equal(stop[2], 7);
        assert_int_equal(stop[3], 11);
        chat_close(c);
        c = chat_open(&m, bytes, true, &warning, &e);
        assert_non_null(c);
        assert_int_equal(chat_stops(c, stop), 3); /* raw: the config's and the file's */
        chat_close(c);
    }
    unlink(path);
    free(path);
}

/* ---- reading replies ---- */

/* Each token of ids has produced all of its bytes in the text or none, and together they produced
 * all of it. */
static void assert_spans(const struct ids *ids, const struct buf *text, int first,
                         const struct ids *ends)
{
    size_t at = 0, n;
    assert_true(text->n == 0 || (first >= 0 && ends->n > 0 && first + ends->n <= ids->n));
    for (int i = 0; i < ends->n; i++) {
        const char *p = tok_bytes(bytes, ids->v[first + i], &n);
        if ((size_t)ends->v[i] == at)
            continue;
        assert_int_equal(ends->v[i] - (int)at, n);
        assert_memory_equal(text->p + at, p, n);
        at += n;
    }
    assert_int_equal(at, text->n);
}

/* Reads a reply token by token; every run of one channel is written as "F:", "A:" or "C:", its
 * text, and "|". Returns the number of the first token that shows text. */
static int assert_read(const struct chat *c, const char *said, const char *want)
{
    struct message m = reply(bytes, said);
    struct chat_reader r;
    struct buf all = {0}, out = {0}, text = {0};
    struct ids ends = {0}, spans = {0};
    int now = -1, first = 0;
    chat_reader_init(&r, c);
    r.ends = &ends;
    for (int i = 0; i <= m.ids.n; i++) {
        enum channel channel = r.channel;
        if (i < m.ids.n) {
            chat_reader_push(&r, m.ids.v[i], &out, &channel);
        } else {
            chat_reader_end(&r, &out);
        }
        if (out.n && (int)channel != now)
            buf_printf(&all, "%s%c:", now < 0 ? "" : "|", "FAC"[channel]);
        now = out.n ? (int)channel : now;
        buf_add(&all, out.p, out.n);
        if (out.n)
            chat_reader_spans(&r, text.n, out.n, &first, &spans);
        buf_add(&text, out.p, out.n);
        buf_clear(&out);
    }
    assert_string_equal(all.p ? all.p : "", want);
    assert_spans(&m.ids, &text, first, &spans);
    buf_free(&all);
    buf_free(&out);
    buf_free(&text);
    ids_free(&ends);
    ids_free(&spans);
    ids_free(&m.ids);
    return first;
}

static void test_readers_tell_thoughts_from_answers(void **state)
{
    (void)state;
    struct chat *c = open_chat("gpt_oss", NULL, bytes, NULL);
    assert_read(c, "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary"
                   "<|message|>wait<|end|><|start|>assistant<|channel|>final<|message|>"
                   "4\xE2\x82\xAC<|return|>", "A:hm|C:wait|F:4\xE2\x82\xAC");
    assert_read(c, "<|channel|>final <|constrain|>json<|message|>{}<|return|>", "F:{}");
    assert_read(c, "no header at all", "F:no header at all");
    assert_read(c, "<|channel|>analysis", "");
    /* behind the header that says "final", too */
    assert_int_equal(assert_read(c, "<|channel|>final<|message|>final<|return|>", "F:final"), 7);
    assert_int_equal(assert_read(c, "no message", "F:no message"), 0);
    chat_close(c);

    c = open_chat("gemma4", NULL, bytes, NULL);
    assert_read(c, "<|channel>thought\nhm\nhm<channel|>Hi<turn|>", "A:hm\nhm|F:Hi");
    assert_read(c, "plain<turn|>", "F:plain");
    assert_int_equal(assert_read(c, "<|channel>hm\nhm<channel|>Hi<turn|>", "A:hm|F:Hi"), 4);
    assert_read(c, "4\xE2\x82\xAC<|channel>thought\n\xE2\x82\xAC<channel|>!",
                "F:4\xE2\x82\xAC|A:\xE2\x82\xAC|F:!");
    chat_close(c);

    c = open_chat("qwen3", NULL, bytes, NULL);
    assert_read(c, "<think>\nh</thin m</think>\n\nHi <b><|im_end|>", "A:\nh</thin m|F:Hi <b>");
    assert_read(c, "<th", "F:<th");
    assert_read(c, "  <think>h\xE2\x82\xAC</\xE2\x82\xAC</think> \n4",
                "A:h\xE2\x82\xAC</\xE2\x82\xAC|F:4");
    assert_read(c, "Hi <think> is a tag", "F:Hi <think> is a tag");
    assert_read(c, "<think>never ends </thin", "A:never ends </thin");
    chat_close(c);

    c = open_with_template("olmo3", "'<|im_start|>assistant\\n<think>'", NULL);
    assert_read(c, "hm</think>Hi<|im_end|>", "A:hm|F:Hi");
    chat_close(c);

    c = open_chat("gemma3", NULL, bytes, NULL);
    assert_read(c, "Hi <think>\xF0\x9F\x98\x80<end_of_turn>", "F:Hi <think>\xF0\x9F\x98\x80");
    chat_close(c);
}

/* Text events of a reply in several channels, posted in steps of several tokens: each event is of
 * one channel, and the bytes that events give to a token are all of that token's, or none. */
static void post_in_steps(const struct chat *c, const struct ids *said, int step, const char *want)
{
    struct engine g = {.base = {.screen = evq_new(64)}};
    struct buf text = {0}, shown = {0}, *of = xcalloc((size_t)said->n, sizeof *of);
    struct ids ends = {0};
    struct chat_reader r;
    struct event ev;
    chat_reader_init(&r, c);
    r.ends = &ends;
    for (int at = 0; at < said->n; at += step)
        engine_post_tokens(&g, &r, said->v + at, said->n - at < step ? said->n - at : step, &text,
                           NULL);
    engine_post_held(&g, &r, &text, NULL);
    for (int now = -1; evq_get(g.base.screen, &ev); event_free(&ev)) {
        if (ev.channel != now)
            buf_printf(&shown, "|%c:", "FAC"[now = ev.channel]);
        buf_add(&shown, ev.text.p, ev.text.n);
        assert_int_equal(ev.ends.v[ev.ends.n - 1], ev.text.n);
        for (int i = 0, from = 0; i < ev.ends.n; from = ev.ends.v[i++])
            buf_add(&of[ev.first + i], ev.text.p + from, (size_t)(ev.ends.v[i] - from));
    }
    assert_string_equal(shown.p, want);
    for (int i = 0; i < said->n; i++) {
        size_t n;
        const char *p = tok_bytes(bytes, said->v[i], &n);
        assert_true(of[i].n == 0 || (of[i].n == n && memcmp(of[i].p, p, n) == 0));
        buf_free(&of[i]);
    }
    evq_free(g.base.screen);
    free(of);
    ids_free(&ends);
    buf_free(&text);
    buf_free(&shown);
}

static void test_text_events_name_their_tokens(void **state)
{
    (void)state;
    struct chat *c = open_chat("gpt_oss", NULL, bytes, NULL);
    struct message m = reply(bytes,
                             "<|channel|>analysis<|message|>h\xE2\x82\xAC<|end|><|start|>assistant<|channel|>"
                                    "final<|message|>final \xF0\x9F\x98\x80 4<|return|>");
    ids_add(&m.ids, 0xE2); /* a character that is never completed */
    for (int step = 1; step < 12; step++)
        post_in_steps(c, &m.ids, step, "|A:h\xE2\x82\xAC|F:final \xF0\x9F\x98\x80 4");
    ids_free(&m.ids);
    chat_close(c);
    c = open_chat("qwen3", NULL, bytes, NULL);
    m = reply(bytes, "<think>a\xE2\x82\xAC<b</think>\n\nF\xF0\x9F\x98\x80");
    for (int step = 1; step < 12; step++)
        post_in_steps(c, &m.ids, step, "|A:a\xE2\x82\xAC<b|F:F\xF0\x9F\x98\x80");
    ids_add(&m.ids, 0xE2);
    post_in_steps(c, &m.ids, 5, "|A:a\xE2\x82\xAC<b|F:F\xF0\x9F\x98\x80\xE2");
    ids_free(&m.ids);
    chat_close(c);
}

/* ---- functions ------------------------------------------------------------------------------- */

/* OpenAI's messages; the calls of assistants belong to the list. */
static int take_messages(const json_t *list, struct message *out)
{
    static const char *const roles[] = {"system", "user", "assistant", "tool"};
    json_t *m, *call;
    size_t i, k;
    json_array_foreach(list, i, m) {
        const char *role = json_string_value(json_object_get(m, "role"));
        json_t *calls = json_object_get(m, "tool_calls");
        out[i] = say(ROLE_SYSTEM, json_string_value(json_object_get(m, "content")));
        while (strcmp(roles[out[i].role], role) != 0)
            out[i].role++;
        if (calls) {
            json_t *plain = json_array();
            json_array_foreach(calls, k, call)
                json_array_append(plain, json_object_get(call, "function"));
            json_object_set_new(m, "plain", plain);
            out[i].calls = plain;
        }
        if (out[i].role == ROLE_TOOL) /* ids are "c" and the name */
            out[i].name = json_string_value(json_object_get(m, "tool_call_id")) + 1;
    }
    return (int)json_array_size(list);
}

static void test_functions_are_rendered_as_the_templates_render_them(void **state)
{
    (void)state;
    json_t *all = json_load_file("tests/tokenizers/tools.json", 0, NULL), *one;
    size_t i;
    assert_true(json_array_size(all) > 20);
    json_array_foreach(all, i, one) {
        const char *family = json_string_value(json_object_get(one, "family"));
        const char *template = !strcmp(family, "llama")    ? "Cutting Knowledge Date: December 2023"
                               : !strcmp(family, "gemma4") ? "<|channel>thought\\n<channel|>"
                               : !strcmp(family, "qwen2")  ? QWEN2_SYSTEM
                                                           : NULL;
        struct chat *c = template ? open_with_template(family, template, NULL)
                                  : open_chat(family, NULL, bytes, NULL);
        struct chat_style style = {.tools = json_object_get(one, "tools")};
        struct message m[16];
        struct ids ids = {0};
        struct buf text = {0};
        struct err e;
        assert_true(chat_set_date(c, "2024-07-26", &e));
        assert_true(chat_has_style(c, &style, &e));
        int n = take_messages(json_object_get(one, "messages"), m);
        if (!chat_render_in(c, &style, m, n, &ids, &e))
            fail_msg("%s", e.msg);
        tok_decode(bytes, ids.v, ids.n, &text);
        assert_string_equal(text.p, json_string_value(json_object_get(one, "text")));
        buf_free(&text);
        ids_free(&ids);
        chat_close(c);
    }
    json_decref(all);
}

/* No template of gemma-2 or 3 has functions: the words are those of Google's guide. */
static void test_gemma_is_asked_in_the_words_of_its_guide(void **state)
{
    (void)state;
    json_t *tools = json_loads("[{\"type\": \"function\", \"function\": {\"name\": \"now\", "
                               "\"parameters\": {\"type\": \"object\", \"properties\": {}}}}]", 0,
                               NULL);
    json_t *calls = json_loads("[{\"name\": \"now\", \"arguments\": {}}]", 0, NULL);
    struct chat *c = open_chat("gemma3", NULL, bytes, NULL);
    struct chat_style style = {.tools = tools};
    struct ids ids = {0};
    struct buf text = {0};
    struct err e;
    struct message m[] = {say(ROLE_SYSTEM, "Be brief."), say(ROLE_USER, " What time is it? "),
                          say(ROLE_ASSISTANT, NULL), say(ROLE_TOOL, "noon"),
                          say(ROLE_TOOL, "12:00"), say(ROLE_ASSISTANT, "Noon."),
                          say(ROLE_USER, "Sure?")};
    m[2].calls = calls;
    assert_true(chat_has_style(c, &style, &e));
    if (!chat_render_in(c, &style, m, 7, &ids, &e))
        fail_msg("%s", e.msg);
    tok_decode(bytes, ids.v, ids.n, &text);
    assert_string_equal(text.p,
        "<bos><start_of_turn>user\nBe brief.\n\n"
        "You have access to functions. If you decide to invoke any of the function(s),\n"
        "you MUST put it in the format of\n"
        "{\"name\": function name, \"parameters\": dictionary of argument name and its value}\n\n"
        "You SHOULD NOT include any other text in the response if you call a function\n"
        "[\n  {\n    \"name\": \"now\",\n    \"parameters\": {\n      \"type\": \"object\",\n"
        "      \"properties\": {}\n    }\n  }\n]\nWhat time is it?<end_of_turn>\n"
        "<start_of_turn>model\n{\"name\": \"now\", \"parameters\": {}}<end_of_turn>\n"
        "<start_of_turn>user\n<tool_response>\nnoon\n</tool_response>\n"
        "<tool_response>\n12:00\n</tool_response><end_of_turn>\n"
        "<start_of_turn>model\nNoon.<end_of_turn>\n<start_of_turn>user\nSure?<end_of_turn>\n"
        "<start_of_turn>model\n");
    assert_true(chat_render_in(c, &style, m, 5, &ids, &e)); /* the results come last */
    assert_false(chat_render_in(c, &style, m + 3, 1, &ids, &e)); /* of no call */
    assert_non_null(strstr(e.msg, "message 1 is of role tool"));
    ids.n = 0;
    buf_clear(&text);
    m[2].calls = NULL;
    m[2].text = (char *)(uintptr_t)"It is";
    assert_true(chat_render_in(c, &(struct chat_style){0}, m + 1, 2, &ids, &e));
    tok_decode(bytes, ids.v, ids.n, &text);
    assert_string_equal(text.p, /* a reply comes last: another one follows, as in the template */
        "<bos><start_of_turn>user\nWhat time is it?<end_of_turn>\n"
        "<start_of_turn>model\nIt is<end_of_turn>\n<start_of_turn>model\n");
    buf_free(&text);
    ids_free(&ids);
    chat_close(c);
    json_decref(calls);
    json_decref(tools);
}

/* They stand in the prompt as they came. */
static void test_arguments_that_are_no_object_are_a_text(void **state)
{
    static const char *const families[] = {"qwen3", "llama", "gpt_oss", "gemma4", "gemma3"};
    (void)state;
    json_t *calls = json_loads("[{\"name\": \"now\", \"arguments\": \"{\\\"a\\\": [1, \"}]", 0,
                               NULL);
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        struct chat *c = open_chat(families[i], NULL, bytes, NULL);
        struct message m[] = {say(ROLE_USER, "What time is it?"), say(ROLE_ASSISTANT, NULL),
                              say(ROLE_TOOL, "noon")};
        struct ids ids = {0};
        struct buf text = {0};
        struct err e;
        m[1].calls = calls;
        m[2].name = "now";
        if (!chat_render_in(c, &(struct chat_style){0}, m, 3, &ids, &e))
            fail_msg("%s: %s", families[i], e.msg);
        tok_decode(bytes, ids.v, ids.n, &text);
        if (!strstr(text.p, "{\"a\": [1, "))
            fail_msg("%s: %s", families[i], text.p);
        buf_free(&text);
        ids_free(&ids);
        chat_close(c);
    }
    json_decref(calls);
}

/* Reads a reply token by token; *text: what is no call. */
static void read_calls(const char *family, const char *reply_text, struct call_reader *x,
                       struct buf *text)
{
    struct chat *c = open_chat(family, NULL, bytes, NULL);
    struct message m = reply(bytes, reply_text);
    struct chat_reader r;
    enum channel channel;
    chat_reader_init(&r, c);
    call_reader_init(x, c);
    buf_str(text, "");
    for (int i = 0; i < m.ids.n; i++) {
        struct buf out = {0};
        chat_reader_push(&r, m.ids.v[i], &out, &channel);
        call_reader_push(x, &r, channel, out.p ? out.p : "", out.n, text);
        buf_free(&out);
    }
    struct buf rest = {0};
    chat_reader_end(&r, &rest);
    call_reader_push(x, &r, CHAN_FINAL, rest.p ? rest.p : "", rest.n, text);
    call_reader_end(x, text);
    buf_free(&rest);
    ids_free(&m.ids);
    chat_close(c);
}

static void test_calls_are_read_from_replies(void **state)
{
    (void)state;
    static const struct {
        const char *family, *reply, *text, *calls;
    } cases[] = {
        {"qwen3", "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": "
                  "1}}\n</tool_call><|im_end|>",
         "", "f{\"a\": 1}"},
        {"qwen3", "Wait.\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n<tool_call>\n"
         "{\"name\": \"g\"}\n</tool_call>", "Wait.\n", "f{}g{}"},
        {"qwen3", "a <tool_cal b <tool_call>no</tool_call> c", "a <tool_cal b "
         "<tool_call>no</tool_call> c", ""},
        {"qwen3", "<think>\nx <tool_call>\n</think>\n\nText", "Text", ""},
        {"qwen3", "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"</tool\"}}", "",
         "f{\"a\": \"</tool\"}"},
        {"qwen3", "<tool_call>\n{\"name\": \"f\", \"argum",
         "<tool_call>\n{\"name\": \"f\", \"argum", ""},
        {"llama", "{\"name\": \"f\", \"parameters\": {\"a\": [1]}}<|eot_id|>", "", "f{\"a\": [1]}"},
        {"llama", "{\"a\": 1}", "{\"a\": 1}", ""},
        {"llama", "It is {\"name\": \"f\"}", "It is {\"name\": \"f\"}", ""},
        {"gemma3", "{\"name\": \"f\", \"parameters\": {\"a\": [1]}}<end_of_turn>", "",
         "f{\"a\": [1]}"},
        {"gemma3", "```json\n{\"name\": \"f\", \"parameters\": {\"a\": \"`\"}}\n```", "",
         "f{\"a\": \"`\"}"},
        {"gemma3", "```json\n{\"a\": 1}\n```", "```json\n{\"a\": 1}\n```", ""},
        {"gemma3", "```json\n[1]\n```", "```json\n[1]\n```", ""},
        {"gemma3", "```js", "```js", ""},
        {"gemma3", "```c\nint x;\n```", "```c\nint x;\n```", ""},
        {"gemma3", "It is warm.", "It is warm.", ""},
        {"gemma4", "<|channel>thought\n<|tool_call>call:g{}<tool_call|><channel|>"
                   "<|tool_call>call:f{a:1,b:<|\"|>x \"y\"{:<|\"|>,c:[true,None,{d:-2.5}],"
                   "<|\"|>e,<|\"|>:warm}<tool_call|><|tool_response>", "",
         "f{\"a\": 1, \"b\": \"x \\\"y\\\"{:\", \"c\": [true, null, {\"d\": -2.5}], "
         "\"e,\": \"warm\"}"},
        {"gemma4", "Wait.\n<|tool_call>call:f{}<tool_call|>\n<|tool_call> call: g {\"a\": "
                   "\"<|\\\"}\"} <tool_call|>", "Wait.\n", "f{}g{\"a\": \"<|\\\"}\"}"},
        {"gemma4", "a <|tool_call>call:f{a<tool_call|> b", "a <|tool_call>call:f{a<tool_call|> b",
         ""},
        {"gemma4", "<|tool_call>call:f{a:[1,]}<tool_call|>",
         "<|tool_call>call:f{a:[1,]}<tool_call|>", ""},
        {"gemma4", "<|tool_call>call:f{}", "", "f{}"},
        {"gemma4", "It is <|tool_cal warm.<turn|>", "It is <|tool_cal warm.", ""},
        {"gpt_oss", "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant "
                    "to=functions.f<|channel|>"
         "commentary json<|message|>{\"a\":1}<|call|>", "", "f{\"a\":1}"},
        {"gpt_oss",
         "<|channel|>commentary to=functions.get_x <|constrain|>json<|message|>{}<|call|>",
         "", "get_x{}"},
        {"gpt_oss", "<|channel|>final<|message|>Yes<|return|>", "Yes", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct call_reader x;
        struct buf text = {0}, calls = {0};
        read_calls(cases[i].family, cases[i].reply, &x, &text);
        buf_str(&calls, "");
        for (int k = 0; k < x.n; k++)
            buf_printf(&calls, "%s%s", x.call[k].name, x.call[k].arguments);
        assert_string_equal(text.p, cases[i].text);
        assert_string_equal(calls.p, cases[i].calls);
        call_reader_free(&x);
        buf_free(&text);
        buf_free(&calls);
    }
}

/* A reply may hold NUL: bytes that are no call are text whole, also where a reply ends in a
 * call. */
static void test_text_with_nul_is_whole(void **state)
{
    (void)state;
    static const char said[] = "<tool_call>a\0b</tool_call> c <tool_call>d\0e";
    struct chat *c = open_chat("qwen3", NULL, bytes, NULL);
    struct chat_reader r;
    struct call_reader x;
    struct buf text = {0};
    chat_reader_init(&r, c);
    call_reader_init(&x, c);
    call_reader_push(&x, &r, CHAN_FINAL, said, sizeof said - 1, &text);
    call_reader_end(&x, &text);
    assert_int_equal(text.n, sizeof said - 1);
    assert_memory_equal(text.p, said, text.n);
    call_reader_free(&x);
    buf_free(&text);
    chat_close(c);
}

/* Whatever a reply holds, nothing of it is lost: it is calls, or text. */
static void test_spoilt_calls_are_text(void **state)
{
    (void)state;
    static const char whole[] = "<|tool_call>call:f{a:[1,<|\"|>x<|\"|>],b:{c:\"y\"}}<tool_call|>";
    static const char part[] = "{}[],:\"\\<|>cx1 \n";
    uint64_t seed = 3;
    for (int round = 0; round < 3000; round++) {
        char reply_text[sizeof whole];
        struct call_reader x;
        struct buf text = {0};
        memcpy(reply_text, whole, sizeof whole);
        for (int k = (int)(mix64(seed++) % 4); k >= 0; k--, seed += 2)
            reply_text[12 + mix64(seed) % (sizeof whole - 25)] = /* the two tags stay */
                part[mix64(seed + 1) % (sizeof part - 1)];
        read_calls("gemma4", reply_text, &x, &text);
        if (x.n == 0)
            assert_string_equal(text.p, reply_text);
        for (int k = 0; k < x.n; k++) {
            json_t *o = json_loads(x.call[k].arguments, 0, NULL);
            assert_true(x.call[k].name[0] && json_is_object(o));
            json_decref(o);
        }
        call_reader_free(&x);
        buf_free(&text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_functions_are_rendered_as_the_templates_render_them),
        cmocka_unit_test(test_gemma_is_asked_in_the_words_of_its_guide),
        cmocka_unit_test(test_arguments_that_are_no_object_are_a_text),
        cmocka_unit_test(test_calls_are_read_from_replies),
        cmocka_unit_test(test_text_with_nul_is_whole),
        cmocka_unit_test(test_spoilt_calls_are_text),
        cmocka_unit_test(test_bundled_prompts_equal_the_reference),
        cmocka_unit_test(test_a_turn_more_begins_with_prompt_and_reply),
        cmocka_unit_test(test_gemma_folds_the_system_prompt_and_trims),
        cmocka_unit_test(test_gemma4_has_a_system_turn_and_drops_thoughts),
        cmocka_unit_test(test_harmony_writes_its_system_message_and_rewrites_history),
        cmocka_unit_test(test_chatml_sends_answers_back_without_thoughts),
        cmocka_unit_test(test_qwen2_has_a_system_message_of_its_own),
        cmocka_unit_test(test_olmo_takes_its_texts_from_the_template),
        cmocka_unit_test(test_roles_that_are_markers),
        cmocka_unit_test(test_format_of_granite),
        cmocka_unit_test(test_formats_of_command_and_llama_4),
        cmocka_unit_test(test_phi_formats_follow_the_tokenizer_and_the_template),
        cmocka_unit_test(test_a_marker_may_include_the_white_space_behind_it),
        cmocka_unit_test(test_exaone_sends_empty_thoughts_back),
        cmocka_unit_test(test_smollm_writes_its_system_turn),
        cmocka_unit_test(test_llama3_headers_and_dates),
        cmocka_unit_test(test_raw_is_the_text_itself),
        cmocka_unit_test(test_pasted_markers_stay_text),
        cmocka_unit_test(test_conversations_out_of_order_are_refused),
        cmocka_unit_test(test_later_system_messages),
        cmocka_unit_test(test_ids_outside_of_the_model_are_refused),
        cmocka_unit_test(test_missing_markers_and_unknown_families),
        cmocka_unit_test(test_templates_are_compared),
        cmocka_unit_test(test_stops_are_the_formats_then_the_configs),
        cmocka_unit_test(test_a_gguf_has_its_template_and_its_stops),
        cmocka_unit_test(test_readers_tell_thoughts_from_answers),
        cmocka_unit_test(test_text_events_name_their_tokens),
    };
    return cmocka_run_group_tests(tests, open_bytes, close_bytes);
}
