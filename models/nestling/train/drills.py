"""Tasks added in version 3, for training: counting in any form that comes to an end, letters of any word, tiny code and what to say
when code is asked for that is too large."""
from common import Bank, Turn, fill
from phrases import LANG
from skills import block, csv
import coin
import skills
import world as w

NUMS = {str(i): w.number_words(i) for i in range(0, 201)}


def say(c, n, p=0.5):
    """A number as a person writes it: digits, or words."""
    t = w.number_words(n) if n <= 200 and c.chance(p) else str(n)
    return t.replace("-", " ") if c.chance(0.2) else t


C_TO = Bank(q="""[please /can you /could you /will you /now /nestling, /hey, //]count[ up/ out loud/ slowly/ for me//] to {b}[ please/ for me/ now///]|count [up to/until/till/as far as/all the way to] {b}|[I want you to/I'd like you to/try to/let me hear you/let's see you/can you even/are you able to/do you know how to/show me that you can/just/go ahead and/start to] count to {b}
|[say/give me/write/list/print/show me/type/tell me/name/write down/read out/recite] [the numbers/all numbers/numbers/every number/the integers/the digits] [to/up to/until/through/from 1 to/from one to/1 through/1 to/between 1 and/from one up to/one to] {b}|[1 to/one to/1 through/from 1 to/one through/1 until/1 -/1 ..] {b}[ please/, please/ in order///]|1, 2, 3 and so on [to/up to/until] {b}|1 2 3 ... {b}|count[:/,] {b}|count from [1/one] [to/up to/until/through] {b}[ please/ for me//]
|the [first {b} numbers/numbers up to {b}/numbers one to {b}/first {b} integers/first {b} natural numbers]|how do you count to {b}?|what are the first {b} numbers?|how high can you count? to {b}?|counting to {b}|count until you reach {b}|count until {b} and stop|stop counting at {b}|count to {b} then stop|count {b} sheep""")
C_FROM = Bank(q="""[please /can you /could you /now /hey, ////]count[ up//] from {a} [to/up to/until/through/till] {b}[ please/ for me//]|[say/give me/write/list/print/show me/type] [the numbers/all numbers/numbers/every number/the integers] [from {a} to/between {a} and/{a} to/from {a} through/from {a} up to/starting at {a} and ending at] {b}|{a} [to/through/until/..] {b}[ please/, please//]|[start/begin] [at/with/from] {a} and [count/go/count up/go on] [to/until/up to] {b}
|count [starting at/starting with/beginning at/starting from/beginning with] {a} [to/until/up to/through/and stop at] {b}|from {a} count [to/up to/until] {b}|continue from {a} to {b}|what comes from {a} to {b}?|[numbers/the numbers] {a} [to/through] {b}""")
C_DOWN1 = Bank(q="""[please /can you /could you /now /hey, ////]count [backwards/backward/down/back/in reverse/in reverse order/the other way round] from {b}[ please/ for me/ to one/ to 1/ down to one/ until 1/ until one//]|count from {b} [down to/back to/backwards to/to/down until] [1/one]|[do/give me/start/begin/make/I want/I need/let's have/let me hear] a countdown [from/starting at/of/beginning at] {b}[ to one/ to 1/ please//]|countdown from {b}|[countdown/count down/backwards/in reverse]: {b} to [1/one]|{b} to [1/one] [backwards/in reverse/counting down/please]
|{b} [down to/back to/backwards to] [1/one]|[say/list/write/give me/print/show me] the numbers from {b} [down to/back to/backwards to] [1/one]|[say/list/write] the numbers [backwards/in reverse] from {b}|count {b} to [1/one] [backwards/in reverse]|reverse counting from {b}|go [backwards/down] from {b} to [1/one]|start [at/with/from] {b} and count [down/backwards/back]""")
C_DOWN0 = Bank(q="""count [backwards/backward/down/back/in reverse] from {b} [to/down to/until] [0/zero]|count from {b} [down to/back to/backwards to/to] [0/zero]|[do/give me/start/make/let's have] a [rocket /launch //]countdown from {b} to [0/zero]|countdown from {b} to [0/zero]|{b} [to/down to/back to] [0/zero][ please//]|the numbers from {b} down to [0/zero]|count {b} to [0/zero]""")
C_DOWN = Bank(q="""count [backwards/backward/down/back/in reverse] from {b} [to/down to/until/till/and stop at] {a}|count from {b} [down to/back to/backwards to] {a}|[do/give me/start/make] a countdown from {b} to {a}|countdown from {b} to {a}|[say/list/write/give me] the numbers from {b} [down to/back to/backwards to] {a}|{b} [down to/back to/backwards to] {a}[ please//]|[start/begin] at {b} and count [down/back/backwards] to {a}|the numbers between {b} and {a}, backwards""")
BY = {2: "twos", 3: "threes", 4: "fours", 5: "fives", 6: "sixes", 7: "sevens", 8: "eights", 9: "nines", 10: "tens", 20: "twenties", 25: "twenty-fives", 50: "fifties", 100: "hundreds"}
C_BY = Bank(q="""count [by/in/using/with] {ss} [to/up to/until/till/through] {b}|count to {b} [by/in] {ss}[ please//]|count up to {b} in {ss}|[please /can you /could you ///]count [in/by] [steps/jumps/increments] of {s} [to/up to/until] {b}|count to {b} in [steps/jumps] of {s}|go [up to/to] {b} in [steps of {s}/{ss}]|[skip count/skip-count] by {ss} to {b}|[list/say/write/give me/name/show me] the multiples of {s} [to/up to/until] {b}|multiples of {s} [to/up to/until] {b}|[the/all] multiples of {s} up to {b}|{s}, and so on in {ss} up to {b}|count by {ss} from {s} to {b}|step by {s} up to {b}|every {s}th number up to {b}""")
C_BYF = Bank(q="""count [by/in] {ss} from {a} to {b}|count from {a} to {b} [by/in] {ss}|from {a} to {b} in {ss}|count from {a} to {b} in steps of {s}|[start/begin] at {a} and count by {ss} to {b}|count in {ss} starting at {a} [up to/to/until] {b}""")
C_W = Bank(q="""[please /can you /could you //]count[ up//] to {b} [in words/with words/using words/in number words/as words/spelled out/in letters/in written words/written out/but in words/, in words]|count in words [to/up to/until/from one to/from 1 to] {b}|[write/say/spell out/spell/list/print/give me] the numbers [to/up to/from 1 to/from one to] {b} [in words/as words/with words/in letters/written out/spelled out]|[one to/1 to] {b} [in words/as words/spelled out]|the [number words/words for the numbers] [up to/to/until] {b}|count to {b}, [no digits/without digits/words only/only words/using words only]|the numbers one to {b} as words|spell the numbers up to {b}""")
C_WD = Bank(q="""count [backwards/down/back] from {b} in words[/ please]|count down from {b} in [words/number words]|[write/say] the numbers from {b} [down to/back to] one in words|countdown from {b} in words""")
C_WF = Bank(q="""count from {a} to {b} in words|[write/say] the numbers from {a} to {b} [in words/as words/spelled out]|{a} to {b} in words""")
C_E = Bank(q="""[the/all the/all/give me the/list the/list all/count the/write the/name the/say the/show me the] [even numbers/even ones] [to/up to/until/below or equal to/from 2 to/from two to/from 1 to/between 1 and] {b}|[even numbers/evens] [to/up to/until] {b}|which numbers [to/up to/until] {b} are even?""")
C_O = Bank(q="""[the/all the/all/give me the/list the/list all/count the/write the/name the/say the/show me the] [odd numbers/odd ones] [to/up to/until/below or equal to/from 1 to/from one to/between 1 and] {b}|[odd numbers/odds] [to/up to/until] {b}|which numbers [to/up to/until] {b} are odd?""")


def counting(c):
    x = c.random()
    cat = "skill:count"
    if x < 0.34:
        b = c.n(1, 20) if c.chance(0.6) else c.n(1, 50) if c.chance(0.7) else c.pick((60, 70, 75, 80, 90, 99, 100, 100, 100, 110, 120, 150, 200))
        return Turn(fill(c, C_TO, b=say(c, b, 0.55)), csv(range(1, b + 1)) + ".", cat)
    if x < 0.44:
        a = c.n(0, 30)
        b = a + c.n(1, 20)
        words = c.chance(0.4)
        return Turn(fill(c, C_FROM, a=say(c, a, words), b=say(c, b, words)), csv(range(a, b + 1)) + ".", cat)
    if x < 0.56:
        b = c.n(2, 20) if c.chance(0.8) else c.pick((25, 30, 40, 50, 100))
        return Turn(fill(c, C_DOWN1, b=say(c, b)), csv(range(b, 0, -1)) + ".", cat)
    if x < 0.61:
        b = c.n(2, 20)
        return Turn(fill(c, C_DOWN0, b=say(c, b)), csv(range(b, -1, -1)) + ".", cat)
    if x < 0.66:
        a = c.n(1, 20)
        b = a + c.n(2, 15)
        return Turn(fill(c, C_DOWN, a=say(c, a), b=say(c, b)), csv(range(b, a - 1, -1)) + ".", cat)
    if x < 0.80:
        s = c.pick((2, 2, 2, 3, 4, 5, 5, 10, 10, 6, 7, 8, 9, 20, 25, 50, 100))
        b = s * c.n(3, 12)
        return Turn(fill(c, C_BY, s=say(c, s, 0.4), ss=BY[s] if c.chance(0.75) else f"{s}s", b=say(c, b, 0.35)), csv(range(s, b + 1, s)) + ".", cat)
    if x < 0.83:
        s = c.pick((2, 3, 5, 10))
        a = c.n(0, 20)
        b = a + s * c.n(3, 10)
        return Turn(fill(c, C_BYF, a=say(c, a, 0.3), s=str(s), ss=BY[s], b=say(c, b, 0.3)), csv(range(a, b + 1, s)) + ".", cat)
    if x < 0.91:
        b = c.n(2, 20) if c.chance(0.75) else c.n(21, 60)
        return Turn(fill(c, C_W, b=say(c, b)), ", ".join(w.number_words(i) for i in range(1, b + 1)) + ".", cat)
    if x < 0.935:
        b = c.n(2, 20)
        return Turn(fill(c, C_WD, b=say(c, b)), ", ".join(w.number_words(i) for i in range(b, 0, -1)) + ".", cat)
    if x < 0.96:
        a = c.n(1, 20)
        b = a + c.n(2, 12)
        return Turn(fill(c, C_WF, a=say(c, a), b=say(c, b)), ", ".join(w.number_words(i) for i in range(a, b + 1)) + ".", cat)
    b = c.n(4, 40)
    if c.chance(0.5):
        return Turn(fill(c, C_E, b=say(c, b)), csv(range(2, b + 1, 2)) + ".", cat)
    return Turn(fill(c, C_O, b=say(c, b)), csv(range(1, b + 1, 2)) + ".", cat)


# ---- letters
OCC = Bank(q="""how many {l}'s are [in/there in] [{w}/the word {w}/"{w}"]?|how many {l}s are [in/there in] [{w}/the word {w}]?|how many {l} are [in/there in] [{w}/the word {w}]?|how often [does the letter {l}/does {l}] [occur/appear/come up/show up] in [{w}/the word {w}/"{w}"]?|how many times [does {l}/does the letter {l}/is {l}] [occur/appear/used] in [{w}/"{w}"]?|count the [letter {l}/{l}'s/letters {l}/{l}s] in [{w}/the word {w}/"{w}"]|the number of [{l}'s/{l}s/letters {l}] in [{w}/"{w}"]|number of {l} in {w}|how many times is the letter {l} in {w}?""")
NTH = Bank(q="""what is [the {o} letter/letter number {k}/letter {k}] [of/in] [{w}/the word {w}/"{w}"]?|[the {o} letter/letter number {k}] of [{w}/"{w}"]|which letter [is the {o}/comes {o}/is number {k}] in [{w}/"{w}"]?|tell me the {o} letter of [{w}/the word {w}]|{w}: {o} letter?""")
ORD = "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth".split()
HAS = Bank(q="""[is there/does it have] [an/a/the letter] {l} in [{w}/the word {w}/"{w}"]?|does [{w}/the word {w}/"{w}"] [contain/have] [the letter {l}/an {l}/a {l}]?|is the letter {l} in {w}?""")


def letters(c):
    x = skills.a_word(c)
    d = "-".join(x)
    r = c.random()
    if r < 0.5:
        l = c.pick(x.lower()) if c.chance(0.85) else c.pick(coin.ABC)
        k = x.lower().count(l)
        return Turn(fill(c, OCC, w=x, l=l), f"{x}: {d}. The letter {l} is there {k} time{'' if k == 1 else 's'}.", "skill:letter count")
    if r < 0.8:
        k = c.n(2, min(6, len(x)))
        return Turn(fill(c, NTH, w=x, k=k, o=ORD[k - 1] if c.chance(0.8) else f"{k}{('st', 'nd', 'rd')[k - 1] if k < 4 else 'th'}"), f"{x}: {d}. Letter {k} is {x[k - 1]}.", "skill:nth letter")
    l = c.pick(x.lower()) if c.chance(0.5) else c.pick(coin.ABC)
    return Turn(fill(c, HAS, w=x, l=l), f"{x}: {d}. {'Yes, the letter ' + l + ' is in it' if l in x.lower() else 'No, there is no ' + l}.", "skill:has letter")


# ---- tiny code: wanted by any wording, in Python or C
TASKS = [
    ("reverses a string|reverse a string|reverse text|turn a word around|write a word backwards|reversing a string|string reversal",
     "def reverse(s):\n    return s[::-1]",
     "void reverse(char *s)\n{\n    for (int i = 0, j = strlen(s) - 1; i < j; i++, j--) {\n        char t = s[i];\n        s[i] = s[j];\n        s[j] = t;\n    }\n}"),
    ("sorts a list|sort a list|sort numbers|sort an array|sorting a list|sorts numbers|put a list in order|sort a list of numbers|order an array",
     "numbers = [3, 1, 2]\nnumbers.sort()\nprint(numbers)",
     "for (int i = 0; i < n; i++)\n    for (int j = i + 1; j < n; j++)\n        if (a[j] < a[i]) {\n            int t = a[i];\n            a[i] = a[j];\n            a[j] = t;\n        }"),
    ("finds the largest number of a list|find the maximum of a list|get the largest element|the maximum of an array|find the biggest number in a list|computes the maximum of a list|max of a list|compute the largest value of an array",
     "def largest(numbers):\n    return max(numbers)",
     "int largest(const int *a, int n)\n{\n    int m = a[0];\n    for (int i = 1; i < n; i++)\n        if (a[i] > m)\n            m = a[i];\n    return m;\n}"),
    ("finds the smallest number of a list|find the minimum of a list|get the smallest element|the minimum of an array|find the least number in a list|min of a list",
     "def smallest(numbers):\n    return min(numbers)",
     "int smallest(const int *a, int n)\n{\n    int m = a[0];\n    for (int i = 1; i < n; i++)\n        if (a[i] < m)\n            m = a[i];\n    return m;\n}"),
    ("checks for a palindrome|check whether a word is a palindrome|tell if a string is a palindrome|a palindrome check|test for palindromes|find out if a word is a palindrome|is a word a palindrome",
     "def is_palindrome(s):\n    return s == s[::-1]",
     "int is_palindrome(const char *s)\n{\n    for (int i = 0, j = strlen(s) - 1; i < j; i++, j--)\n        if (s[i] != s[j])\n            return 0;\n    return 1;\n}"),
    ("counts the vowels of a word|count vowels|count the vowels in a string|a vowel counter|the number of vowels in a text",
     "def vowels(s):\n    return sum(ch in \"aeiou\" for ch in s.lower())",
     "int vowels(const char *s)\n{\n    int n = 0;\n    for (; *s; s++)\n        n += strchr(\"aeiou\", *s) != NULL;\n    return n;\n}"),
    ("reads a file and prints it|read a file|print the lines of a file|open a file and read it|print a file line by line|show the content of a file|read a text file",
     "with open(\"notes.txt\") as f:\n    for line in f:\n        print(line, end=\"\")",
     "FILE *f = fopen(\"notes.txt\", \"r\");\nint ch;\nwhile ((ch = fgetc(f)) != EOF)\n    putchar(ch);\nfclose(f);"),
    ("asks for a name and greets|ask the user for a name|read input from the user|get user input|read a name and say hello|ask for input",
     "name = input(\"Your name? \")\nprint(\"Hello, \" + name + \"!\")",
     "char name[64];\nprintf(\"Your name? \");\nscanf(\"%63s\", name);\nprintf(\"Hello, %s!\\n\", name);"),
    ("a while loop|use a while loop|repeat with while|an example of a while loop|write a while loop|loop with while",
     "i = 1\nwhile i <= 10:\n    print(i)\n    i += 1",
     "int i = 1;\nwhile (i <= 10) {\n    printf(\"%d\\n\", i);\n    i++;\n}"),
    ("prints the even numbers|print even numbers|even numbers up to 20|list the even numbers|print all even numbers|print the even numbers to 20",
     "for i in range(2, 21, 2):\n    print(i)",
     "for (int i = 2; i <= 20; i += 2)\n    printf(\"%d\\n\", i);"),
    ("checks for a prime number|test if a number is prime|a prime test|find out whether a number is prime|check primes|is a number prime",
     "def is_prime(n):\n    return n > 1 and all(n % d for d in range(2, int(n ** 0.5) + 1))",
     "int is_prime(int n)\n{\n    for (int d = 2; d * d <= n; d++)\n        if (n % d == 0)\n            return 0;\n    return n > 1;\n}"),
    ("computes the average of a list|average of numbers|the mean of a list|compute the mean|find the average|calculate an average",
     "def average(numbers):\n    return sum(numbers) / len(numbers)",
     "double average(const int *a, int n)\n{\n    double s = 0;\n    for (int i = 0; i < n; i++)\n        s += a[i];\n    return s / n;\n}"),
    ("the length of a string|get the length of a string|find out how long a string is|count the characters of a string|measure a string",
     "print(len(\"hello\"))", "printf(\"%zu\\n\", strlen(\"hello\"));"),
    ("turns a text into capitals|make a string upper case|convert text to upper case|uppercase a string|change a word to capital letters",
     "print(\"hello\".upper())", "for (char *p = s; *p; p++)\n    *p = toupper(*p);"),
    ("splits a sentence into words|split a string|split text at spaces|break a sentence into words|get the words of a text",
     "words = \"one two three\".split()\nprint(words)", "for (char *p = strtok(s, \" \"); p; p = strtok(NULL, \" \"))\n    puts(p);"),
    ("computes a square|square a number|a function that squares|multiply a number by itself|the square of a number",
     "def square(x):\n    return x * x", "int square(int x)\n{\n    return x * x;\n}"),
    ("a function with two arguments|define a function|how a function is defined|make a function|declare a function|an example of a function",
     "def add(a, b):\n    return a + b", "int add(int a, int b)\n{\n    return a + b;\n}"),
    ("a comment|write a comment|make a comment|comment a line", "# this is a comment", "/* this is a comment */"),
    ("swaps two numbers|swap two variables|exchange two values|switch two values", "a, b = b, a", "int t = a;\na = b;\nb = t;"),
    ("prints the numbers 1 to 10|print one to ten|a for loop|write a for loop|loop ten times|an example of a for loop|print numbers in a loop",
     "for i in range(1, 11):\n    print(i)", "for (int i = 1; i <= 10; i++)\n    printf(\"%d\\n\", i);"),
    ("prints hello|print hello world|say hello world|hello world|hello, world|a hello world program|the classic first program",
     'print("Hello, world!")', '#include <stdio.h>\n\nint main(void)\n{\n    puts("Hello, world!");\n    return 0;\n}'),
    ("adds up a list|sum a list|the sum of a list|add all numbers of a list|sum of an array|total of a list",
     "print(sum([1, 2, 3]))", "int total = 0;\nfor (int i = 0; i < n; i++)\n    total += a[i];"),
    ("multiplies two numbers|multiply two numbers|a function that multiplies", "def multiply(a, b):\n    return a * b", "int multiply(int a, int b)\n{\n    return a * b;\n}"),
    ("an if statement|write an if|a condition|if and else|use if and else", 'if x > 0:\n    print("positive")\nelse:\n    print("not positive")', 'if (x > 0)\n    puts("positive");\nelse\n    puts("not positive");'),
]
CODE_Q = Bank(q="""[how do I/how can I/how would you/how do you/how to/how could I/how does one/what is the way to/I want to/I need to/help me to/show me how to/teach me how to/can you show me how to/tell me how to] {v} in {l}[?/ please?//]|[write/give me/show me/make/I need/I want/code/can you write/could you write/please write/create/implement] [a program/a function/code/some code/a script/a snippet/a small program/a tiny function/{l} code/a {l} function/a {l} program/a {l} script/a piece of code] [to {v}/that can {v}/for this: {v}/to {v}/which does this: {v}] in {l}
|[write/give me/show me/make/I need/can you write/please write/create] [{l} code/a {l} function/a {l} program/a {l} script/some {l}/a bit of {l}/a {l} snippet] [to {v}/that will {v}/that can {v}/for this: {v}]|{l}: {v}|{v} in {l}|{v} using {l}|in {l}, [how do I {v}/{v}/how to {v}]|{l} code[: /, /: how to ]{v}|with {l}, {v}|{l}, {v}, please|what is the {l} code to {v}?|[a/some] {l} example: {v}""")
CODE_P = Bank(q="""[write/give me/show me/make/I need/code/can you write/please write/create/implement] [a program/a function/code/a script/a snippet/a small program] [to {v}/that can {v}/to {v}]|[how do I/how can I/how to] {v} [in code/in a program/when programming/with a program]?|code to {v}|a function to {v}|program: {v}|can you code this: {v}|write code which can {v}""")
CODE_S = Bank(q="""[write/give me/show me/make/I need/code/can you write/could you write/please write/create/implement] [a program/a function/code/some code/a script/a {l} function/a {l} program/a small program] that {v} in {l}|[write/give me/show me/I need/can you write/please write] [a {l} function/a {l} program/a {l} script/{l} code/a bit of {l}/a {l} snippet] that {v}|{l} code that {v}|a {l} function that {v}|in {l}, a function that {v}|a program that {v}, in {l}|[write/give me/show me/make] [a program/a function/code] that {v}""")
PLAIN = ("a ", "an ", "the ", "how a ", "hello", "if and", "max", "min", "average", "even numbers", "is a ", "sum of", "text", "total", "string", "sorting", "reversing")


def code(c):
    names, py, cc = c.pick(TASKS)
    v = c.pick(names.split("|"))
    python = c.chance(0.6)
    l = c.pick(("Python", "python", "Python", "py")) if python else c.pick(("C", "c", "C", "plain C"))
    third = v.split()[0].endswith("s") and v.split()[0] not in ("is",) and not v.startswith(PLAIN)
    if v.startswith(PLAIN):
        return Turn(fill(c, LANG, t=v, l=l), block("python" if python else "c", py if python else cc), "skill:code")
    if third:
        t = fill(c, CODE_S, v=v, l=l)
        python = python or l.strip().lower() not in t.lower().split() and l not in t
    elif c.chance(0.2):
        t, python = fill(c, CODE_P, v=v), True
    else:
        t = fill(c, CODE_Q, v=v, l=l)
    if third and l not in t:
        python = True
    return Turn(t, block("python" if python else "c", py if python else cc), "skill:code")


LANGS = "C++ Java JavaScript TypeScript Rust Go Haskell Kotlin Swift Ruby PHP Perl Scala Lua R Julia Fortran COBOL Lisp Zig Bash SQL HTML CSS Assembly MATLAB Erlang Prolog Dart Elixir".split()
BIG = """a chess engine|a web server|a compiler|a database|a game|a web app|a red-black tree|a hash map|a linked list|a binary search tree|a neural network|a parser|a REST API|a chat bot|a text editor|an operating system|a ray tracer|a spreadsheet
|a shell|a website|a mobile app|a scraper|a machine learning model|a physics engine|a thread pool|a memory allocator|a garbage collector|a JSON parser|a regex engine|tetris|snake|pong|a sudoku solver|a calculator with a window|a TCP server|a login form|quicksort|merge sort|heap sort|a B-tree|Dijkstra's algorithm|a graph search|a matrix library|a GUI|a bitcoin miner|unit tests for my project|a plugin|an encryption tool|a package manager|a driver|a kernel module|a video player|a music player|a file manager|a todo app|a blog|an online shop""".replace("\n", "").split("|")
ABOUT = """malloc|pointers|a segmentation fault|decorators|list comprehensions|lambda|generators|async|threads|mutexes|git rebase|git merge|a merge conflict|docker|kubernetes|make|cmake|npm|pip|virtual environments|templates|inheritance|polymorphism|closures|recursion in depth|big O notation|SQL joins|indexes|REST|GraphQL|regular expressions|unit testing|continuous integration|linked lists|hash tables|a stack overflow|the heap and the stack|undefined behaviour|memory barriers|volatile|const correctness
|the GIL|asyncio|pandas|numpy|React hooks|promises|callbacks|monads|borrow checking|lifetimes|goroutines|channels|macros|the preprocessor|linking|header files|makefiles|ssh keys|cron jobs|systemd|environment variables|Unicode|endianness|floating point errors""".replace("\n", "").split("|")
CODE_BIG = Bank(q="""[write/code/program/build/implement/create/make/develop/design/give me/can you write/could you write/please write/I need/I want/help me write/help me build/show me] {t}[ in {l}/ in {l}/ using {l}/ with {l}/ for me/ from scratch/ please//]|[how do I/how would you/how can I] [write/build/implement/code/make] {t}[ in {l}/ with {l}/]?|{t} in {l}|[write/give me/show me/can you write/please write] [a program/a function/code/a script/a class/a loop/hello world/a for loop/a sorting function/a sort/the factorial function] in {l}|can you [code/program/write/write code] in {l}?""")
CODE_FIX = Bank(q="""[debug/fix/review/explain/improve/optimize/refactor/correct/check/test/rewrite/simplify/comment/document/port/speed up] [this/my code/this code/this function/this program/this snippet/this line/this loop/the following]: {s}|[what is wrong/what's wrong/where is the bug/where is the error/why is there an error] [with/in] [this/this code/my code/the following]: {s}|why does [this/this code/this line] [fail/crash/not work/not compile/give an error/throw]: {s}|{s} [why does this fail/what is wrong here/does not work/gives an error/what does this do]?|[convert/translate/port/rewrite] [this/this code/my code/my script/this Java class/this function/my program] [to/into/in] {l}|what does this [code/line/function/program/snippet] do: {s}|[what does/what will] this print: {s}""")
CODE_ABOUT = Bank(q="""[what is/what are/what's/explain/tell me about/describe/how does one use/how do I use/how does one understand/I do not understand/help me with/teach me/when do I use/why do people use/what is the use of/what do I need to know about] {t}[ in {l}/ in C/ in Python/ in programming/ when coding////]?|what does {t} do[ in C/ in Python/ in {l}/]?|how [does/do] {t} work[ in C/ in Python/ in {l}/]?|the difference between {t} and {u}|{t} or {u}, which is better?|[why do I get/how do I avoid/how do I debug] {t}[ in {l}/]?""")
SNIPS = ["for i in range(10) print(i)", "int main() { return x }", "if x = 3: print(x)", "print('hi'", "while true { }", "def f(x) return x", "x = [1, 2, 3", "printf(\"%s\", 5);", "let a = b +", "SELECT * FORM users", "function go() { retrun 1 }",
         "int *p = NULL; *p = 3;", "import numpi", "for (int i = 0; i <= n; i++) a[i] = 0;", "free(p); free(p);", "const x = await y", "fn main() { println!(x) }", "a = a + 1 +", "return x;;", "else if x > 2:", "while (i < 10) { }", "class A { int x }",
         "[i*i for i in range(5)]", "lambda x: x + 1", "x += 1", "s[::-1]", "a ? b : c", "cat file | sort | uniq", "rm -rf build", "git push --force"]
NO_CODE = ["I can only write tiny programs in C or Python, such as a loop or a small function. For real code, load a larger model with `-m`.",
           "That is too much code for me: I know only tiny pieces of C and Python. A larger model, loaded with `-m`, can help."]


def no_code(c):
    x = c.random()
    l = c.pick(LANGS)
    if x < 0.45:
        t = fill(c, CODE_BIG, t=c.pick(BIG), l=l)
    elif x < 0.7:
        t = fill(c, CODE_FIX, s=c.pick(SNIPS), l=l)
    else:
        t = fill(c, CODE_ABOUT, t=c.pick(ABOUT), u=c.pick(ABOUT), l=l)
    return Turn(t, c.pick(NO_CODE), "refuse:code", ("re", r"-m"))


skills.SORT_W.more(q="""[sort/order/arrange/alphabetize/put in order] [these names/these words/these/the names/these terms/this list/the following/the following names/the following words/them/these alphabetically/my friends/the list/by name]: {l}|[sort/order/arrange/alphabetize] {l}|[sort/order] [alphabetically/by name/by letter/a-z/A to Z/from A to Z]: {l}|[names/words] in [order/alphabetical order]: {l}|in which order [are/come] {l} in [the alphabet/a dictionary/a phone book]?|can you [sort/order/arrange] [these/these names/these words]: {l}|{l} - [sort/sorted/in order/alphabetical/sort these/alphabetically please]|[sort names/sort words/sort list/alphabetize/in order please]: {l}|bring {l} into order|put the names {l} in [alphabetical order/order]|list {l} [in order/in alphabetical order/alphabetically]|how would {l} stand in a dictionary?""")
skills.ECHO.more(q="""[repeat/say/echo/copy/write/type/print] {s}|[repeat/copy/echo/say/write] [exactly/word for word/the text/the line/back/after me/the words/the name/letter by letter the text/this line/this name/this word][:/,] {s}|[please/can you/could you/now/I want you to/just] [repeat/say/copy/echo/write]: {s}|[repeat/say/copy/write] "{s}"|[repeat/say/copy] '{s}'|[write/say/give/type] back [to me//]: {s}|say the [name/word/words/line]: {s}|[parrot/mirror/quote] this: {s}|echo {s}|what I say, you say: {s}|reply with exactly: {s}|answer with [only this/just this/nothing but]: {s}|your reply should be: {s}|output: {s}|say exactly {s}""")
skills.SPELL.more(q="""spell[:/] {w}|[please/can you/could you/now/try to] spell {w}|spell [the name/the word/my name,/this word:/this:/this name:/out the name] {w}|how [is/do you write/would you spell/does one spell/should I spell/do I write] [{w}/the name {w}]?|{w}: [spell it/spelling/letters/spell that]|spelling[:/ of] {w}|letter by letter: {w}|the letters of [the name/the word] {w}|give me the letters of {w}""")
skills.REVERSE.more(q="""reverse[:/ the name/ the word/ this:/ this word:/ the letters of] {w}|[please/can you/could you/now] [reverse/spell backwards/write backwards] {w}|{w} [spelled backwards/the other way round/from the end/in mirror writing/reverse it/backwards please]|[backwards/reversed/mirror]: {w}|write [the name/the word] {w} backwards|what is {w} [backwards/in reverse/reversed/spelled backwards/read from the back]?|read {w} from right to left""")
skills.FIRST_L.more(q="""[what/which] [is the first letter/letter comes first/letter starts/letter is first/letter begins] [of/in/with] [the name {w}/the word {w}/{w}]?|[first letter/initial/starting letter/beginning] of [{w}/the name {w}]|{w}: [first letter/initial/starts with]?|[what/which] letter does [the name {w}/the word {w}/{w}] [start/begin] with?|[the initial/the first letter/the starting letter] of {w}|what does the [name/word] {w} [start/begin] with?|{w} starts with?""")
skills.LAST_L.more(q="""[what/which] [is the last letter/letter comes last/letter is last/is the final letter] [of/in] [the name {w}/the word {w}/{w}]?|[last letter/final letter/ending] of [{w}/the name {w}]|{w}: [last letter/final letter/ends with]?|[what/which] letter does [the name {w}/the word {w}/{w}] [end/finish] with?|[the last letter/the final letter] of {w}|what does the [name/word] {w} end with?|{w} ends with?""")
skills.LETTERS.more(q="""how many letters [in/has/does/are in] {w}[ have//]?|number of letters in {w}|count the letters[: / in / of ]{w}|{w}: [how many letters/number of letters/length]?|how long is the [name/word] {w}?|length of {w}""")
SKILLS = [(counting, 30), (letters, 14), (skills.spell, 12), (skills.reverse, 9), (skills.edge_letter, 9), (skills.letters, 4), (skills.sort_words, 14), (skills.echo, 14), (skills.case, 3), (code, 16)]
_SUM = sum(n for _, n in SKILLS)


def drill(c):
    x = c.random() * _SUM
    for f, n in SKILLS:
        x -= n
        if x < 0:
            break
    return f(c)
