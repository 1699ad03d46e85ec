#!/usr/bin/env python3
"""schemas.py [N] [--aerie PROGRAM] [--model MODEL] [--jobs N] - replies of random JSON schemas: valid, and equal with and
without drafts.

Asks two `aerie serve`, one of which does not draft, for N replies (10000) of schemas drawn by chance, each with its own
prompt, seed and temperature. Every complete reply is held against its schema by jsonschema, every reply against that of
the other server. --jobs: so many pairs of servers side by side, each with its share of the schemas and one thread a
server; the replies are those of one pair. --first, --seconds: a part of them, from there on, for so long. Exit 1 if one is not valid or differs. Needs: pip install jsonschema
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

import jsonschema

ROOT = pathlib.Path(__file__).resolve().parents[2]
WORDS = ["a", "ab", "name", "x y", "caf\u00e9", "q\"uote", "b\\s", "kind", "n", "nam"]
PROMPTS = ["A cat.", "What is a page table?", "Give me a list.", "Three colours", "Tell me a story about a fox.", "?"]


def constant(r, depth=1):
    kind = r.randrange(7 if depth else 5)
    return ([r.choice(WORDS), r.randrange(-1000, 1000), r.randrange(-8000, 8000) / 8, r.random() < 0.5, None][kind] if kind < 5
            else [constant(r, 0), constant(r, 0)] if kind == 5 else {r.choice(WORDS): constant(r, 0)})


def number(r):
    s = {"type": r.choice(["integer", "number"])}
    at, wide = r.randrange(-1000, 1000), r.randrange(3, 300)
    if r.random() < 0.3:
        s["multipleOf"] = r.choice([2, 3, 7, 10, 60, 0.5, 0.25, 2.5])
        wide += 61
    if r.random() < 0.7:
        s[r.choice(["minimum", "exclusiveMinimum"])] = at
        s[r.choice(["maximum", "exclusiveMaximum"])] = at + wide
    return s


def text(r):
    s = {"type": "string"}
    if r.random() < 0.8:
        s["minLength"] = r.randrange(5)
        s["maxLength"] = s["minLength"] + r.randrange(20)
    elif r.random() < 0.5:
        s["pattern"] = r.choice(["^[A-Z]{3}-\\d+$", "^(yes|no)$", "^[a-z]{1,8}@x\\.org$"])
    return s


def obj(r, depth):
    names = r.sample(WORDS, r.randrange(1, 5))
    s = {"type": "object", "properties": {n: schema(r, depth - 1) for n in names},
         "required": [n for n in names if r.random() < 0.6]}
    more = r.randrange(4)
    if more < 2:
        s["additionalProperties"] = [False, schema(r, depth - 1)][more]
    return s


def array(r, depth):
    if r.random() < 0.3:
        values = [v for i, v in enumerate(WORDS + [1, True, None]) if r.random() < 0.4] or ["a", "b"]
        return {"type": "array", "uniqueItems": True, "items": {"enum": values[:9]}, "maxItems": 4}
    s = {"type": "array", "items": schema(r, depth - 1), "maxItems": r.randrange(1, 5)}
    if r.random() < 0.5:
        s["minItems"] = r.randrange(s["maxItems"] + 1)
    if r.random() < 0.3:
        s["prefixItems"] = [schema(r, depth - 1)]
    return s


def schema(r, depth=2):
    kinds = [lambda: {"type": r.choice(["boolean", "null"])}, lambda: number(r), lambda: text(r),
             lambda: {"enum": [constant(r), constant(r), r.choice(WORDS)]}, lambda: {"const": constant(r)},
             lambda: {"type": ["integer", "null"]}]
    if depth > 0:
        kinds += [lambda: obj(r, depth), lambda: array(r, depth), lambda: obj(r, depth), lambda: {"$ref": "#/$defs/D"},
                  lambda: {"anyOf": [schema(r, depth - 1), {"type": "null"}]}]
    return r.choice(kinds)()


def ask(url, body):
    r = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(),
                               {"Content-Type": "application/json"})
    try:
        choice = json.load(urllib.request.urlopen(r))["choices"][0]
        return choice["finish_reason"], choice["message"]["content"]
    except urllib.error.HTTPError as e:
        return "refused", json.load(e)["error"]["message"]


def one(urls, i):
    r = random.Random(i)
    top = r.choice([obj, array])(r, 2)
    top["$defs"] = {"D": schema(r, 1)}
    body = {"messages": [{"role": "user", "content": r.choice(PROMPTS)}], "max_tokens": 160, "seed": i,
            "temperature": r.choice([0, 0.7, 1.2]), "response_format": {
                "type": "json_schema", "json_schema": {"name": "x", "schema": top}}}
    a, b = (ask(url, body) for url in urls)
    bad = "" if a == b else "differ: %r and %r" % (a, b)
    if a[0] == "stop":
        try:
            jsonschema.Draft202012Validator(top).validate(json.loads(a[1]))
        except (ValueError, jsonschema.ValidationError) as e:
            bad = "not valid: %s: %s" % (str(e).split("\n")[0], a[1])
    return a[0], bad and "schema %d %s\n  %s" % (i, bad, json.dumps(top)), a[1] if a[0] == "refused" else ""


def serve(a, env, *more):
    """A server on a port of its own: the process, and its URL."""
    some = ["--threads", "1"] if a.jobs > 1 else []
    p = subprocess.Popen([a.aerie, "serve", "--model", a.model, "--port", "0", "--no-log", *some, *more], env=env,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    for line in p.stdout:
        at = re.search(r"http://[0-9.:]+", line)
        if at:
            threading.Thread(target=p.stdout.read, daemon=True).start()
            return p, at.group()
    raise SystemExit("%s serve ended with status %d" % (a.aerie, p.wait()))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("n", type=int, nargs="?", default=10000)
    p.add_argument("--aerie", default=str(ROOT / "build/release-cpu/aerie"))
    p.add_argument("--model", default=str(ROOT / "models/nestling/target"))
    p.add_argument("--jobs", type=int, default=1)
    p.add_argument("--first", type=int, default=0)
    p.add_argument("--seconds", type=float, default=float("inf"))
    a = p.parse_args()
    ends, asked, wrong, refused, start = {}, 0, 0, {}, time.time()
    with tempfile.TemporaryDirectory() as home:
        env = dict(os.environ, XDG_DATA_HOME=home, XDG_STATE_HOME=home, XDG_CONFIG_HOME=home)
        servers = []
        try:
            for _ in range(a.jobs):
                servers += [serve(a, env), serve(a, env, "--no-spec")]
            pair = [[url for _, url in servers[i:i + 2]] for i in range(0, len(servers), 2)]
            with concurrent.futures.ThreadPoolExecutor(8 if a.jobs == 1 else 3 * a.jobs) as pool:
                def ask_one(i):
                    return one(pair[i % a.jobs], i) if time.time() - start < a.seconds else None

                for answer in pool.map(ask_one, range(a.first, a.n)):
                    if answer is None:
                        continue
                    end, bad, why = answer
                    asked += 1
                    ends[end] = ends.get(end, 0) + 1
                    if why:
                        refused[why] = refused.get(why, 0) + 1
                    if bad:
                        wrong += 1
                        print(bad, flush=True)
        finally:
            for s, _ in servers:
                s.terminate()
                s.wait()
    print("replies by how they ended: %s" % ends)
    for why, n in sorted(refused.items(), key=lambda x: -x[1]):
        print("refused %d: %s" % (n, why))
    print("%d of %d from %d on wrong, %.0f s" % (wrong, asked, a.first, time.time() - start))
    return wrong > 0 or not ends.get("stop")


if __name__ == "__main__":
    sys.exit(main())
