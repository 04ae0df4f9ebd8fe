"""Tasks with exact answers: what the tiny model is trained on and what it is judged by."""

import json
from random import Random

from benchmarks.tiny_model.draw import DAYS, WORDS, Draw, Sample, Task, city, name
from benchmarks.tiny_model.lists import copy, recall, reverse, sort

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
    """Return True if training never sees this pair of operands in either order: about one in forty.

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
