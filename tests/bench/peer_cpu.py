#!/usr/bin/env python3
"""aerie serve and llama.cpp's server in turn on one CPU: loading, first token, prompts, decoding, memory.

    peer_cpu.py --aerie PROGRAM [--llama PROGRAM] --model NAME=FOLDER,FILE.gguf[,DECODE]... [--threads N,...] [--rounds N] [--json FILE]

Without --llama the server is that of the PyPI package xllamacpp (llama_server.py), whose loading time has that of Python in it.

Both get the same model in bf16, as many threads, a context of 4,096 tokens, one conversation, and the same requests over
HTTP; time is taken here. Each round starts each server once, in turn, and asks three times: a short question right
away, a prompt of about --prompt tokens for one token, and --decode tokens (or the model's own number: many where a token takes little time) after a short prompt. The table gives
medians over the rounds; load: until /health answers 200; first: from the start of the process to the first token of
the short question; CPU: of all threads, while decoding; PSS: after the last answer; peak: VmHWM. aerie's further flags: --aerie-flags.
"""
import argparse
import http.client
import json
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

WORDS = "fox bear river stone cup lamp garden winter bread letter sail music door cloud horse wheel".split()


def llama_server(program):
    """How llama.cpp's server is started, and what its environment needs. program: a llama-server, whose libraries may lie beside it;
    None: xllamacpp's."""
    if not program:
        return [sys.executable, str(pathlib.Path(__file__).with_name("llama_server.py"))], {}
    libraries = os.path.dirname(os.path.abspath(program)) + ":" + os.environ.get("LD_LIBRARY_PATH", "")
    return [program], {"LD_LIBRARY_PATH": libraries}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def text(n, salt):
    """About n tokens: common words in an order of their own for each salt, so that no prefix is reused."""
    return f"{salt} " + " ".join(WORDS[(i * (salt + 3) + i // 7) % len(WORDS)] for i in range(n))


class Server:
    """A server that is being started. log: a file that can be read, for what it prints."""

    def __init__(self, argv, env, log):
        self.port = free_port()
        self.log = log
        self.start = time.monotonic()
        try:
            self.process = subprocess.Popen([*argv, "--port", str(self.port)], env=env, stdin=subprocess.DEVNULL, stdout=log,
                                            stderr=log)
        except OSError as e:
            raise SystemExit(f"{argv[0]} cannot be started: {e.strerror}")

    def fail(self, why):
        self.log.seek(0)
        raise SystemExit("\n  ".join([f"{' '.join(map(str, self.process.args))}", why, *self.log.read().splitlines()[-5:]]))

    def wait(self, limit=120):
        while time.monotonic() - self.start < limit:
            if self.process.poll() is not None:
                self.fail(f"ended with status {self.process.returncode}:")
            try:
                c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
                c.request("GET", "/health")
                if c.getresponse().status == 200:
                    return time.monotonic() - self.start
            except OSError:
                pass
            time.sleep(0.002)
        self.fail(f"did not answer within {limit} s:")

    def ask(self, prompt, n):
        """When it was asked, when each chunk came, and the counts of tokens; with llama-server's own timings."""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        body = {"model": "m", "prompt": prompt, "max_tokens": n, "temperature": 0, "stream": True, "ignore_eos": True,
                "stream_options": {"include_usage": True}}
        begin = time.monotonic()
        c.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = c.getresponse()
        if answer.status != 200:
            raise SystemExit(f"{self.process.args[0]}: {answer.read(500)}")
        at, usage = [], {}
        for line in answer:
            if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                continue
            chunk = json.loads(line[6:])
            usage |= chunk.get("usage") or {}
            usage |= chunk.get("timings") or {}
            if chunk.get("choices"):
                at.append(time.monotonic())
        return begin, at, usage

    def cpu(self):
        """Processor seconds that all its threads have used."""
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self):
        """Peak resident and proportional set size, in MB; what the system does not tell is left out."""
        out = {}
        for key, path, line in (("peak MB", "status", "VmHWM"), ("PSS MB", "smaps_rollup", "Pss")):
            try:
                text = pathlib.Path(f"/proc/{self.process.pid}/{path}").read_text()
            except OSError:
                continue
            out |= {key: int(x.split()[1]) * 1024 / 1e6 for x in text.splitlines() if x.startswith(line + ":")}
        return out

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def one_round(argv, env, log, a, decode, salt):
    s = Server(argv, env, log)
    out = {}
    try:
        out["load s"] = s.wait()
        _, at, usage = s.ask("Tell me a story.", 4)
        out["first s"] = at[0] - s.start
        begin, at, usage = s.ask(text(a.prompt, salt), 1)
        out["prompt tok/s"] = usage["prompt_tokens"] / (at[0] - begin)
        used = s.cpu()
        begin, at, usage = s.ask(f"{salt} Tell me a long story about a fox and a bear.", decode)
        n = usage["completion_tokens"]
        # chunks may hold several tokens: the rate is that of the tokens behind the first
        out["decode tok/s"] = (n - 1) / (at[-1] - at[0])
        out["CPU ms/token"] = (s.cpu() - used) / n * 1e3
        out["own decode tok/s"] = usage.get("predicted_per_second")
        out |= s.memory()
    finally:
        s.end()
    return out


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--aerie", required=True)
    p.add_argument("--llama", help="llama-server; its libraries are looked for beside it")
    p.add_argument("--model", action="append", required=True, metavar="NAME=FOLDER,GGUF")
    p.add_argument("--threads", default="2")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--prompt", type=int, default=440, help="words of the long prompt")
    p.add_argument("--decode", type=int, default=48)
    p.add_argument("--aerie-flags", default="")
    p.add_argument("--limit", type=float, default=1e9, help="seconds after which no further round begins")
    p.add_argument("--json", type=pathlib.Path)
    a = p.parse_args()
    began, results = time.monotonic(), []
    with tempfile.TemporaryDirectory() as home, open(os.path.join(home, "log"), "w+") as log:
        env = os.environ | {"XDG_DATA_HOME": home, "XDG_CONFIG_HOME": home, "XDG_STATE_HOME": home}
        peer, beside = llama_server(a.llama)
        for model in a.model:
            name, paths = model.split("=", 1)
            folder, gguf, *decode = paths.split(",")
            for threads in a.threads.split(","):
                sides = {
                    "aerie": ([a.aerie, "serve", "-m", folder, "--device", "cpu", "--no-spec", "--lanes", "1", "--context",
                               "4096", "--threads", threads, "--model-name", "m", "--no-log", *a.aerie_flags.split()], env),
                    "llama": ([*peer, "-m", gguf, "-t", threads, "-c", "4096", "-np", "1", "--no-webui"], env | beside)}
                got = {side: [] for side in sides}
                for r in range(a.rounds):
                    if time.monotonic() - began > a.limit:
                        break
                    for side in list(sides) if r % 2 == 0 else list(sides)[::-1]:
                        argv, e = sides[side]
                        got[side].append(one_round(argv, e, log, a, int(decode[0]) if decode else a.decode, r + 1))
                        results.append({"model": name, "threads": int(threads), "side": side, **got[side][-1]})
                if got["aerie"]:
                    table(name, threads, got)
    if a.json:
        a.json.write_text("".join(json.dumps(r) + "\n" for r in results))


def table(name, threads, got):
    print(f"\n{name}, {threads} threads, {len(got['aerie'])} rounds (medians; range)")
    print(f"{'':14}{'aerie':>24}{'llama.cpp':>26}{'aerie / llama':>15}")
    for key in [k for k, v in got["aerie"][0].items() if v and got["llama"][0].get(k)]:
        mine, peer = ([r[key] for r in got[side]] for side in ("aerie", "llama"))
        m, q = statistics.median(mine), statistics.median(peer)
        show = lambda v, mid: f"{mid:9.4g} ({min(v):.4g}..{max(v):.4g})"
        print(f"{key:14}{show(mine, m):>24}{show(peer, q):>26}{m / q:>15.2f}")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
