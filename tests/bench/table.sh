#!/bin/bash
# Figures of `aerie bench --json` for people.
#   tests/bench/table.sh lines FILE     every line, in columns
#   tests/bench/table.sh readme FILE    the README's table; rows whose lines are missing are left out
#   tests/bench/table.sh vllm FILE      the table beside vLLM in tests/README.md, of the models of which FILE has both sides (h200-vllm.jsonl)
# A line that is there more than once counts as it came last.
case $1 in lines | readme | vllm) ;; *) echo "usage: $0 lines|readme|vllm FILE" >&2; exit 2 ;; esac
exec awk -v mode="$1" '
function text(key) { return match($0, "\"" key "\":\"[^\"]*\"") ? substr($0, RSTART + length(key) + 4, RLENGTH - length(key) - 5) : "" }
function number(key) { return match($0, "\"" key "\":[-0-9.e+]+") ? substr($0, RSTART + length(key) + 3, RLENGTH - length(key) - 3) + 0 : "" }
function digits(v) { return v == "" ? "-" : v >= 1000 ? sprintf("%.0f", v) : v >= 100 ? sprintf("%.1f", v) : v >= 10 ? sprintf("%.2f", v) : v >= 1 ? sprintf("%.3f", v) : sprintf("%.4f", v) }
function grouped(v,    s) { s = sprintf("%.0f", v); return length(s) > 3 ? substr(s, 1, length(s) - 3) "," substr(s, length(s) - 2) : s }
function value_of(v, u) { return u == "us" ? sprintf(v < 10 ? "%.1f" : "%.0f", v) : u == "x plain" ? sprintf("%.2f", v) : grouped(v) }
/"device":/ { device = text("device") }
/"name":/ {
    n = text("name"); ms[n] = number("ms"); spread[n] = number("spread"); bytes[n] = number("bytes")
    ratio[n] = number("ratio"); value[n] = number("value"); unit[n] = text("unit"); shape[n] = text("shape")
    if (mode == "lines")
        printf "%-26s %10s %9s %10s %5s %9s %-8s %s\n", n, digits(ms[n]), digits(spread[n]),
               bytes[n] == "" ? "-" : sprintf("%.2f", bytes[n] / 1e6), ratio[n] == "" ? "-" : sprintf("%.2f", ratio[n]),
               unit[n] == "" ? "" : digits(value[n]), unit[n], shape[n]
}
# names: lines of one row; how: "ms", "value" or both, and whether R is told
function row(label, names, how, with_ratio,    list, count, i, n, a, b, r) {
    count = split(names, list, " ")
    for (i = 1; i <= count; i++) {
        n = list[i]
        if (ms[n] == "") return
        a = a (i > 1 ? " / " : "") (ms[n] < 10 ? sprintf("%.2f", ms[n]) : sprintf("%.1f", ms[n]))
        b = b (i > 1 ? " / " : "") value_of(value[n], unit[n])
        r = r (i > 1 ? " / " : "") (ratio[n] == "" ? "-" : sprintf("%.2f", ratio[n]))
    }
    a = a " ms"; b = b " " unit[n]
    printf "| %s | %s | %s |\n", label, how == "ms" ? a : how == "value" ? b : a ": " b, with_ratio ? r : ""
}
# One row of the table beside vLLM: tokens/s of a step behind 4,096 cells, and a prompt of 4,096 tokens.
function beside(label, m) {
    if (ms["vllm.step." m ".4k"] == "" || ms["step." m ".4k"] == "") return
    printf "| %s | %s | %s | %.1f | %.1f |\n", label, grouped(1e3 / ms["step." m ".4k"]), grouped(1e3 / ms["vllm.step." m ".4k"]),
           ms["prefill." m ".4k"], ms["vllm.prefill." m ".4k"]
}
END {
    if (mode == "vllm") {
        print "| one H200, made-up weights, 4k of context | aerie, tok/s | vLLM 0.26.0, tok/s | prompt of 4,096: aerie, ms | vLLM, ms |\n|---|---|---|---|---|"
        beside("gpt-oss-20b, experts in MXFP4", "20b")
        beside("gemma-3-4b, bf16", "g4b")
        beside("gemma-3-1b, bf16", "g1b")
        beside("gemma-3-270m, bf16", "g270m")
        beside("gemma-3-4b, weights in FP8 (vLLM: activations, too)", "g4b.E4M3")
        beside("gemma-3-27b, the same", "g27b.E4M3")
        beside("qwen3-30b-a3b, the same", "q30b.E4M3")
    }
    if (mode != "readme") exit
    print "| one conversation on an H200; gpt-oss and gemma with made-up weights, the bundled model with its own | | R |\n|---|---|---|"
    row("gpt-oss-20b, plain step at 4k / 128k of context", "step.20b.4k step.20b.128k", "both", 1)
    row("gpt-oss-120b, the same", "step.120b.4k step.120b.128k", "both", 1)
    row("gemma-3-4b, plain step at 4k", "step.g4b.4k", "both", 1)
    row("gemma-3-27b, the same", "step.g27b.4k", "both", 1)
    row("4 / 16 rows verified: gpt-oss-20b", "verify.20b.T4 verify.20b.T16", "ms", 1)
    row("4 / 16 rows verified: gemma-3-4b", "verify.g4b.T4 verify.g4b.T16", "ms", 1)
    row("one step of an EAGLE3 head: gpt-oss-20b / gemma-3-4b", "draft.step.20b draft.step.g4b", "value", 1)
    row("cycles with a scripted acceptance: gpt-oss-20b 3-1-4 at 2.35", "cycle.20b.3-1-4", "value", 0)
    row("5-8-60 at 4.0: gemma-3-4b / gemma-3-27b", "cycle.g4b.5-8-60 cycle.g27b.5-8-60", "value", 0)
    row("prefill of 4,096 tokens: gemma-3-4b / gpt-oss-20b (R: of cuBLASLt)", "prefill.g4b.4k prefill.20b.4k", "both", 1)
    row("attention of 1 row over 131,072 keys, 8/4 heads of 256 / 64/8 of 64", "attn.full.d256.128k.T1 attn.full.d64.128k.T1", "value", 1)
    row("the bundled model in a chat: plain / default chain of 5", "chat.nestling.plain chat.nestling.spec", "value", 0)
    row("the same on the full screen (R: of the same in lines)", "repl.tui.nestling.plain repl.tui.nestling.spec", "value", 1)
    row("host time of a cycle beyond the device: plain / 3-1-4 / 5-8-60", "cycle.host.nestling.plain cycle.host.nestling.3-1-4 cycle.host.nestling.5-8-60", "value", 0)
}' "$2"
