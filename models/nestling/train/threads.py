"""Long chats as people have them (version 4, for training): another one, continue, pets with names, facts asked for in between."""
from common import Bank, Turn, fill
import knowledge as kn
import recall
import stories
import world as w

ANOTHER = Bank(q="""another one|another one[ please/, please/!/ then/ for me//]|another[?/, please/ one?//]|one more|one more[ please/, please/!//]|[and /now /ok, /haha, /nice, /good, ///]another one|[and /now /ok, /haha, /nice, ///]one more|a different one[ please//]|give me [another/another one/one more/a different one]|[tell me/I want/let me hear/say] [another/another one/one more/a new one]|[can I have/can you tell me/do you have/do you know/got/have you got] [another/another one/one more/a different one]?|next one[ please//]|next!|more of [these/those/that kind]|encore|again, but a new one|a new one[, please/ please//]|yet another|one more time, a new one|I want to hear another""")
CONTINUE = Bank(q="""continue|continue[ please/, please/!//]|go on|go on[ please/, please/!//]|keep going|carry on|and then?|[and/and now] the next ones|[what/and what] comes next?|the next [numbers/few/ones][ please//]|don't stop|do not stop|[can you/please/now] [continue/go on/keep going/carry on]|count on|further|more numbers|[continue/go on] from there|resume counting""")
COUNT = Bank(q="""count to {b}|count from 1 to {b}|count up to {b}[ please//]|can you count to {b}?|[say/list/write] the numbers to {b}""")
AFTER_STORY = Bank(q="""continue|go on|and then?|what happened next?|what happens then?|continue the story|go on with the story|then what?|how does it go on?|tell me what happened next""")
STORY_ENDS = "That is where the story ends. Shall I tell you another one?"
YES = Bank(q="""yes|yes[ please/, please/!//]|sure|please do|ok|okay|yeah|go ahead|of course|yes, another one|please""")

PETS = "cat dog bird fish rabbit hamster pony turtle parrot mouse goat hen".split()
MANY = {"mouse": "mice", "fish": "fish", "pony": "ponies"}
TWO_TELL = Bank(q="""I have two {ps}, {a} and {b}.|I have two {ps}: {a} and {b}.|My two {ps} are called {a} and {b}.|My {ps} are [called/named] {a} and {b}.|I own two {ps} [called/named] {a} and {b}.|We have two {ps}, {a} and {b}.|The names of my {ps} are {a} and {b}.|{a} and {b} are my {ps}.|I live with two {ps}, {a} and {b}.|I've got two {ps}: {a} and {b}|my {ps} are {a} and {b}|At home I have two {ps}, {a} and {b}.|Two {ps} live with me: {a} and {b}.|I got two {ps}, their names are {a} and {b}.""")
TWO_ACK = ["{a} and {b}, two nice {ps}!", "Say hello to {a} and {b} from me.", "I will remember your {ps} {a} and {b}."]
TWO_NAMES = Bank(q="""What are my {ps} called?|What are the names of my {ps}?|What are my {ps}' names?|How are my {ps} called?|[Tell me/Say/Do you remember/Do you know] the names of my {ps}[?/.]|[Who/What] are my {ps}?|Which names have my {ps}?|names of my {ps}?|my {ps} are called what?|Do you remember what my {ps} are called?|what did I call my {ps}?|Name my {ps}.|what are my [pets/animals] called?|What are the names of my [pets/animals]?""")
TWO_COUNT = Bank(q="""How many {ps} do I have?|How many {ps} have I [got/told you of]?|How many [pets/animals] do I have?|how many {ps} did I [say I have/mention]?|the number of my {ps}?|Do I have one {p} or two?""")
TWO_FIRST = Bank(q="""What is [the first/the one/one] {p} called?|What's the first {p}'s name?|Which {p} did I name first?|the name of the first {p}?|what is my first {p} called?""")
TWO_SECOND = Bank(q="""What is the [other/second] {p} called?|What's the other {p}'s name?|Which {p} did I name second?|and the other {p}?|the name of the [second/other] {p}?|And the [second/other] one?|what is my [second/other] {p} called?""")


def another(c):
    """A joke, a riddle or a story, and others of its kind."""
    x = c.random()
    if x < 0.3:
        s = stories.story(c, c.chance(0.3))
        out = [s]
        for _ in range(c.n(1, 2)):
            if c.chance(0.35):
                out.append(Turn(fill(c, AFTER_STORY), STORY_ENDS, "thread:story end"))
                t = fill(c, YES)
            else:
                t = fill(c, ANOTHER)
            again = stories.story(c, c.chance(0.3))
            out.append(Turn(t, again.reply, "thread:another"))
        return out
    banks = kn.TALK["joke"]
    b, replies = banks[0] if x < 0.72 else c.pick(banks[1:])
    if len(replies) < 2:
        b, replies = banks[0]
    told = c.some(replies, min(len(replies), c.n(2, 4)))
    return [Turn(fill(c, b if i == 0 else ANOTHER), r, "thread:another") for i, r in enumerate(told)]


def number_line(a, b):
    return ", ".join(map(str, range(a, b + 1))) + "."


def counting_on(c):
    """As many numbers again, from where the last reply stopped."""
    n = c.pick((3, 4, 5, 5, 6, 8, 10, 10))
    out, a = [Turn(fill(c, COUNT, b=w.number_words(n) if c.chance(0.4) else n), number_line(1, n), "thread:count")], n + 1
    for _ in range(c.n(1, 3)):
        out.append(Turn(fill(c, CONTINUE), number_line(a, a + n - 1), "thread:continue"))
        a += n
    return out


class Pets:
    def __init__(self, c):
        self.p = c.pick(PETS[:2]) if c.chance(0.5) else c.pick(PETS)
        self.a, self.b = recall.a_name(c), recall.a_name(c)
        while self.a.lower() == self.b.lower():
            self.b = recall.a_name(c)
        self.ps = MANY.get(self.p, self.p + "s")

    def put(self, text):
        return text.replace("{ps}", self.ps).replace("{p}", self.p).replace("{a}", self.a).replace("{b}", self.b)

    def ask(self, c, bank):
        return fill(c, bank, p=self.p, ps=self.ps, a=self.a, b=self.b)

    def tell(self, c):
        return Turn(self.ask(c, TWO_TELL), self.put(c.pick(TWO_ACK)), "thread:tell")

    def question(self, c):
        x = c.random()
        if x < 0.5:
            return Turn(self.ask(c, TWO_NAMES), self.put("Your {ps} are called {a} and {b}."), "thread:pets")
        if x < 0.75:
            return Turn(self.ask(c, TWO_COUNT), self.put("You have two {ps}: {a} and {b}."), "thread:pets")
        if x < 0.87:
            return Turn(self.ask(c, TWO_FIRST), self.put("The first {p} is called {a}."), "thread:pets")
        return Turn(self.ask(c, TWO_SECOND), self.put("The other {p} is called {b}."), "thread:pets")


def thread(c, segment):
    """One of these, or a chat that mixes them with others; segment(c) gives a list of other turns."""
    x = c.random()
    if x < 0.25:
        return another(c)
    if x < 0.4:
        return counting_on(c)
    pets = Pets(c)
    if x < 0.6:
        return [pets.tell(c)] + [pets.question(c) for _ in range(c.n(1, 2))]
    name = recall.FACTS[0]
    v = name.value(c)
    out = [Turn(fill(c, name.tell, v=v), c.pick(name.ack).replace("{v}", v), "thread:tell"), pets.tell(c)]
    if c.chance(0.3):
        out.reverse()
    for _ in range(c.n(2, 6)):
        y = c.random()
        if y < 0.25:
            out += another(c)
        elif y < 0.4:
            out += counting_on(c)
        elif y < 0.55:
            out.append(pets.question(c))
        elif y < 0.68:
            out.append(Turn(fill(c, name.ask, v=v), name.answer.replace("{v}", v), "thread:name"))
        else:
            out += [t for t in segment(c) if not t.cat.startswith("recall")]
    return out + [pets.question(c), Turn(fill(c, name.ask, v=v), name.answer.replace("{v}", v), "thread:name")]
