#!/usr/bin/env python3
"""What aerie costs beside curl on the same stream of a server: time to the first text, and the whole reply.

    overhead.py URL [--aerie PROGRAM] [--pairs 30] [--tokens 200] [--prompt TEXT] [--name WORDS] [--screen]

Each pair sends the same request twice: aerie's own body once through curl, once in a running chat session of
aerie in lines (every reply is taken out of the context with /undo again), in alternating order. Times are taken
here, at the ends of the pipes. aerie's begin when its line is written; so they hold its reading, its request, its log
and its output. curl's begin when its transfer does: the start of its process is left out. The first pairs warm up.
Prints one row of a Markdown table: medians, and the interquartile range of the differences within a pair.
"""
import argparse
import http.client
import http.server
import json
import os
import select
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse

WARM = 3
QUIET_S = 60


class Relay(http.server.BaseHTTPRequestHandler):
    """Passes requests on and keeps the body of the last chat."""
    server_address_of = None
    body = None

    def pass_on(self):
        n = int(self.headers.get("content-length") or 0)
        data = self.rfile.read(n) if n else None
        if self.path.endswith("/chat/completions"):
            Relay.body = data
        c = http.client.HTTPConnection(Relay.server_address_of)
        c.request(self.command, self.path, data, {"Content-Type": "application/json"} if data else {})
        r = c.getresponse()
        answer = r.read()
        self.send_response(r.status)
        for key in ("Content-Type", "Server"):
            if r.getheader(key):
                self.send_header(key, r.getheader(key))
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_POST = pass_on

    def send_response(self, code, message=None):
        self.log_request(code)
        self.send_response_only(code, message)

    def log_message(self, *a):
        pass


def own_body(a, env):
    """The body that aerie sends for the prompt."""
    Relay.server_address_of = urllib.parse.urlparse(a.url).netloc
    relay = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Relay)
    threading.Thread(target=relay.serve_forever, daemon=True).start()
    subprocess.run(command(a, f"http://127.0.0.1:{relay.server_port}", "run") + [a.prompt], env=env,
                   stdout=subprocess.DEVNULL, check=False)
    relay.shutdown()
    if not Relay.body:
        raise SystemExit(f"no chat request came: does {a.aerie} run, and does {a.url} answer?")
    return Relay.body


def command(a, url, name):
    c = [a.aerie, name, "--remote", url, "-p", "temperature=0", "-p", f"max_tokens={a.tokens}", "-p", "seed=1"]
    return c + (["-m", a.model] if a.model else [])


def curl(a, body_file):
    """Seconds until the first text, and until the last event with text; processor seconds of the process."""
    p = subprocess.Popen(["curl", "-sN", "-H", "Content-Type: application/json", "--data-binary", "@" + body_file,
                          "-w", "\n%{time_total}", a.url + "/v1/chat/completions"], stdout=subprocess.PIPE)
    fd, seen, pending, first, last = p.stdout.fileno(), [], b"", 0, 0
    while data := os.read(fd, 1 << 16):
        seen.append((time.perf_counter(), data))
    _, _, use = os.wait4(p.pid, 0)
    for t, data in seen:
        lines = (pending + data).split(b"\n")
        pending = lines.pop()
        for line in lines:
            if line.startswith(b"data: {") and (c := json.loads(line[6:]).get("choices")) and c[0]["delta"].get("content"):
                first, last = first or t, t
        end = t
    begin = end - float(pending)  # the time of the transfer, written at its end
    return first - begin, last - begin, use.ru_utime + use.ru_stime


class Session:
    """A chat of aerie in lines."""

    def __init__(self, a, env):
        self.p = subprocess.Popen(command(a, a.url, "chat") + ["--plain"], env=env, stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.prompt = a.prompt

    def read_until(self, mark):
        """(time, bytes) of each read until the mark is seen."""
        seen, text, fd = [], b"", self.p.stdout.fileno()
        while mark not in text:
            if not select.select([fd], [], [], QUIET_S)[0]:
                raise SystemExit(f"aerie said nothing for {QUIET_S} s after {text[-200:]!r}")
            data = os.read(fd, 1 << 16)
            if not data:
                raise SystemExit(f"aerie ended after {text[-200:]!r}")
            seen.append((time.perf_counter(), data))
            text += data
        return seen

    def cpu(self):
        f = open(f"/proc/{self.p.pid}/stat").read().rsplit(")", 1)[1].split()
        return (int(f[11]) + int(f[12])) / os.sysconf("SC_CLK_TCK")

    def ask(self):
        begin = time.perf_counter()
        self.p.stdin.write(f"{self.prompt}\n/undo\n".encode())
        self.p.stdin.flush()
        seen = [(t, d) for t, d in self.read_until(b"left the context")]
        # the reply's text is what came before the line of /undo and the notice of a full reply
        text = [t for t, d in seen if not (d.lstrip().startswith(b"aerie: ") or d.lstrip().startswith(b"turn "))]
        return text[0] - begin, text[-1] - begin


def quartiles(v):
    q = statistics.quantiles(v, n=4)
    return q[2] - q[0]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("url")
    p.add_argument("--aerie", default="build/release-cpu/aerie")
    p.add_argument("-m", "--model")
    p.add_argument("--pairs", type=int, default=30)
    p.add_argument("--tokens", type=int, default=200)
    p.add_argument("--prompt", default="Tell me a long story about a fox and a bear.")
    p.add_argument("--name", default="")
    p.add_argument("--json", action="store_true", help="one JSON line with every time instead of a row")
    a = p.parse_args()
    a.url = a.url.rstrip("/")
    with tempfile.TemporaryDirectory() as folder:
        env = os.environ | {"XDG_DATA_HOME": folder, "XDG_CONFIG_HOME": folder, "XDG_STATE_HOME": folder}
        body = own_body(a, env)
        with open(folder + "/body", "wb") as f:
            f.write(body)
        s = Session(a, env)
        rows = {"curl": [], "aerie": []}
        for i in range(WARM + a.pairs):
            if i == WARM:
                cpu = s.cpu()
            pair = {}
            for who in ("curl", "aerie") if i % 2 else ("aerie", "curl"):
                pair[who] = curl(a, folder + "/body") if who == "curl" else s.ask()
            if i >= WARM:
                for who, v in pair.items():
                    rows[who].append(v)
        cpu = (s.cpu() - cpu) / a.pairs
        s.p.stdin.close()
        s.p.wait()
    col = {who: [[v[k] for v in r] for k in range(2)] for who, r in rows.items()}
    if a.json:
        print(json.dumps({"name": a.name, "url": a.url, "tokens": a.tokens, "curl": rows["curl"], "aerie": rows["aerie"],
                          "aerie_cpu": cpu}))
        return
    out = [a.name or a.url, str(a.pairs)]
    for k in range(2):
        c, m = statistics.median(col["curl"][k]), statistics.median(col["aerie"][k])
        d = [(y - x) * 1e3 for x, y in zip(col["curl"][k], col["aerie"][k])]
        out += [f"{c * 1e3:.2f}", f"{m * 1e3:.2f}", f"{statistics.median(d):+.2f} ({quartiles(d):.2f})",
                f"{100 * (m / c - 1):+.1f} %"]
    curl_cpu = statistics.mean(r[2] for r in rows["curl"])
    out += [f"{curl_cpu * 1e3:.1f}", f"{cpu * 1e3:.1f}"]
    print("| " + " | ".join(out) + " |")


main()
