#!/usr/bin/env python3
"""lm-eval's local-completions over aerie serve, on the bundled model.

    lm_eval.py AERIE OUT_FOLDER [--docs 200] [--check 60]

Makes a task of its own: held-out questions (tests/prompts.txt), whose right answers are the local engine's greedy
replies and whose wrong ones are those to other questions. Four log likelihoods and one generation a question. The
task runs four times: server drafting or not, one client or eight at once. All scores must be equal, digit for digit;
a part of the log likelihoods is computed again with numpy (score.py). Besides, eight clients send requests of many
kinds at once (sampled, echoed, with stop words), and each is compared with the same request alone. Needs
lm_eval[api], transformers (for the tokenizer) and numpy. Prints a table; exit 1 if anything differs.
"""
import argparse
import concurrent.futures
import glob
import json
import os
import pathlib
import re
import subprocess
import sys
import time
import urllib.request

import numpy as np

import score

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "models/nestling/target"
TASK = """
task: aerie_{name}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {file}
test_split: test
output_type: {kind}
doc_to_text: context
{more}
"""
CHOICE = "doc_to_choice: choices\ndoc_to_target: 0\nmetric_list:\n  - metric: acc"
TEXT = """doc_to_target: reply
generation_kwargs:
  until: ["<end_of_turn>"]
  max_gen_toks: 200
  temperature: 0
metric_list:
  - metric: exact_match
"""


def environment(folder):
    return os.environ | {f"XDG_{k}_HOME": str(folder) for k in ("DATA", "CONFIG", "STATE")} | {
        "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(folder / "cache"), "HF_HOME": str(folder / "cache")}


def make_task(a):
    """Writes the questions with their answers, and the two tasks. Returns the documents."""
    prompts = [l.split("\t")[1] for l in (ROOT / "tests/prompts.txt").read_text().splitlines() if l and l[0] != "#"]
    prompts = prompts[:a.docs]
    batch = a.out / "prompts.jsonl"
    batch.write_text("".join(json.dumps({"prompt": p}) + "\n" for p in prompts))
    out = subprocess.run([a.aerie, "run", "-n", "-p", "temperature=0", "--batch", batch], env=environment(a.out),
                         capture_output=True, text=True, check=True).stdout
    replies = [json.loads(l)["reply"] for l in out.splitlines()]
    docs = []
    for i, (p, r) in enumerate(zip(prompts, replies)):
        wrong = [replies[(i + k) % len(replies)] for k in (7, 31, 77)]
        docs.append({"context": f"<bos><start_of_turn>user\n{p.strip()}<end_of_turn>\n<start_of_turn>model\n",
                     "choices": [r] + wrong, "reply": r})
    file = a.out / "docs.jsonl"
    file.write_text("".join(json.dumps(d) + "\n" for d in docs))
    tasks = a.out / "tasks"
    tasks.mkdir(exist_ok=True)
    for name, kind, more in (("choice", "multiple_choice", CHOICE), ("text", "generate_until", TEXT)):
        more = more + "\ntarget_delimiter: \"\"" if name == "choice" else more
        (tasks / f"{name}.yaml").write_text(TASK.format(name=name, file=file, kind=kind, more=more))
    return docs


class Server:
    def __init__(self, a, *flags):
        self.p = subprocess.Popen([a.aerie, "serve", "--port", "0", "-n", *flags], env=environment(a.out),
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        line = self.p.stdout.readline()
        self.url = re.search(r"http://[^/ ]*", line)[0]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.p.terminate()
        self.p.wait()


def evaluate(a, name, url, clients):
    """Scores and samples of one run of lm-eval."""
    out = a.out / name
    args = (f"base_url={url}/v1/completions,model=nestling,tokenizer={MODEL},tokenizer_backend=huggingface,"
            f"num_concurrent={clients},max_length=4096,max_retries=1")
    begin = time.monotonic()
    r = subprocess.run([sys.executable, "-m", "lm_eval", "run", "--model", "local-completions", "--model_args", args, "--tasks",
                        "aerie_choice,aerie_text", "--include_path", a.out / "tasks", "--output_path", out,
                        "--log_samples", "--batch_size", "1"], env=environment(a.out), capture_output=True, text=True)
    if r.returncode:
        raise SystemExit(f"lm-eval failed ({name}):\n{r.stdout[-3000:]}\n{r.stderr[-5000:]}")
    seconds = time.monotonic() - begin
    samples = {}
    for kind in ("choice", "text"):
        file = sorted(glob.glob(f"{out}/**/samples_aerie_{kind}_*.jsonl", recursive=True))[-1]
        samples[kind] = sorted((json.loads(l) for l in open(file)), key=lambda s: s["doc_id"])
    results = json.load(open(sorted(glob.glob(f"{out}/**/results_*.json", recursive=True))[-1]))["results"]
    return {"acc": results["aerie_choice"]["acc,none"], "match": results["aerie_text"]["exact_match,none"],
            "loglikelihoods": [[float(r[0][0]) for r in s["resps"]] for s in samples["choice"]],
            "texts": [s["resps"][0][0] for s in samples["text"]], "seconds": seconds}


def own(a, docs, run):
    """The greatest difference of log likelihoods from numpy's, of how many."""
    from tokenizers import Tokenizer
    c, w = score.load(MODEL)
    tok = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    worst, n = 0.0, 0
    for i in range(0, len(docs), max(1, len(docs) * 4 // a.check)):
        context = tok.encode(docs[i]["context"], add_special_tokens=False).ids
        for k, choice in enumerate(docs[i]["choices"]):
            ids = tok.encode(docs[i]["context"] + choice, add_special_tokens=False).ids
            assert ids[:len(context)] == context
            p = score.log_probabilities(c, w, np.array(ids))
            total = sum(p[j - 1, ids[j]] for j in range(len(context), len(ids)))
            worst, n = max(worst, abs(total - run["loglikelihoods"][i][k])), n + 1
    return worst, n


def post(url, body):
    q = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(q, timeout=300))


def at_once(docs, url, requests, clients):
    """Requests of many kinds by many clients; returns how many choices differ from the same request alone."""
    bodies = []
    for i in range(requests):
        d = docs[i % len(docs)]
        b = {"model": "nestling", "prompt": d["context"], "max_tokens": 8 + i % 40, "logprobs": i % 5, "temperature": 0.0}
        if i % 3 == 1:
            b |= {"temperature": 0.9, "seed": i, "top_p": 0.95}
        if i % 4 == 2:
            b |= {"prompt": d["context"] + d["choices"][i % 4], "echo": True}
        if i % 7 == 3:
            b |= {"stop": ["the", "."]}
        bodies.append(b)

    def ask(b):
        return json.dumps(post(url, b)["choices"], sort_keys=True)

    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        many = list(pool.map(ask, bodies))
    return sum(x != ask(b) for x, b in zip(many, bodies)), many


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("aerie")
    p.add_argument("out", type=pathlib.Path)
    p.add_argument("--docs", type=int, default=200)
    p.add_argument("--check", type=int, default=60)
    p.add_argument("--requests", type=int, default=1000)
    a = p.parse_args()
    a.aerie, a.out = os.path.abspath(a.aerie), a.out.resolve()
    a.out.mkdir(parents=True, exist_ok=True)
    docs = make_task(a)
    runs, replies, bad = {}, {}, 0
    for mode, flags in (("drafting", []), ("plain", ["--no-spec"])):
        with Server(a, *flags) as s:
            for clients in (1, 8):
                runs[f"{mode}, {clients} at once"] = evaluate(a, f"{mode}-{clients}", s.url, clients)
            n, replies[mode] = at_once(docs, s.url, a.requests, 8)
            print(f"{mode}: {a.requests} requests by 8 clients at once: {n} differ from the same request alone", flush=True)
            bad += n
    n = sum(x != y for x, y in zip(*replies.values()))
    print(f"drafting and plain: {n} of {a.requests} answers differ")
    first = next(iter(runs.values()))
    print("| server, clients | acc | exact match | log likelihoods | texts | s |\n|---|---|---|---|---|---|")
    for name, r in runs.items():
        differ = [sum(x != y for x, y in zip(r[k], first[k])) for k in ("loglikelihoods", "texts")]
        print(f"| {name} | {r['acc']:.4f} | {r['match']:.4f} | {4 * len(docs)}, {differ[0]} questions differ | "
              f"{len(docs)}, {differ[1]} differ | {r['seconds']:.0f} |")
        bad += sum(differ)
    worst, k = own(a, docs, first)
    print(f"numpy, float64: {k} log likelihoods, the greatest difference is {worst:.2g} nats")
    sys.exit(int(bad + n > 0 or worst > 1e-3))


main()
