"""The first minute with aerie and what version 4 was weak in (version 5, for training): what people type first, names in long chats, words copied."""
from common import Bank, Turn, dress, fill, fresh, put
import coin
import drills
import knowledge as kn
import phrases
import recall
import skills
import stories
import threads
import world as w

for _b in (phrases.DEF, phrases.LONG, phrases.WHY, phrases.EX, phrases.TINY):
    _b.loud = True


def load():
    out, qs = [], ""
    for n, l in enumerate(kn.read("first.txt").split("\n"), 1):
        if l.startswith("q "):
            qs = l[2:]
        elif l.startswith("= "):
            out.append((Bank().more(q=qs), [x.strip() for x in l[2:].split(" | ")]))
        elif l and not l.startswith("#"):
            raise SystemExit(f"first.txt:{n}: expected q or =")
    return out


FIRST = load()
# the first things typed, in any spelling: greetings, thanks, help, who are you, what can you do, stories, jokes
OPENERS = [b for first in ("hi", "thanks", "bye", "help", "Who are you?", "What can you do?", "How are you?", "What is aerie?", "ok", "Good morning", "Good evening", "What is your name?", "Tell me a joke.", "test", "I am bored")
           for kind in kn.TALK.values() for b in kind if b[0].first == first]
PLAIN = [("hi|hello|hey|hi there|hello there|hey there|hello nestling|hello aerie|hey aerie|hi aerie", "hi"), ("thanks|thank you|thanks a lot|thx", "thanks"), ("bye|goodbye|bye bye|see you", "bye"), ("help|help me", "help"),
         ("who are you?|who are you", "Who are you?"), ("what can you do?|what can you do", "What can you do?"), ("ok|okay|good|fine", "ok"), ("how are you?|how are you", "How are you?"), ("good morning", "Good morning"),
         ("good evening", "Good evening"), ("what is aerie?", "What is aerie?"), ("tell me a joke.|tell me a joke", "Tell me a joke.")]
PLAIN = [(q.split("|"), next(r for kind in kn.TALK.values() for b, r in kind if b.first == first)) for q, first in PLAIN]
TALE = "tell me a story.|tell me a story|a story please|story|a story|tell a story|tell me another story|tell me a short story|one story".split("|")


def opener(c):
    """Something typed in the first minute."""
    x = c.random()
    if x < 0.30:
        qs, replies = c.pick(PLAIN)
        return [Turn(dress(c, c.pick(qs), {}), c.pick(replies), "talk:first")]
    elif x < 0.55:
        b, replies = c.pick(OPENERS)
    elif x < 0.62:
        s = stories.story(c, c.chance(0.5))
        return [Turn(dress(c, c.pick(TALE), {}), s.reply, "story:first")]
    else:
        b, replies = c.pick(FIRST)
    return [Turn(fill(c, b), c.pick(replies), "talk:first")]


# ---- the user's name, told in the first message
NAME = recall.FACTS[0]
NAME.tell.more(q="""[please/you can/you may/just/could you/would you/can you] call me {v}|call me {v}[, please/, will you/ if you like/ from now on/, okay?]|[my name's/name's/the name's/my name would be/my first name is] {v}|[hi/hello/hey/good morning/good day], [I'm/I am/it's/this is/my name is/call me/here is] {v}|{v} here|{v} is my name|{v} is what [people/they/my friends] call me|I [want/would like/wish/prefer] to be [called/known as/addressed as] {v}|[you are/you're] [talking/speaking/chatting] [to/with] {v}|I am {v}, [nice to meet you/hello/who are you?/and you?/glad to be here]|my name is {v}, [what is yours?/what's your name?/nice to meet you/by the way/just so you know/and I am new here]|[remember/note/keep in mind/do not forget/don't forget] my name[: / is / - ]{v}|address me as {v}|for you I am {v}|everyone knows me as {v}|I was named {v}|they named me {v}|let me introduce myself, {v}|{v}, that is me|{v}, pleased to meet you""")
NAME.ask.more(q="""[who/what] am I[/ called/ to you] [then/once more/one more time/still/, do you know?/, if you remember?/by name/ according to you]|[do/can/could/would] you [know/recall/remember/tell me/say/still know] [my name/what my name is/what I am called/who you talk to/who you are talking to/what to call me/which name is mine/the name I have/the name I gave/how to call me][/, please/ by now/ at all]|what [name/first name] [do I have/did I tell you/did I give you/do I go by/did I say I have/is mine/have I/was it I told you/should you use for me]|[my/the user's] name[ again/ once more/ still/, do you have it/, if you please/ is/ was/ was what/...]|[have you/did you] [forgotten/forget/note/noted/keep/kept/remember/get] my name|[who/to whom] are you [talking to/chatting with/speaking with/writing to] [now/here/right now/in this chat]|[with whom/to whom] do you [talk/chat/speak] [now/here]|[say/write/spell out/repeat/give me/tell me] my name[/ again/ please/ once/ one more time]|I [told/gave] you my name[, what is it/. What is it/, remember/, say it/. Which one/ at the start, what was it/ at the beginning. What is it]|[is my name known to you/do you know me/do you know me still/remember me/you remember me, do you/you do know my name, right]|what did I say my name [is/was]|what was I called[/ again/ once more]|how do you call me|how [was/is] my name[/ again]|[under what name/as what/as whom] do you know me|what [will/do/would/must] you call me|and my name|and what was my name|whats my name|what's my name [again/then/now/still]|name me|greet me by name|the name I [told/gave/mentioned] [at the start/in the beginning/first/earlier/before]""",
               mem="my own name|the name of mine|the first name I have|what my name was|the name you should use for me|the name I introduced myself with|my name from the start of this chat")
HOBBY = next(f for f in recall.FACTS if f.key == "hobby")
HOBBY.ask.more(q="""what [is it I/was it I/is it that I/did I tell you that I] [like to do/enjoy/love to do/do for fun/do on Sundays][/ again/ then]|[which/what] [hobby/pastime] [did I tell you/was it/have I told you/did I speak of/do I follow]|[tell me/say/repeat] what I [like to do/do in my free time/do after work/enjoy doing/said I enjoy]|[do you/can you] [remember/recall/know/tell me] [my hobby/what I like to do/what I enjoy/what my hobby is/how I spend my time]|my hobby[ again/ was what/, what was it/ is what/ once more]|[what/how] do I spend my [evenings/Sundays/spare time/time]| what do I love to do|I told you about my [hobby/free time]. What was it|what did I say I [enjoy/love/do for fun/do after work]""")
# who asks for whose name is decided by one word
MINE = [b for first in ("Who are you?", "What is your name?") for kind in kn.TALK.values() for b in kind if b[0].first == first]


def yours(c):
    b, replies = c.pick(MINE)
    return Turn(fill(c, b), c.pick(replies), "talk:identity")


def ask_name(c, v):
    return Turn(fill(c, NAME.ask, v=v), NAME.answer.replace("{v}", v), "recall:name")


HELLO = Bank().more(q="[hi/hello/hey/good morning/hi there/hello there/good day][/!/,/./ nestling,/ aerie,]")
SAID = ["Nice to meet you, {v}!", "Hello {v}! What can I do for you?", "Hi {v}, I will remember your name."]
BOTH = Bank().more(q="[and /so /now /ok, ///]who are you[/?/ then/ really?/, by the way?]|what is your name[/?]|what's yours?|and yours?|and you?|what are you called?|who is this?")

for _b in (HELLO, BOTH):
    _b.shared = True


def named(c, filler, distance):
    """The first message tells the name; after any other turns somebody asks for it, and for nestling's."""
    v = recall.a_name(c)
    for _ in range(8):
        t = NAME.tell(c)
        if not fresh(put(t, {"v": v})):
            break
    t = dress(c, t, {"v": v})
    if c.chance(0.2):
        t = fill(c, HELLO) + " " + t
    out, ack = [], c.pick(SAID).replace("{v}", v)
    if c.chance(0.12):
        t, ack = t.rstrip(" ,") + ("" if t.rstrip()[-1:] in ".!?" else c.pick((".", ",", " -"))) + " " + fill(c, BOTH), f"Nice to meet you, {v}! My name is nestling."
    out.append(Turn(t, ack, "recall:name"))
    for _ in range(c.n(1, 2)):
        out += filler(c, distance(c))
        if c.chance(0.35):
            out.append(yours(c))
        out.append(ask_name(c, v))
        if c.chance(0.25):
            out.append(yours(c))
            if c.chance(0.5):
                out.append(ask_name(c, v))
    return out


def facts(c, filler, distance):
    """One to three facts, other turns, and each asked for in one or two wordings."""
    m = recall.Memory(c)
    out = [m.tell(1) for _ in range(c.n(1, 3))]
    if c.chance(0.3):
        out.append(threads.Pets(c).tell(c))
    out += filler(c, distance(c))
    for _ in range(c.n(2, 4)):
        out.append(m.ask())
        if c.chance(0.25):
            out += filler(c, c.n(0, 300))
    return out


# ---- copying words that nobody has seen
ECHO = Bank().more(q="[say/repeat/echo/copy/write/type/print/output/quote] {s}|[repeat after me/copy this/say this/write this/echo this/repeat this/say after me/type this/print this/copy exactly/say exactly][:/: /,] {s}|[please/now/just/can you/could you/I want you to/you should/will you/now please/go ahead and] [say/repeat/echo/copy/write/type/print]: {s}|[please/now/just/can you/could you/will you] [say/repeat/echo/copy/write/type] {s}|[say/repeat/copy/echo/write] [the words/these words/the word/the following/the names/this text/what follows]: {s}")


def copied(c):
    k = c.n(1, 5)
    s = " ".join(c.pick((coin.word, coin.lower, coin.name, coin.lower))(c) if c.chance(0.9) else c.pick(w.WORDS) for _ in range(k))
    return Turn(fill(c, ECHO, s=s), s, "skill:repeat")


def compound(c):
    """Two known words as one: lighthouse is no harder than light."""
    while True:
        x = c.pick(w.WORDS) + c.pick(w.WORDS)
        if len(x) <= 13:
            return x.capitalize() if c.chance(0.15) else x


def letters(c):
    x = compound(c)
    d = skills.dashed(x)
    if c.chance(0.7):
        return Turn(fill(c, skills.SPELL, w=x), f"{x}: {d}.", "skill:spell")
    if c.chance(0.5):
        return Turn(fill(c, skills.REVERSE, w=x), f"{x}: {d}. Backwards: {skills.dashed(x[::-1])}, so \"{x[::-1]}\".", "skill:reverse")
    return Turn(fill(c, skills.LETTERS, w=x), f"{x}: {d}. That is {len(x)} letters.", "skill:letters")


def copying(c):
    return [copied(c) if c.chance(0.65) else letters(c)]


# ---- another one, but shorter; going on
SHORTER = Bank().more(q="""[another one/one more/another/a new one/again/one more story/another story/a further one][,/, but/ but/ -/ and] [shorter/a shorter one/shorter this time/make it short/keep it short/a short one/in few words/not so long/short please/briefly]|a shorter [one/story][/ please/, please]|[the next/the next one/next] [shorter/a bit shorter/short], please|[tell me/give me/I want] a shorter [one/story]|shorter|now a short one""")
threads.CONTINUE.more(q="""[will you/would you/I want you to/I'd like you to/you can/you may/just/so] [continue/go on/keep going/count on/go further/proceed]|proceed|[go/move] [on/ahead/further][, please/ please//]|[and/ok/good/nice/great/yes], [go on/continue/keep going/more/further/the next/proceed]|more|more[ please/, please/!/ of that/ numbers please]|next|[what/which] [numbers/number] [come/comes] [next/then/after that]|where were we? [go on/continue]|take it from there|pick up where you stopped|[the rest/the following ones/the next ones][, please/ please//]|as many again|[keep/carry] [it going/on counting/on, please]|do go on""")


def shorter(c):
    s = stories.story(c, False)
    out = [s]
    if c.chance(0.3):
        out.append(Turn(fill(c, threads.ANOTHER), stories.story(c, False).reply, "thread:another"))
    out.append(Turn(fill(c, SHORTER), stories.story(c, True).reply, "thread:shorter"))
    return out


def first(c):
    """Turns of one kind."""
    x = c.random()
    if x < 0.50:
        return opener(c)
    if x < 0.93:
        return copying(c)
    return shorter(c)


drills.LANGS += ["CUDA", "CUDA C++", "OpenCL", "Metal", "Triton", "GLSL", "Objective-C", "WebAssembly", "Verilog"]
drills.BIG += [x for x in ("a CUDA kernel", "a GPU kernel", "an attention kernel", "a matrix multiplication on the GPU", "a kernel for softmax", "a shader", "a kernel driver", "a flash attention kernel", "a reduction kernel", "a kernel that adds two vectors", "GPU code", "a Triton kernel") if x not in drills.BIG]
