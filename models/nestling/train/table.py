#!/usr/bin/env python3
"""Brings commands.json up to date with the program: text, arguments and examples of the chat's commands and the settings come from
`aerie help`, goals and all that is written by hand stay. Names what is new and still has no goals, and what is gone.

  python3 train/table.py build/release-cpu/aerie        (add --write to change the file)"""
import json
import os
import re
import subprocess
import sys

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "commands.json")


def say(aerie, *args):
    return subprocess.run([aerie, *args], capture_output=True, text=True, check=True).stdout


def slash(aerie):
    for l in say(aerie, "help", "commands").splitlines()[2:]:
        a, b, e = (x.strip().replace("\\|", "|") for x in re.split(r"(?<!\\)\|", l)[1:4])
        name, _, args = a.strip("`").partition(" ")
        yield {"name": name, "args": args, "help": b, "example": e.strip("`")}


def settings(aerie):
    text = say(aerie, "help").split("Settings, for")[1].split("\n\n")[0]
    for name, rest in re.findall(r"^  ([a-z_.]+) (.*(?:\n {20}.*)*)", text, re.M):
        values, _, words = re.sub(r"\s{2,}|\n\s*", "\t", rest).partition("\t")
        if not words:  # a name and values of 25 columns: one blank behind them
            values, _, words = re.sub(r"^(\S+ \.\. \S+) ", r"\1\t", values).partition("\t")
        yield {"name": name, "values": values.strip(), "help": words.replace("\t", " ").strip()}


def flags(aerie):
    return set(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", say(aerie, "help")))


def foreign(aerie):
    """Commands and flags that stand between backquotes in an answer and that the program does not have."""
    slashes, shell = {e["name"] for e in slash(aerie)} | {"/?"}, set(re.findall(r"^  ([a-z]+) ", say(aerie, "help"), re.M))
    have, here = flags(aerie), os.path.dirname(PATH)
    for name in ("faq.txt", "smalltalk.txt", "compare.txt", "concepts.txt", "was.json"):
        with open(os.path.join(here, "train", name), encoding="utf-8") as f:
            lines = [l for l in f if l.startswith(("= ", ' "')) or name in ("compare.txt", "concepts.txt")]
        for code in re.findall(r"`([^`]+)`", "".join(l.split('": "')[0] if name == "was.json" else l for l in lines)):
            yield from (x for x in re.findall(r"(?<![\w.~])/[a-z?-]+", code) if code.startswith("/") and x not in slashes)
            yield from (x for x in re.findall(r"(?<![\w-])--[a-z][a-z-]*", code) if x not in have)
            yield from (code for x in re.findall(r"^aerie ([a-z]+)", code) if x not in shell)


def main():
    aerie = sys.argv[1]
    with open(PATH, encoding="utf-8") as f:
        table = json.load(f)
    for kind, found in (("slash", list(slash(aerie))), ("settings", list(settings(aerie)))):
        have = {e["name"]: e for e in table.setdefault(kind, [])}
        for e in found:
            old = have.get(e["name"])
            if old is None:
                table[kind].append({**e, "goals": [], "since": 3})
                print(f"new in {kind}, without goals: {e}")
            elif any(old.get(k) != v for k, v in e.items()):
                print(f"changed in {kind}: {e['name']}: " + "; ".join(f"{k}: {old.get(k)!r} -> {v!r}" for k, v in e.items() if old.get(k) != v))
                old.update(e)
        for n in have.keys() - {e["name"] for e in found}:
            print(f"only in commands.json: {kind} {n}")
    known = {x for e in table["flags"] for x in e["name"].split(", ")}
    print("flags of the program that commands.json lacks:", sorted(flags(aerie) - known))
    print("flags that the program lacks:", sorted(known - flags(aerie)))
    print("answers that name what the program lacks:", sorted(foreign(aerie)))
    if "--write" in sys.argv:
        with open(PATH, "w", encoding="utf-8") as f:
            f.write("{\n" + ",\n".join(f' "{k}": [\n' + ",\n".join("  " + json.dumps(e, ensure_ascii=False) for e in v) + "\n ]" for k, v in table.items()) + "\n}\n")


if __name__ == "__main__":
    main()
