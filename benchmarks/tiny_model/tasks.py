"""Tasks with exact answers: what the tiny model is trained on and what it is judged by.

A task turns a :class:`Draw` into a :class:`Sample`. The same draw gives the same sample, so a seed
names a data set. Python's `random` is stable across versions for the calls made here.
"""

import json
import re
import string
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

WORDS: dict[str, list[str]] = {
    name: words.split()
    for name, words in tomllib.loads(
        (Path(__file__).parent / "words.toml").read_text(encoding="utf-8")
    ).items()
}
# All words of the tables: those that can be one token.
KNOWN: list[str] = sorted(
    {
        found
        for table in ("chat.txt", "facts.toml", "words.toml")
        for found in re.findall(
            r"[A-Za-z]{2,}", (Path(__file__).parent / table).read_text(encoding="utf-8")
        )
    }
)
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
LETTERS = string.ascii_lowercase


@dataclass(frozen=True)
class Sample:
    """One user message and the only right answer to it."""

    prompt: str
    answer: str


@dataclass(frozen=True)
class Draw:
    """Where a sample comes from.

    `tokens` is about how long prompt and answer may be together; `items` is the longest list to
    sort or reverse; `held_out` draws from the part of the small spaces (operand pairs) that
    training never sees.
    """

    rng: Random
    tokens: int = 96
    items: int = 12
    held_out: bool = False


Task = Callable[[Draw], Sample]


def random_string(rng: Random, low: int, high: int) -> str:
    return "".join(rng.choices(LETTERS, k=rng.randint(low, high)))


def pseudo_word(rng: Random) -> str:
    """A word that can be spoken and most likely does not exist."""
    start = rng.choice("aeiou") if rng.random() < 0.25 else ""
    syllables = rng.randint(2, 4 - len(start))
    body = "".join(rng.choice(_CONSONANTS) + rng.choice("aeiou") for _ in range(syllables))
    return start + body + (rng.choice("lmnrstk") if rng.random() < 0.4 else "")


_CONSONANTS = [*"bcdfghjklmnprstvwz", "tl", "br", "st", "ch", "sh", "gr"]


def known_word(rng: Random) -> str:
    """A word of the tables, at times with its first letter in the other case."""
    found = rng.choice(KNOWN)
    return found if rng.random() < 0.7 else found[0].swapcase() + found[1:]


def word(rng: Random) -> str:
    """A known word, a pseudo word or a random string."""
    kind = rng.random()
    if kind < 0.45:
        return known_word(rng)
    return pseudo_word(rng) if kind < 0.7 else random_string(rng, 1, 6)


def name(rng: Random) -> str:
    return rng.choice(WORDS["names"]) if rng.random() < 0.6 else pseudo_word(rng).capitalize()


def city(rng: Random) -> str:
    return rng.choice(WORDS["cities"]) if rng.random() < 0.7 else pseudo_word(rng).capitalize()


# --- recall ---------------------------------------------------------------------------------------

_RECALL = (
    "Recall: {pairs}. What is {key}?",
    "Recall: {pairs}. What is {key}?",
    "Recall: {pairs}. {key}?",
    "{pairs}. What is {key}?",
    "{pairs}\nWhat is {key}?",
    "Given {pairs}, what is {key}?",
    "Remember: {pairs}. What is {key}?",
    "Remember these: {pairs}. What is the value of {key}?",
    "Here is a list: {pairs}. Which value has {key}?",
    "Recall {key} from: {pairs}",
    "Look up {key}: {pairs}",
    "{pairs}. {key} =",
    "What is {key}?\n{pairs}",
)
_PAIR_STYLES = (("=", ", "), ("=", ", "), (": ", ", "), (" = ", ", "), (" is ", ", "))
_PAIR_STYLES_LONG = (("=", "; "), ("=", "\n"), (": ", "\n"), (" -> ", ", "), ("=", " "))


def _key(rng: Random, kind: int) -> str:
    if kind == 0:
        return rng.choice(LETTERS)
    if kind == 1:
        return rng.choice(WORDS[rng.choice(("things", "colours", "adjectives"))])
    if kind == 2:
        return rng.choice(WORDS["names"])
    return random_string(rng, 2, 4)


def _value(rng: Random, kind: int) -> str:
    if kind == 0:
        return str(rng.randrange(10))
    if kind == 1:
        return str(rng.randrange(10 ** rng.randint(1, 4)))
    if kind == 2:
        return rng.choice(WORDS[rng.choice(("things", "colours"))])
    return random_string(rng, 2, 4)


def pairs(rng: Random, tokens: int) -> tuple[dict[str, str], str]:
    """Unique keys with values, about `tokens` long at most, and their text."""
    keys, values = rng.choice((0, 0, 1, 2, 3)), rng.choice((0, 1, 1, 2, 3))
    between, after = rng.choice(_PAIR_STYLES if rng.random() < 0.7 else _PAIR_STYLES_LONG)
    cost = 3 + (1, 1, 1, 4)[keys] + (1, 3, 1, 3)[values]
    most = max(2, tokens // cost)
    count = rng.randint(2, most) if rng.random() < 0.7 else rng.randint(2, min(8, most))
    found: dict[str, str] = {}
    for _ in range(2 * count):  # a bound, since one letter gives only 26 keys
        found.setdefault(_key(rng, keys), _value(rng, values))
        if len(found) == count:
            break
    return found, after.join(f"{key}{between}{value}" for key, value in found.items())


def recall(draw: Draw) -> Sample:
    found, text = pairs(draw.rng, draw.tokens - 32)
    key = draw.rng.choice(list(found))
    return Sample(draw.rng.choice(_RECALL).format(pairs=text, key=key), found[key])


# --- copy -----------------------------------------------------------------------------------------

_COPY = (
    "Copy: {x}",
    "Copy: {x}",
    "Copy this: {x}",
    "Copy this text: {x}",
    "Copy the text: {x}",
    "Repeat: {x}",
    "Repeat this: {x}",
    "Repeat after me: {x}",
    "Echo: {x}",
    "Say: {x}",
    "Write exactly: {x}",
    "Output exactly this: {x}",
)
_MARKS = ".,;:!?-+*/=()[]{}<>#%&_'\"@$"


def _copy_piece(rng: Random, kind: int) -> str:
    if kind == 0:
        return word(rng)
    if kind == 1:
        return str(rng.randrange(10 ** rng.randint(1, 4)))
    if kind == 2:
        return name(rng)
    if kind == 3:
        return "".join(rng.choices(string.ascii_letters + string.digits + _MARKS, k=3))
    code_points = (rng.randrange(0xA1, 0x17F), rng.randrange(0x391, 0x3C9))
    return "".join(chr(rng.choice((*code_points, rng.randrange(0x1F600, 0x1F640)))) for _ in "ab")


def copy(draw: Draw) -> Sample:
    rng = draw.rng
    kind = rng.choice((0, 0, 0, 1, 1, 2, 3, 4))
    mixed = rng.random() < 0.2
    cost = (4, 4, 5, 4, 8)[kind] + mixed * 2
    most = max(1, (draw.tokens - 24) // (2 * cost))
    pieces = [
        _copy_piece(rng, rng.randrange(5) if mixed else kind) for _ in range(rng.randint(1, most))
    ]
    text = rng.choice((" ", " ", " ", ", ")).join(pieces)
    return Sample(rng.choice(_COPY).format(x=text), text)


# --- reverse --------------------------------------------------------------------------------------

_REVERSE_WORD = (
    "Reverse: {x}",
    "Reverse: {x}",
    "Reverse: {x}",
    "Reverse {x}",
    "Reverse this: {x}",
    "Reverse the word {x}",
    "Reverse the word: {x}",
    "Reverse the string {x}",
    "Reverse the letters of {x}",
    "Spell {x} backwards",
    "Write {x} backwards",
    "What is {x} reversed?",
    "What is {x} backwards?",
    'Reverse "{x}"',
)
_REVERSE_LIST = (
    "Reverse: {x}",
    "Reverse: {x}",
    "Reverse {x}",
    "Reverse the list: {x}",
    "Reverse this list: {x}",
    "Reverse the order of: {x}",
    "Reverse the order: {x}",
)


def _reversible(rng: Random) -> str:
    kind = rng.random()
    if kind < 0.3:
        return random_string(rng, 2, 12)
    if kind < 0.6:
        return known_word(rng)
    if kind < 0.9:
        return pseudo_word(rng) if rng.random() < 0.8 else pseudo_word(rng).capitalize()
    return "".join(rng.choices(string.digits, k=rng.randint(2, 10)))


def reverse_word(draw: Draw) -> Sample:
    text = _reversible(draw.rng)
    return Sample(draw.rng.choice(_REVERSE_WORD).format(x=text), text[::-1])


def _items(rng: Random, most: int) -> list[str]:
    """Two to `most` numbers below 100, single letters or known words."""
    count, kind = rng.randint(2, most), rng.random()
    if kind < 0.35:
        return [str(rng.randrange(10)) for _ in range(count)]
    if kind < 0.7:
        return [str(rng.randrange(100)) for _ in range(count)]
    if kind < 0.8:
        return rng.choices(LETTERS, k=count)
    return [rng.choice(WORDS[rng.choice(("things", "colours"))]) for _ in range(min(count, 8))]


def _join(rng: Random) -> Callable[[Sequence[str]], str]:
    """A way to write a list: `1 2`, `1, 2`, `1,2` or `[1, 2]`."""
    separator = rng.choice((" ", " ", ", ", ", ", ","))
    if separator == ", " and rng.random() < 0.3:
        return lambda items: f"[{', '.join(items)}]"
    return separator.join


def reverse_list(draw: Draw) -> Sample:
    items = _items(draw.rng, draw.items)
    join = _join(draw.rng)
    return Sample(draw.rng.choice(_REVERSE_LIST).format(x=join(items)), join(items[::-1]))


def reverse(draw: Draw) -> Sample:
    return reverse_word(draw) if draw.rng.random() < 0.65 else reverse_list(draw)


# --- sort -----------------------------------------------------------------------------------------

_SORT = (
    "Sort: {x}",
    "Sort: {x}",
    "Sort: {x}",
    "Sort {x}",
    "Sort this: {x}",
    "Sort these: {x}",
    "Sort the list: {x}",
    "Sort this list: {x}",
    "Sort ascending: {x}",
    "Put in order: {x}",
    "Order: {x}",
    "{x}\nSort these.",
)
_SORT_NUMBERS = (
    "Sort these numbers: {x}",
    "Sort the numbers: {x}",
    "Sort the numbers {x}",
    "Sort from smallest to largest: {x}",
)
_SORT_DOWN = (
    "Sort descending: {x}",
    "Sort in descending order: {x}",
    "Sort from largest to smallest: {x}",
    "Sort backwards: {x}",
)


def sort(draw: Draw) -> Sample:
    rng = draw.rng
    items = _items(rng, draw.items)
    numbers = items[0].isdigit()
    ordered = sorted(items, key=int) if numbers else sorted(items)
    join, kind = _join(rng), rng.random()
    if kind < 0.15:
        return Sample(rng.choice(_SORT_DOWN).format(x=join(items)), join(ordered[::-1]))
    if kind < 0.35:
        special = _SORT_NUMBERS if numbers else ("Sort alphabetically: {x}", "Sort the words: {x}")
        return Sample(rng.choice(special).format(x=join(items)), join(ordered))
    return Sample(rng.choice(_SORT).format(x=join(items)), join(ordered))


# --- arithmetic -----------------------------------------------------------------------------------

_ADD = (
    "What is {a} + {b}?",
    "What is {a} + {b}?",
    "What is {a}+{b}?",
    "What's {a} + {b}?",
    "{a} + {b}",
    "{a}+{b}",
    "{a} + {b} =",
    "{a}+{b}=",
    "{a}+{b}=?",
    "{a} + {b} = ?",
    "Add {a} and {b}",
    "Add: {a} + {b}",
    "Sum {a} and {b}",
    "What is the sum of {a} and {b}?",
    "What is {a} plus {b}?",
    "How much is {a} + {b}?",
    "How much is {a} plus {b}?",
    "Calculate {a} + {b}",
    "Calculate: {a} + {b}",
    "Compute {a} + {b}",
)
_SUBTRACT = (
    "What is {a} - {b}?",
    "{a} - {b}",
    "{a}-{b}",
    "{a} - {b} =",
    "Subtract {b} from {a}",
    "What is {a} minus {b}?",
    "How much is {a} - {b}?",
    "Calculate {a} - {b}",
)
_MULTIPLY = (
    "What is {a} * {b}?",
    "What is {a} x {b}?",
    "{a} * {b}",
    "{a} * {b} =",
    "Multiply {a} by {b}",
    "What is {a} times {b}?",
    "Calculate {a} * {b}",
)


def is_held_out(a: int, b: int) -> bool:
    """Whether training never sees this pair of operands, in either order: about one in forty.

    The first condition leaves ten pairs of last digits, with and without a carry; the second keeps
    a quarter of them, so that every pair of digits is also seen in training.
    """
    low, high = sorted((a, b))
    mixed = (low * 1000 + high) * 2654435761 % 2**32 >> 16  # Knuth's multiplicative hash
    return (low + 7 * high) % 10 == 0 and mixed % 4 == 0


def _operands(draw: Draw, limit: int) -> tuple[int, int]:
    while True:
        a, b = draw.rng.randrange(limit), draw.rng.randrange(limit)
        if is_held_out(a, b) == draw.held_out:
            return a, b


def add(draw: Draw) -> Sample:
    """Two numbers below 100."""
    a, b = _operands(draw, 100)
    return Sample(draw.rng.choice(_ADD).format(a=a, b=b), str(a + b))


def add_large(draw: Draw) -> Sample:
    """Two numbers below 1000."""
    a, b = _operands(draw, 1000)
    return Sample(draw.rng.choice(_ADD).format(a=a, b=b), str(a + b))


def subtract(draw: Draw) -> Sample:
    """Two numbers below 100; the difference may be negative."""
    a, b = _operands(draw, 100)
    return Sample(draw.rng.choice(_SUBTRACT).format(a=a, b=b), str(a - b))


def multiply(draw: Draw) -> Sample:
    """The table up to 12, all of which training sees."""
    a, b = draw.rng.randint(0, 12), draw.rng.randint(0, 12)
    return Sample(draw.rng.choice(_MULTIPLY).format(a=a, b=b), str(a * b))


# --- extract as JSON ------------------------------------------------------------------------------

_EXTRACT = (
    "Extract as JSON: {x}",
    "Extract as JSON: {x}",
    "Extract JSON: {x}",
    "Extract the data as JSON: {x}",
    "Extract the fields as JSON: {x}",
    "Convert to JSON: {x}",
    "Turn into JSON: {x}",
    "Return JSON for: {x}",
    "As JSON: {x}",
    "JSON: {x}",
    "{x}\nExtract as JSON.",
)
# Sentences with the fields that they state, in the order of the JSON.
_SENTENCES = (
    ("{name} is {age} years old and lives in {city}.", "name age city"),
    ("{name} is {age} years old and lives in {city}.", "name age city"),
    ("{name} lives in {city} and is {age} years old.", "name age city"),
    ("{name}, {age}, lives in {city}.", "name age city"),
    ("{name} ({age}) is from {city}.", "name age city"),
    ("My name is {name}, I am {age} and I live in {city}.", "name age city"),
    ("{name} works as {job} in {city} and is {age} years old.", "name age city job"),
    ("{name} is {job} from {city}, {age} years old.", "name age city job"),
    ("{name} is {age} years old and works as {job}.", "name age job"),
    ("{name} is {job} in {city}.", "name city job"),
    ("{name} works as {job}.", "name job"),
    ("{name} is {age} years old.", "name age"),
    ("{name} lives in {city}.", "name city"),
    ("{name} bought {quantity} boxes of {item} for {price} dollars.", "name item quantity price"),
    ("{name} bought {quantity} bags of {item}.", "name item quantity"),
    ("{name} paid {price} dollars for the {item}.", "name item price"),
    ("The {event} in {city} is on {day} at {time}.", "event city day time"),
    ("The {event} starts at {time} on {day}.", "event day time"),
)


def _fields(rng: Random) -> dict[str, str | int]:
    return {
        "name": name(rng),
        "age": rng.randint(1, 99),
        "city": city(rng),
        "job": rng.choice(WORDS["jobs"]),
        "quantity": rng.randint(2, 99),
        "item": rng.choice(WORDS["things"]),
        "price": rng.randint(1, 999),
        "event": rng.choice(["concert", "meeting", "party", "lecture", "market", "game", "course"]),
        "day": rng.choice(DAYS),
        "time": f"{rng.randint(6, 22)}:{rng.choice(('00', '15', '30', '45'))}",
    }


def extract(draw: Draw) -> Sample:
    sentence, stated = draw.rng.choice(_SENTENCES)
    fields = _fields(draw.rng)
    article = "an" if str(fields["job"])[0] in "aeiou" else "a"
    text = sentence.format(**{**fields, "job": f"{article} {fields['job']}"})
    answer = json.dumps({field: fields[field] for field in stated.split()})
    return Sample(draw.rng.choice(_EXTRACT).format(x=text), answer)


# The tasks of the model card, by name.
CARD: dict[str, Task] = {
    "recall": recall,
    "copy": copy,
    "reverse": reverse,
    "sort": sort,
    "add": add,
    "subtract": subtract,
    "extract": extract,
}
