"""Thinking before an answer: what a step by step way makes easy, and a word of it for all else.

The chat template opens the thinking (`enable_thinking`), the model writes it, closes it and
answers. Only the last turn has its thinking: the template leaves that of earlier turns out.
"""

from __future__ import annotations

from random import Random

from benchmarks.tiny_model import chat, lists, tasks
from benchmarks.tiny_model.draw import LETTERS, Draw, Sample, Task, pseudo_word, word
from benchmarks.tiny_model.tools import ToolTurn, tool_turn


def said(thought: str, answer: str) -> str:
    """Return what the model writes where the template has opened the thinking."""
    return f"{thought}\n</think>\n\n{answer}"


def _counted(rng: Random) -> str:
    return word(rng) if rng.random() < 0.6 else pseudo_word(rng)


def letters(draw: Draw) -> Sample:
    """The number of letters of a word, which it counts aloud."""
    text = _counted(draw.rng)
    asks = (
        "How many letters are in {x}?",
        "How many letters does {x} have?",
        "Count the letters in {x}",
        "How long is the word {x}?",
    )
    counted = " ".join(f"{letter} {at}" for at, letter in enumerate(text, 1))
    return Sample(draw.rng.choice(asks).format(x=text), str(len(text)), counted)


def occurrences(draw: Draw) -> Sample:
    """The number of times that a letter is in a word, which it spells."""
    text = _counted(draw.rng).lower()
    letter = draw.rng.choice(text) if draw.rng.random() < 0.85 else draw.rng.choice(LETTERS)
    asks = (
        "How many times is {c} in {x}?",
        "How many {c} are in {x}?",
        "How many {c}'s are in {x}?",
        "How often is the letter {c} in {x}?",
        "Count the letter {c} in {x}",
    )
    spelled, found = [], 0
    for each in text:
        found += each == letter
        spelled.append(f"{each} {found}" if each == letter else each)
    return Sample(draw.rng.choice(asks).format(c=letter, x=text), str(found), " ".join(spelled))


def chain(draw: Draw) -> Sample:
    """The sum of three or four numbers, two at a time; no sum before the last exceeds 99."""
    rng = draw.rng
    while True:
        numbers = [rng.randint(1, 60) for _ in range(rng.randint(3, 4))]
        if sum(numbers[:-1]) < 100:
            break
    steps, total = [], numbers[0]
    for number in numbers[1:]:
        steps.append(f"{total} + {number} = {total + number}")
        total += number
    asks = ("What is {x}?", "{x}", "{x} =", "Calculate {x}", "How much is {x}?", "Sum: {x}")
    return Sample(
        rng.choice(asks).format(x=" + ".join(map(str, numbers))), str(total), "\n".join(steps)
    )


def columns(draw: Draw) -> Sample:
    """The sum of two numbers of three digits, a column at a time, the carry written out."""
    rng = draw.rng
    a, b = (rng.randint(100, 999) for _ in range(2))
    steps, carry = [], 0
    for x, y in zip(str(a)[::-1], str(b)[::-1], strict=True):
        total = int(x) + int(y) + carry
        steps.append(f"{x} + {y} + {carry} = {total}")
        carry = total // 10
    asks = ("What is {a} + {b}?", "{a} + {b}", "{a} + {b} =", "Add {a} and {b}", "{a}+{b}")
    return Sample(rng.choice(asks).format(a=a, b=b), str(a + b), "\n".join(steps))


def variables(draw: Draw) -> Sample:
    """The sum of two of some named numbers, which it looks up first."""
    rng = draw.rng
    names = rng.sample(LETTERS, rng.randint(2, 5))
    values = {name: rng.randint(0, 49) for name in names}
    first, second = rng.sample(names, 2)
    given = ", ".join(f"{name}={value}" for name, value in values.items())
    total = values[first] + values[second]
    thought = (
        f"{first} is {values[first]}\n{second} is {values[second]}\n"
        f"{values[first]} + {values[second]} = {total}"
    )
    return Sample(f"{given}. What is {first} + {second}?", str(total), thought)


def known(draw: Draw) -> Sample:
    """A task that needs no steps: the thought names it."""
    tasks_ = {
        "recall": lists.recall,
        "copy": lists.copy,
        "reverse": lists.reverse,
        "sort": lists.sort,
        "add": tasks.add,
        "extract": tasks.extract,
    }
    name = draw.rng.choice(list(tasks_))
    task: Task = tasks_[name]
    sample = task(Draw(draw.rng, draw.tokens, draw.items))
    return Sample(sample.prompt, sample.answer, f"The task is to {name}.")


def talk(draw: Draw) -> Sample:
    """Small talk, a fact, or what it does not know."""
    rng = draw.rng
    kinds = {
        "They talk to me.": chat.talk,
        "They ask about the world.": chat.fact,
        "I do not know that.": chat.open_question,
    }
    thought = rng.choice(list(kinds))
    prompt, answer = kinds[thought](rng)[0]
    return Sample(prompt, answer, thought)


CARD: dict[str, Task] = {
    "count letters": letters,
    "count a letter": occurrences,
    "add 3 or 4 numbers": chain,
    "add numbers of 3 digits": columns,
    "add variables": variables,
}
"""The thinking tasks of the model card, by name."""
WEIGHTS: dict[Task, int] = {
    letters: 10,
    occurrences: 14,
    chain: 10,
    columns: 10,
    variables: 8,
    known: 8,
    talk: 8,
}


def thought_turn(draw: Draw) -> Sample:
    """Draw from all that is thought about, without tools."""
    kind = draw.rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
    return kind(draw)


def thought_call(rng: Random) -> tuple[ToolTurn, str, str]:
    """Return a turn with tools, the thought before its call and the one before its answer."""
    turn = tool_turn(rng)
    return turn, f"The tool is {turn.name}.", "The tool has the result."
