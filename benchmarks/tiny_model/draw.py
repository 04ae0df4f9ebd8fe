"""Elements of every task: a draw, a sample, and words known and made up.

A task turns a :class:`Draw` into a :class:`Sample`. The same draw gives the same sample, so a seed
names a data set. Python's `random` is stable across versions for the calls made here.
"""

import re
import string
import tomllib
from collections.abc import Callable
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
    """One user message and the only right answer to it; where it is thought about, the steps
    towards it; the tools that it may call."""

    prompt: str
    answer: str
    thought: str | None = None
    tools: tuple[dict[str, object], ...] = ()


@dataclass(frozen=True)
class Draw:
    """Draw from which a sample is made.

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
