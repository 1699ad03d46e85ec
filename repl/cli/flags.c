/* flags.c - see flags.h. */
#include "repl/cli/flags.h"

#include <stddef.h>

#define AT(field) .at = offsetof(struct cli, field)

const struct flag flags[] = {
    /* flags of single commands come first: after the command their letters take precedence */
    {{"query", "WORDS", "logs: sessions in which these words occur", OPT_TEXT, AT(query)},
     .where = IN_LOGS, .letter = 'q', .group = "Commands' own"},
    {{"limit", "N", "logs, stats: at most N sessions (20)", OPT_INT, AT(limit), 1, 1000000},
     .where = IN_LOGS | IN_STATS, .letter = 'n'},
    {{"model", "NAME", "logs: sessions with this model", OPT_TEXT, AT(model_filter)},
     .where = IN_LOGS, .letter = 'm'},
    {{"limit", "N", "parity, kl: prompts; probe, triage: cases, requests", OPT_INT, AT(most), 1,
     1000000}, .where = IN_PARITY | IN_KL | IN_PROBE | IN_TRIAGE, .letter = 'n'},
    {{"a", "NAME=VALUE", "parity: how one side is computed; remote:URL, local", OPT_TEXT, AT(a)},
     .where = IN_PARITY, .act = F_TEXTS},
    {{"b", "NAME=VALUE", "parity: the other (spec=on, spec=off); repeatable", OPT_TEXT, AT(b)},
     .where = IN_PARITY, .act = F_TEXTS},
    {{"arm", "NAME=VALUE,...", "parity: one more side; repeatable", OPT_TEXT, AT(arm)},
     .where = IN_PARITY, .act = F_TEXTS},
    {{"kl", "", "parity: read replies as prompts, too, as aerie kl", OPT_FLAG, AT(kl)},
     .where = IN_PARITY},
    {{"control", "", "parity: compute replies of servers twice, compare", OPT_FLAG, AT(control)},
     .where = IN_PARITY},
    {{"check", "", "replay: run it again and compare; -v shows the turns", OPT_FLAG, AT(check)},
     .where = IN_REPLAY},
    {{"with", "NAME=VALUE...", "replay, diff: change a setting, a fault or an option", OPT_TEXT,
     AT(with)}, .where = IN_REPLAY | IN_DIFF, .act = F_TEXTS},
    {{"log-only", "", "diff: compare the logs of A and B, and run no model", OPT_FLAG,
     AT(log_only)}, .where = IN_DIFF},
    {{"goto", "T.S", "replay: run again to this step, and pause there", OPT_TEXT, AT(goto_step)},
     .where = IN_REPLAY},
    {{"forced", "", "replay, diff: give the recorded tokens, compare", OPT_FLAG, AT(forced)},
     .where = IN_REPLAY | IN_DIFF},
    {{"format", "jsonl|md", "export: the format (default: as FILE ends)", OPT_TEXT, AT(format)},
     .where = IN_EXPORT},
    {{"output", "FILE", "file to write, not standard output", OPT_TEXT, AT(out)},
     .where = IN_EXPORT | IN_PACK | IN_PROBE | IN_CHECK, .letter = 'o'},
    {{"minutes", "N", "probe: for so long (else three rounds)", OPT_INT, AT(minutes), 1, 100000},
     .where = IN_PROBE},
    {{"state", "FILE", "probe: keep what was done, and go on from there", OPT_TEXT, AT(state)},
     .where = IN_PROBE},
    {{"shape", "NAME=N", "probe: page, window, drafts, pool, ... of the server", OPT_TEXT,
     AT(shape)}, .where = IN_PROBE, .act = F_TEXTS},
    {{"steps", "A..B", "pack: trees of TURN.STEP..TURN.STEP, no later turn", OPT_TEXT, AT(steps)},
     .where = IN_PACK},
    {{"with-text", "", "pack: keep messages, replies and titles", OPT_FLAG, AT(with_text)},
     .where = IN_PACK},
    {{"plan", "T.S", "pack: also page tables and tree of step T.S as JSON", OPT_TEXT, AT(plan)},
     .where = IN_PACK},
    {{"issue", "ENGINE", "pack, probe: a report for sglang, vllm or llama.cpp", OPT_TEXT,
     AT(issue)}, .where = IN_PACK | IN_PROBE, .set = "sglang|vllm|llama.cpp"},
    {{"no-ids", "", "pack: leave token ids out, too", OPT_FLAG, AT(no_ids)}, .where = IN_PACK},
    {{"older-than", "DAYS", "db prune: remove sessions not used for DAYS", OPT_INT, AT(older_than),
     0, 100000}, .where = IN_DB},
    {{"keep", "N", "db prune: keep the N sessions used last", OPT_INT, AT(keep), 0, 10000000},
     .where = IN_DB},
    {{"to-size", "MB", "db prune: until the log takes MB", OPT_INT, AT(to_size), 0, 10000000},
     .where = IN_DB},
    {{"dry-run", "", "db prune, remove: only say what would be removed", OPT_FLAG, AT(dry_run)},
     .where = IN_DB},
    {{"head", "N:HEX", "db check: the log's past must have this head", OPT_TEXT, AT(head)},
     .where = IN_DB},
    {{"special", "", "tokenize: match special tokens in the text", OPT_FLAG, AT(special)},
     .where = IN_TOKENIZE},
    {{"jsonl", "", "tokenize: {\"text\":..} a line in, {\"ids\":[..]} out", OPT_FLAG, AT(jsonl)},
     .where = IN_TOKENIZE},

    {{"port", "N", "serve: the port (8080); 0: any that is free", OPT_INT, AT(port), 0, 65535},
     .where = IN_SERVE},
    {{"host", "ADDRESS", "serve: the address (127.0.0.1); others need a key", OPT_TEXT, AT(host)},
     .where = IN_SERVE},
    {{"api-key-file", "FILE", "serve: clients must send this file's first line", OPT_TEXT,
     AT(key_file)}, .where = IN_SERVE},
    {{"model-name", "NAME", "serve: the model's name for clients", OPT_TEXT, AT(name)},
     .where = IN_SERVE},
    {{"cors", "ORIGIN", "serve: pages of this origin may ask, in browsers", OPT_TEXT, AT(cors)},
     .where = IN_SERVE},
    {{"verbose", "", "serve: a line for each request", OPT_FLAG, AT(opt.verbose)},
     .where = IN_SERVE, .letter = 'v'},
    {{"try", "NUMBER|NAME", "bugs: run the input that shows it, checked and not", OPT_TEXT,
     AT(attempt)}, .where = IN_BUGS},
    {{"synthetic", "MODEL", "bench: a published model with made-up weights", OPT_TEXT,
     AT(synthetic)}, .where = IN_BENCH,
     .set = "gpt-oss-20b|gpt-oss-120b|gemma-3-270m|gemma-3-1b|gemma-3-4b|gemma-3-27b|gemma-4-E4B|"
            "gemma-4-31B|gemma-4-26B-A4B|qwen3-30b-a3b|small-moe-32|small-moe-128"},
    {{"cublas", "FILE", "bench: measure prompts against this cuBLASLt", OPT_TEXT, AT(cublas)},
     .where = IN_BENCH},
    {{"short", "", "bench: fewer lines and repetitions", OPT_FLAG, AT(brief)}, .where = IN_BENCH},
    {{.name = "model"}, .where = IN_MODEL | IN_PROBE | IN_TOKENIZE | IN_BUGS | IN_BENCH | IN_FIT |
     IN_DUMP, .letter = 'm',
     .group = "Model", .act = F_ENGINE},
    {{.name = "draft"}, .where = IN_MODEL | IN_GOLDEN | IN_BUGS | IN_BENCH | IN_FIT,
     .act = F_ENGINE},
    {{.name = "require-draft"}, .where = IN_TALK | IN_SERVE, .act = F_ENGINE},
    {{.name = "eagle-capture"}, .where = IN_ENGINE | IN_GOLDEN | IN_FIT, .act = F_ENGINE},
    {{.name = "device"}, .where = IN_MODEL | IN_GOLDEN | IN_BENCH | IN_FIT | IN_DUMP,
     .act = F_ENGINE},
    {{.name = "precision"}, .where = IN_MODEL | IN_GOLDEN | IN_BENCH | IN_FIT | IN_DUMP,
     .act = F_ENGINE},
    {{.name = "kv"}, .where = IN_MODEL | IN_GOLDEN | IN_BENCH | IN_FIT | IN_DUMP,
     .act = F_ENGINE},
    {{.name = "weights"}, .where = IN_ENGINE | IN_REPLAY | IN_DIFF | IN_BENCH | IN_FIT,
     .act = F_ENGINE},
    {{.name = "draft-weights"}, .where = IN_ENGINE | IN_REPLAY | IN_DIFF | IN_BENCH | IN_FIT,
     .act = F_ENGINE},
    {{.name = "load"}, .where = IN_ENGINE | IN_REPLAY | IN_DIFF | IN_BENCH | IN_TRIAGE,
     .act = F_ENGINE},
    {{.name = "threads"}, .where = IN_ENGINE | IN_REPLAY | IN_DIFF | IN_PACK | IN_GOLDEN |
     IN_BENCH | IN_FIT | IN_DUMP | IN_TRIAGE, .act = F_ENGINE},
    {{.name = "raw"}, .where = IN_ENGINE, .act = F_ENGINE},

    {{"remote", "URL", "chat with a server: SGLang, vLLM, llama-server, ...", OPT_TEXT,
     AT(opt.engine.server.url)}, .where = IN_TALK | IN_DOCTOR, .group = "Server"},
    {{"api-key-file", "FILE", "the key for the server, in the file's first line", OPT_TEXT,
     AT(opt.engine.server.key_file)}, .where = IN_TALK | IN_DOCTOR | IN_PARITY | IN_KL | IN_PROBE |
     IN_TRIAGE},
    {{"kv-events", "ADDRESS", "its KV events: tcp://HOST:PORT[,replay=tcp://..]", OPT_TEXT,
     AT(opt.engine.server.kv_events)}, .where = IN_TALK | IN_DOCTOR},
    {{"header", "NAME:VALUE", "send this header to the server, too; repeatable", OPT_TEXT,
     AT(header)}, .where = IN_TALK | IN_DOCTOR | IN_PARITY | IN_KL | IN_PROBE |
     IN_TRIAGE, .act = F_TEXTS},

    {{"break", "EXPR", "pause after steps where this holds; repeatable", OPT_TEXT, AT(breaks)},
     .where = IN_TALK, .group = "Debugger", .act = F_TEXTS},

    {{"param", "NAME=VALUE", "set any setting (list below); repeatable", .kind = OPT_TEXT},
     .where = IN_ENGINE, .letter = 'p', .group = "Reply", .act = F_PARAM},
    {{"system", "TEXT", "system prompt", OPT_TEXT, AT(opt.system)},
     .where = IN_ENGINE & ~(IN_SERVE | IN_KL), .letter = 's'},
    {{"seed", "N", "where the random numbers start", .kind = OPT_TEXT}, .where = IN_ENGINE,
     .act = F_SET, .set = "seed"},
    {{"check", "off|on|strict", "how much is checked before each pass (default on)",
     .kind = OPT_TEXT}, .where = IN_ENGINE, .act = F_SET, .set = "check"},
    {{"bug", "NAME[=VARIANT]", "switch a historical fault on (aerie bugs lists them)",
     .kind = OPT_TEXT}, .where = IN_ENGINE, .act = F_BUG},
    {{"no-spec", "", "decode without speculative drafting", .kind = OPT_FLAG},
     .where = IN_TALK | IN_SERVE, .act = F_SET, .set = "spec=off"},
    {{"no-graph", "", "CUDA: launch kernel by kernel, no CUDA graphs", .kind = OPT_FLAG},
     .where = IN_ENGINE, .act = F_SET, .set = "graph=off"},
    {{"file", "FILE", "put a file's text behind the prompt", OPT_TEXT, AT(opt.file)},
     .where = IN_RUN, .letter = 'f'},
    {{"batch", "FILE", "many prompts: {\"prompt\":..} a line in, a result out", OPT_TEXT,
     AT(batch)}, .where = IN_RUN},
    {{"lanes", "N", "batch, parity, serve: prompts at once (default 8)", OPT_INT, AT(lanes), 1, 32},
     .where = IN_RUN | IN_PARITY | IN_SERVE | IN_FIT},

    {{.name = "context"}, .where = IN_ENGINE | IN_FIT, .group = "Memory", .act = F_ENGINE},
    {{.name = "page-size"}, .where = IN_ENGINE | IN_FIT | IN_DUMP | IN_IMPORT, .act = F_ENGINE},
    {{.name = "full-pages"}, .where = IN_ENGINE | IN_FIT, .act = F_ENGINE},
    {{.name = "swa-pages"}, .where = IN_ENGINE | IN_FIT, .act = F_ENGINE},

    {{"continue", "", "continue the latest session", OPT_FLAG, AT(opt.resume_last)},
     .where = IN_TALK, .letter = 'c', .group = "Session"},
    {{"session", "ID", "continue this session: a number (aerie logs), an id", OPT_TEXT,
     AT(opt.session)}, .where = IN_TALK},
    {{"fork", "", "with -c or --session: continue a copy of it", OPT_FLAG, AT(opt.fork)},
     .where = IN_TALK},
    {{"log-level", "off|text|steps|tree", "how much is saved (default tree)", OPT_WORD,
     AT(opt.level)}, .where = IN_TALK | IN_SERVE},
    {{"no-log", "", "save nothing", OPT_INT, AT(opt.level), .usual = LOG_OFF},
     .where = IN_TALK | IN_SERVE | IN_PROBE, .letter = 'n', .act = F_CONST},
    {{"db", "PATH", "the session database (default: see aerie db path)", OPT_TEXT, AT(opt.db)},
     .where = IN_LOG},
    {{"seal", "KEYFILE", "seal what is saved with a key; db check: verify", OPT_TEXT, AT(opt.seal)},
     .where = IN_TALK | IN_SERVE | IN_IMPORT | IN_DB},
    {{"keep-days", "N", "at start, remove sessions not used for N days", OPT_INT, AT(opt.keep_days),
     1, 100000}, .where = IN_TALK | IN_SERVE},
    {{"keep-sessions", "N", "at start, remove all but the N used last", OPT_INT,
     AT(opt.keep_sessions), 1, 10000000}, .where = IN_TALK | IN_SERVE},
    {{"max-size", "MB", "the log's size limit; a warning from 90 % on", OPT_INT, AT(opt.max_size),
     1, 10000000}, .where = IN_TALK | IN_SERVE},
    {{"at-limit", "warn|stop", "at the size limit: save on (warn), or save no turn", OPT_WORD,
     AT(opt.at_limit)}, .where = IN_TALK | IN_SERVE},

    {{"plain", "", "plain lines instead of the full screen", OPT_FLAG, AT(opt.plain)},
     .where = IN_CHAT | IN_REPLAY, .group = "Screen"},
    {{"tui", "", "full screen, or an error", OPT_FLAG, AT(opt.tui)}, .where = IN_CHAT | IN_REPLAY},
    {{"script", "FILE", "read lines from a file; implies --plain", OPT_TEXT, AT(opt.script)},
     .where = IN_CHAT | IN_REPLAY},
    {{"json", "", "JSON for machines; chat: implies --plain", OPT_FLAG, AT(opt.json)},
     .where = (IN_ENGINE & ~IN_SERVE) | IN_LOGS | IN_STATS | IN_SHOW | IN_REPLAY | IN_DIFF | IN_DB |
              IN_DOCTOR | IN_TRIAGE |
              IN_GOLDEN | IN_BUGS | IN_BENCH | IN_PACK | IN_IMPORT | IN_FIT | IN_PROBE |
              IN_CHECK | IN_DUMP},
    {{"ascii", "", "no line or block characters", OPT_FLAG, AT(opt.ascii)}, .where = IN_ALL},
    {{"color", "auto|always|never", "colours on standard output", OPT_WORD, AT(opt.color)},
     .where = IN_ALL},
    {{"theme", "auto|dark|light", "colours of the full screen (auto asks the terminal)", OPT_WORD,
     AT(opt.theme)}, .where = IN_CHAT | IN_REPLAY},
    {{"no-mouse", "", "the full screen takes no clicks", OPT_INT, AT(opt.mouse), .usual = 1},
     .where = IN_CHAT | IN_REPLAY, .act = F_CONST},
    {{"readonly", "", "save nothing, and refuse every command that writes", OPT_FLAG,
     AT(opt.readonly)}, .where = IN_CHAT},
    {{"sanitize", "auto|always|never", "escape control characters when piped", OPT_WORD,
     AT(opt.sanitize)}, .where = IN_TALK},
    {{"no-sandbox", "", "may write anywhere, run programs, use the network", OPT_FLAG,
     AT(no_sandbox)}, .where = IN_ALL},
    {{"quiet", "", "no notices on standard error", OPT_FLAG, AT(opt.quiet)}, .where = IN_ALL,
     .letter = 'q'},
    {{"verbose", "", "a line of statistics after each reply", OPT_FLAG, AT(opt.verbose)},
     .where = IN_TALK | IN_REPLAY, .letter = 'v'},
    {{"help", "", "this text", .kind = OPT_FLAG}, .where = IN_ALL, .letter = 'h', .act = F_HELP},
    {{"version", "", "the version", .kind = OPT_FLAG}, .where = IN_ALL, .letter = 'V',
     .act = F_VERSION},
};
const int n_flags = LEN(flags);

const struct flag *find_flag(const char *name, size_t n, char letter, int where)
{
    for (int i = 0; i < n_flags; i++)
        if ((flags[i].where & where) &&
            (letter ? flags[i].letter == letter
                    : strlen(flags[i].row.name) == n && memcmp(flags[i].row.name, name, n) == 0))
            return &flags[i];
    return NULL;
}

const struct option *row_of(const struct flag *f)
{
    const struct option *row = f->act == F_ENGINE ? opts_find(f->row.name) : &f->row;
    CHECK(row);
    return row;
}

const char *arg_of(const struct flag *f)
{
    const char *range = row_of(f)->range;
    return *range ? range : NULL;
}

bool cli_asks_server(const struct cli *c, int command)
{
    const char *word = c->n_word ? c->word[0] : "";
    bool url = !strncmp(word, "http://", 7) || !strncmp(word, "https://", 8);
    return c->opt.engine.server.url || command == IN_PROBE || (command == IN_TRIAGE && url) ||
           (command == IN_KL && strcmp(word, "local") != 0);
}
