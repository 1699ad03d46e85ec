"""Words and names that nobody has seen before, of every kind of split into tokens, so that letters are learned and not lists of words.
They depend on the text of this folder alone, not on a tokenizer."""
import os
import re

import world as w

HERE = os.path.dirname(os.path.abspath(__file__))
ABC = "abcdefghijklmnopqrstuvwxyz"
CONS = "b c d f g h j k l m n p qu r s t v w x y z br bl ch ck cl cr dr fl fr gh gl gr kl kn kr ll mm nn ph pl pr rr sc sh sk sl sm sn sp st sw th tr ts tt tw wh wr zz".split()
VOWS = "a e i o u a e i o y ai ea ee ei eu ia ie io oa oo ou ue au".split()
ENDS = "a o n r l s x ia on us er ine ette ard wick ton ford field stein son ville ling ness ment tion able ing ed ish ox ix ax ump anda elle ora ius".split()


def pieces():
    """Parts of the words in this folder's texts: what tokens are made of."""
    seen = {}
    for name in ("concepts.txt", "faq.txt", "smalltalk.txt", "compare.txt"):
        with open(os.path.join(HERE, name), encoding="utf-8") as f:
            for x in re.findall(r"[a-z]{3,}", f.read().lower()):
                seen[x] = 1
    for x in w.WORDS + [n.lower() for n in w.NAMES + w.SURNAMES + w.CITIES]:
        if x.isascii() and x.isalpha():
            seen[x] = 1
    return list(seen)


TEXT = pieces()


def part(c, lo=2, hi=5):
    """A piece of a known word; often its beginning, which is where tokens are cut."""
    x = c.pick(TEXT)
    n = c.n(lo, hi)
    i = 0 if c.chance(0.6) else c.n(0, max(0, len(x) - n))
    return x[i:i + n]


def mutated(c):
    x = c.pick(TEXT)
    k = c.n(0, len(x) - 1)
    r = c.n(0, 3)
    if r == 0:
        return x[:k] + c.pick(ABC) + x[k:]
    if r == 1:
        return x[:k] + c.pick(ABC) + x[k + 1:]
    if r == 2 and len(x) > 4:
        return x[:k] + x[k + 1:]
    return x[:k] + x[k:k + 2][::-1] + x[k + 2:]


def lower(c):
    """An invented word of 3 to 12 small letters."""
    while True:
        r = c.random()
        if r < 0.24:
            x = "".join(c.pick(CONS) + c.pick(VOWS) for _ in range(c.n(1, 3))) + (c.pick(ENDS) if c.chance(0.6) else "")
        elif r < 0.54:
            x = part(c) + part(c) + (part(c, 1, 3) if c.chance(0.35) else "")
        elif r < 0.66:
            x = "".join(c.pick(ABC) for _ in range(c.n(3, 8)))
        elif r < 0.82:
            x = mutated(c)
        elif r < 0.92:
            x = part(c, 2, 6) + c.pick(ENDS)
        else:
            x = c.pick(TEXT)
        if 3 <= len(x) <= 12:
            return x


def name(c):
    """An invented name, with a capital."""
    return lower(c).capitalize()


def word(c):
    """An invented word, mostly in small letters."""
    x = lower(c)
    r = c.random()
    return x if r < 0.62 else x.capitalize() if r < 0.95 else x.upper()
