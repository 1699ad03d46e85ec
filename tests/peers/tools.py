#!/usr/bin/env python3
"""tools.py TEMPLATES [--write] - prompts with functions, as the families' own templates render them.

TEMPLATES: a folder with the chat templates named below (llama.cpp has them in models/templates). Renders the
conversations here with transformers' Jinja environment and compares them with tests/tokenizers/tools.json, which
tests/unit/test_chat.c holds aerie's prompts against; --write writes that file anew. Needs: pip install transformers jinja2
"""
import datetime
import json
import os
import sys

from transformers.utils.chat_template_utils import _compile_jinja_template

FILE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../tokenizers/tools.json")
TEMPLATES = [  # file, family, what it lacks
    ("Qwen-Qwen3-0.6B.jinja", "qwen3", ("odd",)),
    ("meta-llama-Llama-3.1-8B-Instruct.jinja", "llama", ("many", "first", "odd")),
    ("openai-gpt-oss-120b.jinja", "gpt_oss", ("many", "odd")),
    ("google-gemma-4-31B-it.jinja", "gemma4", ()),
    ("Qwen-Qwen2.5-7B-Instruct.jinja", "qwen2", ("many",)),
]
WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Weather of a place, \"now\"",
    "parameters": {"type": "object", "properties": {
        "city": {"type": "string", "description": "Name, e.g. Zürich"},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
        "days": {"type": "integer"}, "tags": {"type": "array", "items": {"type": "string"}},
        "near": {"type": "array", "items": {"type": "object", "properties": {"x": {"type": "number"}}}},
        "any": {}}, "required": ["city"]}}}
CLOCK = {"type": "function", "function": {"name": "now", "description": "The time",
                                          "parameters": {"type": "object", "properties": {}}}}

ODD = {"type": "function", "function": {"name": "odd", "parameters": {"type": "object", "properties": {
    "type": {"type": ["string", "null"], "enum": ["a", None, 2], "nullable": True, "description": "A name"},
    "Zone": {"type": "object", "description": "where", "properties": {
        "x": {"type": "number", "minimum": 0.5}, "b": {"type": "array"}}, "required": ["x", "b"]},
    "zone": {"type": "object", "additionalProperties": {"type": "integer"}},
    "either": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
    "list": {"type": "array", "description": "rows", "items": {
        "type": ["integer", "null"], "enum": [1, 2.5, 1e30, None, True], "minimum": 1e-7, "title": "Item",
        "required": ["q"], "x": {"B": 1, "a": [None]}}}}, "required": ["type", "zone"]}}}
NOTHING = {"type": "function", "function": {"name": "nothing"}}


def call(name, **arguments):
    return {"id": "c" + name, "type": "function", "function": {"name": name, "arguments": arguments}}


ASK = {"role": "user", "content": "Is it warm in Zürich?"}
CASES = [
    ("plain", [ASK]),
    ("system", [{"role": "system", "content": "Be brief."}, ASK]),
    ("called", [ASK, {"role": "assistant", "content": "", "tool_calls": [call("get_weather", city="Zürich", days=2)]},
                {"role": "tool", "tool_call_id": "cget_weather", "content": "{\"t\": 21}"}]),
    ("answered", [{"role": "system", "content": "Be brief."}, ASK,
                  {"role": "assistant", "content": "", "tool_calls": [call("now")]},
                  {"role": "tool", "tool_call_id": "cnow", "content": "12:00 \"noon\""},
                  {"role": "assistant", "content": "It is noon."}, {"role": "user", "content": "Thanks"}]),
    ("many", [ASK, {"role": "assistant", "content": "Let me see.",
                    "tool_calls": [call("get_weather", city="Z"), call("now")]},
              {"role": "tool", "tool_call_id": "cget_weather", "content": "cold"},
              {"role": "tool", "tool_call_id": "cnow", "content": "late"}]),
    ("odd", [ASK, {"role": "assistant", "content": "", "tool_calls": [
        call("odd", type="a \"b\"", Zone={"x": 21.1, "b": [1, [], {}], "a": None}, zone={"k": 100000.0, "A": 1e16},
             list=[1e-5, True, -3, 0.1])]},
             {"role": "tool", "tool_call_id": "codd", "content": " {x} "},
             {"role": "assistant", "content": "", "tool_calls": [call("nothing")]},
             {"role": "tool", "tool_call_id": "cnothing", "content": ""},
             {"role": "assistant", "content": " Done. "}, {"role": "assistant", "content": "Really."},
             {"role": "user", "content": "And?"}, {"role": "assistant", "content": "", "tool_calls": [call("odd")]}]),
]


def render(text, messages, tools):
    template = _compile_jinja_template(text)
    when = datetime.datetime(2024, 7, 26)
    template.environment.globals["strftime_now"] = when.strftime
    return template.render(messages=messages, tools=tools, add_generation_prompt=True,
                           bos_token="<|begin_of_text|>")


def main():
    folder = sys.argv[1]
    out = []
    for name, family, lacks in TEMPLATES:
        text = open(os.path.join(folder, name), encoding="utf-8").read()
        for case, messages in CASES:
            if case not in lacks:
                for tools in ([[ODD, NOTHING]] if case == "odd" else [[WEATHER], [WEATHER, CLOCK]]):
                    out.append({"template": name, "family": family, "case": case, "tools": tools,
                                "messages": messages, "text": render(text, messages, tools)})
    if "--write" in sys.argv:
        with open(FILE, "w", encoding="utf-8") as f:
            f.write(json.dumps(out, ensure_ascii=False, indent=0) + "\n")
        return 0
    was = json.load(open(FILE, encoding="utf-8"))
    print("equal: %d prompts" % len(out) if was == out else "tests/tokenizers/tools.json differs; --write writes it")
    return was != out


if __name__ == "__main__":
    sys.exit(main())
