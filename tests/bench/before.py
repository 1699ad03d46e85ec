#!/usr/bin/env python3
"""What another build of aerie answers otherwise: its JSON answers, its texts and its screens.

    before.py OLD NEW MODEL DRAFT [--only TEXT]

OLD and NEW are programs, MODEL and DRAFT one folder for both. Each makes a log of its own of the same prompts and
settings, answers the same commands over it, and is typed the same keys at 80x24 and 120x40. Times, speeds, sizes of
processes, names of machines, paths and random ids are replaced first. Members of JSON are compared by their path,
without indices, so that one difference is one line:

    COMMAND: .steps[].tree[].p: only in the new one: 0.91

Nothing here gates a test: a difference is judged by a person. Needs tmux.
"""
import argparse
import difflib
import json
import os
import re
import shutil
import subprocess
import tempfile
import time

TALK = ["My dog is called Rex.", "What is my dog called?", "Tell me a story about a fox."]
CHAT = """/stats /accept /accept|turn /accept|context /accept|window /accept|page /accept|kind /timing /tree /tree|2.1
/pages|full /pages|swa /page|0|full /map|20 /pool /why /why|2.1 /why|3.2.1 /tokens /tokens|5|12 /top|0 /top|3.2 /layers /attn|3
/plan /check /bug /where /breaks /sessions /search|dog /set /set|seed|7 /set|nothing|1 /title|A|dog /at|2.1 /tree /pool
/at|live /diff|1 /what-if|draft.topk=2 /undo /pool /nothing /map|9999 /goto|1.1 /system /regen /fork|1""".split()
ASK = """logs;show last;show 1;show last:2;show last:3.2;logs -q dog;logs -m nothing;stats;diff 1 2;diff 1 2 --log-only
replay 1 --check;replay 1 --with draft.topk=2;replay 1 --with seed=9;replay 2 --with bug.24617=on;replay 2 --with check=strict;diff 1 --with page_size=8
diff 2 --with bug.24617=off;triage last;export 1;pack 1 -o P.db;show P.db;bugs;bugs --try 24617;doctor -m MODEL --draft DRAFT
fit MODEL;tokenize -m MODEL WORDS;db path;db check;golden GOLDEN;parity PROMPTS -m MODEL --draft DRAFT --a spec=on --b spec=off;run -m MODEL --draft DRAFT --batch PROMPTS
show 99;show last:9;replay 99 --check;-m /nowhere run x;run -p nothing=1 x;db sql 'select turn,step,nodes,accepted from v_step'""".replace("\n", ";").split(";")
KEYS = [["=My dog is called Rex.", "Enter"], ["=What is my dog called?", "Enter"], ["F2"], ["F2", "F3"], ["F3", "F4"], ["F4", "F5"],
        ["F5", "=/layout debug", "Enter"], ["=/layout wide", "Enter"], ["=/layout chat", "Enter"], ["C-x", "["], ["C-x", "["],
        ["C-x", "t"], ["Enter"], ["Escape", "C-x", "."], ["=/why", "Enter"], ["=/accept", "Enter"], ["F8"], ["Escape", "=/se", "Tab"]]
TIMES = re.compile(r"(^us_|_|^)(us_.*|writer|ms|us|ns|s|time|times|when|started|ended|created|used|rss|host|cpu|pid|sha|digest_of_build|build|version|"
                   r"uuid|db|tok_s|tokens_s|seconds|speed|bytes_free|free|available|machine|commit|gib|duration)$")
MASKS = [(r"\b01[0-9A-HJKMNP-TV-Z]{24}\b", "ID"), (r"\b(build|seal) [0-9a-f]{12}\b", r"\1 HEX"), (r"microseconds .*", "TIMES"),
         (r"^  (draft|verify|accept|commit|follow|check|prefill) +\d+ +\d+ +\d+$", r"  \1 TIMES"), (r"\([0-9.]+%\)", "(SHARE)"),
         (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}", "UUID"), (r"\b[0-9a-f]{64}\b", "SHA"), (r"\b[0-9][0-9.,]*k? ?(tok(ens)?|t)/s", "N t/s"),
         (r"(?<![\w.])[0-9.]+ ?(ms|us|µs|s)\b", "T"), (r"20\d\d-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?Z?", "WHEN"), (r"\b\d\d:\d\d(:\d\d)?\b", "WHEN"),
         (r"\b(just now|\d+ (s|min|h|seconds?|minutes?) ago)\b", "AGO"), (r"[0-9.]+ [KMG]iB", "SIZE"), (r"[▁▂▃▄▅▆▇█]+", "BARS"),
         (r"\b(head) \d+:", r"\1 N:"), (r"aerie 0\.[0-9.]+\S*( \([^)]*\))?", "AERIE"), (r"/tmp/[\w./-]+", "PATH")]


def masked(text):
    for a, b in MASKS:
        text = re.sub(a, b, text)
    return text.rstrip()


class Side:
    def __init__(self, program, a):
        self.dir = tempfile.mkdtemp(prefix="aerie-before-")
        self.aerie, self.model = os.path.abspath(program), ["-m", a.model, "--draft", a.draft]
        self.words = {"MODEL": a.model, "DRAFT": a.draft, "GOLDEN": a.golden, "WORDS": self.file("words", "My dog, 12 dogs."),
                      "PROMPTS": self.file("p.jsonl", "".join(json.dumps({"prompt": t}) + "\n" for t in TALK))}
        self.env = dict(os.environ, HOME=self.dir, LC_ALL="C.UTF-8", COLUMNS="100", TERM="screen-256color",
                        **{f"XDG_{x}_HOME": f"{self.dir}/{x}" for x in ("DATA", "CONFIG", "STATE", "CACHE")})
        for unset in ("TMUX", "NO_COLOR"):
            self.env.pop(unset, None)

    def file(self, name, text):
        with open(f"{self.dir}/{name}", "w") as f:
            f.write(text)
        return f"{self.dir}/{name}"

    def run(self, args, text="", seconds=120):
        try:
            p = subprocess.run([self.aerie] + args, input=text, capture_output=True, text=True, errors="replace", cwd=self.dir,
                               env=self.env, timeout=seconds)
        except subprocess.TimeoutExpired:
            return f"(longer than {seconds} s)\n"
        return p.stdout + "".join(f"! {x}\n" for x in p.stderr.splitlines()) + (f"(status {p.returncode})\n" if p.returncode else "")

    def chat(self, more, text):
        return self.run(self.model + ["--threads", "1", "--seed", "5"] + more, text)

    def answers(self):
        """(what was asked, the answer)"""
        talk = "\n".join(TALK) + "\n"
        yield "chat --plain", self.chat(["--plain"], talk)
        yield "chat --json", self.chat(["--json", "-p", "draft.topk=2", "-p", "draft.nodes=12", "--bug", "24617", "--check", "off"], talk)
        for how in ("--plain", "--json"):
            lines = "".join(c.replace("|", " ") + "\n" for c in CHAT)
            parts = self.chat([how, "-n", "--threads", "1"], talk + lines)
            yield f"commands {how}", parts
        for ask in ASK:
            words = [self.words.get(w, w) for w in re.findall(r"'[^']*'|\S+", ask)]
            words = [w.strip("'") for w in words]
            for how in ([], ["--json"]):
                if how and ask.startswith(("export", "pack", "tokenize")):
                    continue
                yield " ".join([ask] + how), self.run(words + how)
                if os.path.exists(f"{self.dir}/P.db") and ask.startswith("pack"):
                    os.chmod(f"{self.dir}/P.db", 0o600)

    def screens(self, size):
        """(keys, the screen when it has been still)"""
        name = os.path.basename(self.dir)
        tmux = ["tmux", "-L", name, "-f", "/dev/null"]
        at = dict(env=self.env, cwd=self.dir, capture_output=True, text=True)
        w, h = size.split("x")
        subprocess.run(tmux + ["new-session", "-d", "-x", w, "-y", h, self.aerie] + self.model +
                       ["-n", "--threads", "1", "--seed", "5"], **at)

        def still():
            last, same, end = None, 0, time.monotonic() + 25
            while same < 4 and time.monotonic() < end:
                time.sleep(0.2)
                now = masked(subprocess.run(tmux + ["capture-pane", "-p"], **at).stdout)
                same, last = (same + 1 if now == last else 0), now
            return last
        yield f"{size} start", still()
        for keys in KEYS:
            for k in keys:
                subprocess.run(tmux + ["send-keys"] + (["-l", k[1:]] if k[0] == "=" else [k]), **at)
                time.sleep(0.15)
            yield f"{size} {' '.join(keys)}", still()
        subprocess.run(tmux + ["kill-server"], **at)


def flat(v, path, out):
    """Values by path; indices of lists are left out, so all that stand at one path make a list."""
    if isinstance(v, dict):
        for k, x in v.items():
            flat(x, path + "." + k, out)
    elif isinstance(v, list):
        for x in v:
            flat(x, path + "[]", out)
    elif isinstance(v, str) and "\n" in v and "temperature=" in v:
        flat(dict(x.split("=", 1) for x in v.splitlines() if "=" in x), path, out)
    else:
        out.setdefault(path, []).append("T" if TIMES.search(path.split(".")[-1].strip("[]")) else masked(v) if isinstance(v, str) else v)
    return out


def members(text):
    """A text of lines of JSON, or one value, as members by path; None: it is no JSON."""
    out = {}
    try:
        return flat(json.loads(text), "", out)
    except ValueError:
        pass
    lines = [x for x in text.splitlines() if x]
    for x in lines:
        try:
            v = json.loads(x)
        except ValueError:
            if x[0] == "{":
                return None
            v = {"text": x}
        flat(v, "{%s}" % v["event"] if isinstance(v, dict) and isinstance(v.get("event"), str) else "", out)
    return out if any(x[0] == "{" for x in lines) else None


def brief(v):
    v = [x for n, x in enumerate(v) if n == 0 or x != v[n - 1]]
    s = ", ".join(json.dumps(x, ensure_ascii=False) if not isinstance(x, str) else x for x in v[:3]) + (" ..." if len(v) > 3 else "")
    return s if len(s) < 150 else s[:147] + "..."


def compare(what, a, b):
    x, y = members(a), members(b)
    if x is None or y is None:
        a, b = ([masked(s) for s in t.splitlines()] for t in (a, b))
        return [d for d in difflib.unified_diff(a, b, lineterm="", n=0) if d[0] in "+-" and d[:3] not in ("+++", "---")]
    out = [f"{k}: only in the old one: {brief(x[k])}" for k in x if k not in y]
    out += [f"{k}: only in the new one: {brief(y[k])}" for k in y if k not in x]
    for k in x:
        if k in y and x[k] != y[k]:
            n = next((i for i, (p, q) in enumerate(zip(x[k], y[k])) if p != q), min(len(x[k]), len(y[k])))
            out.append(f"{k}: {len(x[k])} and {len(y[k])} values, the first that differs: {brief(x[k][n:n + 1])} | {brief(y[k][n:n + 1])}")
    return out


def main():
    p = argparse.ArgumentParser()
    p.add_argument("old"), p.add_argument("new"), p.add_argument("model"), p.add_argument("draft")
    p.add_argument("--only", default="")
    p.add_argument("--golden", default=os.path.abspath(os.path.join(os.path.dirname(__file__), "../golden/gemma3-b")))
    a = p.parse_args()
    a.model, a.draft = os.path.abspath(a.model), os.path.abspath(a.draft)
    old, new = Side(a.old, a), Side(a.new, a)
    n = equal = 0
    for kind in ("answers", "80x24", "120x40"):
        both = [list(s.answers() if kind == "answers" else s.screens(kind)) for s in (old, new)]
        for (what, x), (_, y) in zip(*both):
            if a.only and a.only not in what and not what.startswith("chat"):
                continue
            found = compare(what, x.replace(old.dir, "DIR"), y.replace(new.dir, "DIR"))
            n, equal = n + 1, equal + (not found)
            for line in found:
                print(f"{what}: {line}", flush=True)
    print(f"{n} answers and screens, {equal} equal")
    for s in (old, new):
        shutil.rmtree(s.dir)


if __name__ == "__main__":
    main()
