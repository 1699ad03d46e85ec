"""The guide, in many wordings (version 3, for training): commands by what one wants, numbers taken over into the command, settings,
differences between commands, concepts for children."""
import os

import knowledge as kn
from common import Bank, Turn, fill
from phrases import CMD_HOW, CMD_WHAT, CMP, F_EX, KEY_HOW
import coin
import world as w

HERE = os.path.dirname(os.path.abspath(__file__))
CMD = kn.CMD_ALL3
KINDS = ("slash", "cli", "flags", "keys")
ENTRY = {e["name"]: (k, e) for k in KINDS for e in CMD[k]}
SETTINGS = CMD["settings"]


# ---- commands and keys by what one wants
def load():
    """wordings.txt: phrasings of a command (name -> Bank), or more of those of a question of faq.txt or smalltalk.txt."""
    first = {b.first: b for b in [b for b, _ in kn.FAQ] + kn.TALK_BANKS}
    out, name, add = {}, None, {}

    def flush():
        if name is None:
            return
        if name in ENTRY:
            out[name] = Bank().more(**add)
        elif name in first:
            first[name].more(**add)
        else:
            raise SystemExit(f"wordings.txt: no command, key or first question {name!r}")

    for n, l in enumerate(kn.read("wordings.txt").split("\n") + ["@"], 1):
        if l.startswith("@"):
            flush()
            name, add = l[1:], {}
        elif l and not l.startswith("#"):
            kind, _, text = l.partition(" ")
            if kind not in ("q", "how", "np"):
                raise SystemExit(f"wordings.txt:{n}: expected q, how or np, not {kind!r}")
            add[kind] = add.get(kind, "") + "|" + text
    return out


def load_engineer():
    """engineer.txt: names, aims and whole questions."""
    out = []
    for n, l in enumerate(kn.read("engineer.txt").split("\n"), 1):
        if l and not l.startswith("#"):
            name, how, q = l.split(" | ")
            if name not in ENTRY:
                raise SystemExit(f"engineer.txt:{n}: no command or flag {name!r}")
            out.append((name, {"how": how.replace(" ; ", "|"), "q": q.replace(" ; ", "|")}))
    return out


WANTS = load()
ENGINEER = load_engineer()
for _n, _add in ENGINEER:
    WANTS.setdefault(_n, Bank()).more(**_add)
for _k in KINDS:  # goals are aims, too
    for _e in CMD[_k]:
        if _e["name"] != "--log-level":  # these are how-to questions of faq.txt
            WANTS.setdefault(_e["name"], Bank()).more(how="|".join(g for g in _e["goals"]))
NAMES = sorted(WANTS)
WEIGHT = {n: 3.0 if ENTRY[n][0] == "slash" else 1.4 if ENTRY[n][0] == "keys" else 1.0 for n in NAMES}
WEIGHT.update({n: 3.0 for n, _ in ENGINEER})
WEIGHT.update({"/bye": 6.0, "/map": 5.0, "/page": 4.0})
TOTAL = sum(WEIGHT.values())


def reply(name):
    kind, e = ENTRY[name]
    return f"Press {e['name']}: it {e['help']}." if kind == "keys" else kn.cmd_reply(e, True)


def want(c):
    x = c.random() * TOTAL
    for name in NAMES:
        x -= WEIGHT[name]
        if x < 0:
            break
    kind, e = ENTRY[name]
    r = c.random()
    if kind == "keys" and e["goals"] and r < 0.2:
        t = fill(c, KEY_HOW, g=c.pick(e["goals"]))
    elif e["goals"] and r < 0.25 and kind != "keys":
        t = fill(c, CMD_HOW, g=c.pick(e["goals"]))
    else:
        t = fill(c, WANTS[name])
    out = [Turn(t, reply(name), "command")]
    if kind != "keys" and c.chance(0.1):
        out.append(Turn(fill(c, F_EX), f"`{e['example']}`", "command:follow-up"))
    return out


# ---- commands with a number in the question
WITH = [
    ("/map {n}", "shows which full slot and which SWA slot hold a position", Bank(q="""[which/what] [page/slot/cell/full slot/swa slot/SWA slot/place/pool slot/physical slot] [holds/has/keeps/contains/stores/belongs to/is used by/does belong to] [token/position/token number/the token at/pos/the token number/token no.] {n}[?/ now?/ at the moment?/]|where [is/does/can I find/in memory is/is the slot of/in the pools is/do you keep] [token/position/token number/pos/the token at position] {n}[ live/ stored/ kept/ sit/ now///]?|in [which/what] [page/slot/cell/pool slot] is [token/position/token number] {n}[ stored/ kept///]?|[show/find/locate/look up/tell me/give me/print/translate/map/resolve] [position/token/pos/the slot of position/the slot of token/the page of token/the page of position/where token/the place of token/the slots of position/the cell of position] {n}|[the page of/the slot of/the slots of/the place of/slot of/page of/cell of] [token/position/pos] {n}|[token/position/pos] {n}: [which page/which slot/where/what slot/where is it/slot/page]?|[I want to know/tell me/I'd like to know/can you tell me/show me/find out/do you know] [where token/where position/which page has token/which slot has position/in which slot is token/on which page is token/what page holds position/which page holds token/in what slot token] {n}[ is/ is now/ is kept/ lives///]|[which/what] [slot/slots/page/pages] [does/do] [token/position] {n} [use/have/occupy/take/sit in/live in]?|[map/translate] {n}|how do I [find/see/look up/locate/get] [the page of token/the slot of position/where token/position/token/the slots of position] {n}?|who holds [token/position] {n}?|is [token/position] {n} still [in the window/held/in the swa pool/kept/there]?|position {n}[?/]|token {n}[?/]|what happened to [token/position] {n}?|where did [token/position] {n} go?""")),
    ("/page {n}", "tells the life of one page: who took it, shared it and freed it", Bank(q="""[who/what] [owns/holds/took/freed/shared/shares/uses/released/has/got] page {n}[ now/ at the moment///]?|what [happened to/is/became of/about/is with/was/is on/is in/is wrong with/does] page {n}[ doing///]?|what is page {n} [doing/for/used for/good for/up to]?|[show/tell me about/print/trace/inspect/look at/examine/describe/explain/track/follow] page {n}[ please//]|[history/life/story/log/events/owner/biography/state] of page {n}|page {n}[?/: what happened/: history/, please/: who holds it]|when was page {n} [freed/taken/shared/last used/given back]?|why was page {n} [freed/taken/shared]?|is page {n} [free/used/taken/shared/in use/leaking/leaked/still held]?|how do I [see/find/trace/inspect/get/read] [the life of page/page/the history of page/what happened to page/the owner of page/who holds page] {n}?|[I want to/let me/can I] [see/trace/inspect/look at] page {n}|has page {n} been [freed/shared/taken/released]?|which [sequence/request/session] [holds/owns/has] page {n}?|give me the [life/story/history/facts] of page {n}""")),
    ("/fork {n}", "copies this session up to a turn, or another session", Bank(q="""[fork/branch/branch off/copy the session/split the chat/go back/rewind/start again/start over] [at/from/after/up to/to] turn {n}[?/, how?/ please/]|how do I [go back/rewind/return/jump back] to turn {n} [without losing this/in a new session/and keep this chat/and try another way]?|[a fork/a branch/a copy] [of/at/from/after] turn {n}|I want to [branch/fork/go back/continue differently] [at/from/after] turn {n}|[can I/let me/how do I] [fork/branch/branch off/make a copy/start a new session] [at/from/up to] turn {n}?""")),
    ("/resume {n}", "opens a saved session and continues it", Bank(q="""[open/resume/continue/load/reopen/restore/go to/switch to/go back to/take up] [session/chat/session number/session no.] {n}[?/, how?/ please/]|how do I [open/resume/continue/load/reopen/restore/get back to/go on with] [session/chat number/session number] {n}?|I want [session {n} back/to go on with session {n}/to continue session {n}/to open session {n}]|can I [open/continue/resume/go back to] session {n}?""")),
]
TREE = Bank(q="""[show/draw/see/print/view/look at/inspect] [the tree/the draft/the draft tree/the guesses/what was drafted] [of/at/in/for/from] step {n}|[the tree/draft tree/tree/guesses/the guesses] [of/at/in/from] step {n}[?/ please/]|what did the [draft/drafter/draft head] [guess/propose/draft] [in/at] step {n}?|which [guesses/nodes/tokens] were [accepted/rejected/drafted] [in/at] step {n}?|how do I [see/look at/draw/view/inspect] [the tree/the draft tree/the guesses/the draft] of step {n}?|can I [see/look at/view] [the tree/the guesses/the draft/the draft tree] [of/from/in] step {n}?|what happened in step {n}?|why was the draft rejected in step {n}?|step {n}[?/: tree/: show the tree]""")
NREP = Bank(q="""[give me/show me/write/I want/make/generate/can I have/I need/let me see/let me have/print] {n} [replies/answers/versions/different answers/alternatives/variants/different replies/samples/tries/possible replies] [to one question/to the same question/at once/of a reply/in parallel/side by side/for one prompt//]|how do I get {n} [answers/replies/versions/samples/alternatives/variants] [at once/to one question/in one go/in parallel/of the same prompt/to a single question]?|{n} [answers/replies/versions] [to one question/at once/in parallel], how?|ask [you/the model/one question/the same thing] {n} times[ at once/ in one batch/ in parallel//]|can you answer {n} times at once?|compare {n} [answers/replies/versions] to a question""")


def with_number(c):
    x = c.random()
    if x < 0.42:
        cmd, text, b = WITH[0]
        n = c.n(0, 4095) if c.chance(0.4) else c.n(0, 300)
    elif x < 0.70:
        cmd, text, b = WITH[1]
        n = c.n(0, 999) if c.chance(0.4) else c.n(0, 130)
    elif x < 0.78:
        cmd, text, b = WITH[2]
        n = c.n(1, 40)
    elif x < 0.85:
        cmd, text, b = WITH[3]
        n = c.n(1, 400)
    elif x < 0.94:
        n = f"{c.n(1, 40)}.{c.n(1, 300)}"
        cmd, text, b = "/tree {n}", "draws the draft tree of a step, with accepted and rejected nodes", TREE
    else:
        n = c.n(2, 8)
        t = fill(c, NREP, n=w.number_words(n) if c.chance(0.5) else n)
        return [Turn(t, f"Type `/n {n} TEXT`: it shows several replies to a question, computed in one batch over shared pages.", "command:number")]
    return [Turn(fill(c, b, n=n), f"Type `{cmd.replace('{n}', str(n))}`: it {text}.", "command:number")]


# ---- settings
SET_WHAT = Bank(q="""what is /set {x}?|what does /set {x} do?|explain /set {x}|/set {x}?|[what is/what's/what does/explain/describe/tell me about/help on/what about/show me/define] [{x}/the setting {x}/the option {x}/{x}, a setting/the {x} setting/the value {x}][?/ for?/ do?/ mean?//]|[what is/what's] {x} [good for/for/used for/about]?|[what/which] values [can/may/does] {x} [have/take]?|[what/which] is the [range/default/meaning/use] of {x}?|{x}[?/: what is it?/ setting/ setting?]|what happens if I change {x}?|which values are allowed for {x}?|what does the setting {x} [do/mean/change/control]?|what do I need {x} for?|when would I change {x}?|how high [can/may] {x} be?|what [is/does] {x} [do/mean] in the settings?""")
SET_AMBIG = {"temperature", "top_p", "seed", "spec", "check", "graph", "think", "chunk", "verbose", "theme", "drop"}  # everyday words: asked for as a setting only
SET_PLAIN = Bank(q="""what is /set {x}?|what does /set {x} do?|explain /set {x}|/set {x}?|how does /set {x} work?|which values has /set {x}?|[what is/what's/what does/explain/describe/tell me about/help on/define] [the setting {x}/the option {x}/{x}, a setting/the {x} setting][?/ for?/ do?/ mean?//]|[what/which] values can [{x}/the setting {x}/the {x} setting] [have/take] in /set?|which values are allowed for the setting {x}?|what does [the setting {x}/the {x} setting] [do/mean/change/control]?|[the setting {x}/setting {x}][?/: what is it?]|how do I use /set {x}?|what can I set {x} to in /set?|[range/values/meaning] of the setting {x}""")


def set_goals(e):
    """(value, bank, aims) of what one may want from a setting; an aim "text => value" names its own value."""
    by = {}
    for goal in e["goals"]:
        text, _, value = goal.partition(" => ")
        by.setdefault(value or e["example"].split()[-1], []).append(text)
    return [(v, Bank().more(how="|".join(gs)), gs) for v, gs in by.items()]


SET_HOW = {e["name"]: set_goals(e) for e in SETTINGS}


def settings(c):
    e = c.pick(SETTINGS)
    x = e["name"]
    if c.chance(0.5) or not e["goals"]:
        b = SET_PLAIN if x in SET_AMBIG else SET_WHAT
        return [Turn(fill(c, b, x=x), f"`{x}` ({e['values']}): {e['help']}. Example: `{e['example']}`", "command:setting")]
    value, bank, goals = c.pick(SET_HOW[x])
    t = fill(c, bank) if c.chance(0.6) else fill(c, CMD_HOW, g=c.pick(goals))
    return [Turn(t, f"Type `/set {x} {value}`. The setting `{x}` ({e['values']}): {e['help']}.", "command:setting")]


# ---- differences between commands
DIFF = Bank(q="""[what is/what's] the difference [between {a} and {b}/of {a} and {b}/from {a} to {b}]?|[how/in what way] [does {a} differ from {b}/is {a} different from {b}/are {a} and {b} different/do {a} and {b} differ]?|{a} or {b}[?/, which one?/, what is the difference?/: when which?]|{a} [vs/versus/vs./compared with/against] {b}[?/]|compare {a} [and/with/to] {b}[./]|difference [between {a} and {b}/{a} {b}][?/]|when do I use {a} and when {b}?|[are/is] {a} and {b} the same[ thing/ command//]?|why are there both {a} and {b}?|explain the difference between {a} and {b}|should I use {a} or {b}?|do {a} and {b} do the same?|I confuse {a} and {b}""")
KNOWN = {frozenset((a, b)) for a, b, _ in kn.COMPARE}


COMMAND_PAIRS = [(a, b, t) for a, b, t in kn.COMPARE if a.startswith("/")]


def different(c):
    if c.chance(0.2):
        a, b, t = c.pick(COMMAND_PAIRS)
        if c.chance(0.5):
            a, b = b, a
        return [Turn(fill(c, DIFF, a=a, b=b), t, "concept:compare")]
    while True:
        kind = c.pick(("slash", "slash", "slash", "slash", "flags", "cli"))
        a, b = c.some([e for e in CMD[kind] if e["name"] != "aerie"], 2)
        if frozenset((a["name"], b["name"])) not in KNOWN:
            break
    x, y = a["name"].split(", ")[0], b["name"].split(", ")[0]
    return [Turn(fill(c, DIFF, a=x, b=y), f"`{x}` {a['help']}. `{y}` {b['help']}.", "command:difference")]


# ---- concepts for children
KID = Bank(q="""[explain/describe/tell me/can you explain/could you explain/please explain/teach me/break down/tell me about/help me understand/show me/I want to understand] {x} [like I am five/like I'm five/like I'm 5/like I am 5/as if I were five/as if I was five/like I was five years old/like to a child/to a child/to a five year old/to a kid/to a toddler/for kids/for children/for a child/for a five-year-old/in kid language/in baby language/so that a child understands/so a child gets it/so a kid can understand it/so my grandmother understands/as to a small child/in the simplest words/in very simple words/with a simple picture/without any jargon/like I know nothing/for a complete beginner/for dummies]|eli5[: / / what is / what are ]{x}[?/ please//]|ELI5[: / ]{x}|{x}[, / - ][explained like I am five/like I'm five/for a five year old/for children/for kids/eli5/in kid words/as for a child]|what is {x}[, / ][like I am five/like I'm five/for a child/explained to a child/in kid words/if I were five]?|[pretend I am five/imagine I am five/I am five years old/I'm 5/I am a child/assume I am a kid/my kid asks/my child wants to know/my five year old asks]: [what is {x}/explain {x}/{x}]?|how would you explain {x} to a [child/five year old/kid/toddler/small child/six year old/ten year old]?|[a child's/a kid's] version of {x}|[make {x} simple/dumb {x} down] for [a child/me/a kid]""")
OPENERS = ["Imagine this:", "Think of it so:", "In simple words:"]


def kid_reply(k):
    return k.k if hasattr(k, "k") else f"In simple words: {k.t} {k.e}"


def kid(c):
    k = c.pick([k for k in kn.CONCEPTS if hasattr(k, "k")] if c.chance(0.55) else kn.CONCEPTS)
    return [Turn(fill(c, KID, x=kn.article_name(c, k)), kid_reply(k), "concept:child")]


def kid_refuse(c):
    t = c.pick(w.OOD_TOPICS) if c.chance(0.8) else coin.lower(c)
    return [Turn(fill(c, KID, x=t), c.pick(kn.REFUSE), "refuse", ("re", r"-m"))]


for _b in WANTS.values():
    _b.claim(True)
