"""Exact tasks over lists and strings: recall, copy, reverse, sort."""

import string
from collections.abc import Callable, Sequence
from random import Random

from benchmarks.tiny_model.draw import (
    LETTERS,
    WORDS,
    Draw,
    Sample,
    known_word,
    name,
    pseudo_word,
    random_string,
    word,
)

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
