"""Small further skills for a pleasant demo. Trained like the tasks, but the card claims nothing."""

from random import Random

from benchmarks.tiny_model.draw import WORDS, Draw, Sample, Task, pseudo_word, random_string, word


def _some_word(rng: Random) -> str:
    return word(rng) if rng.random() < 0.8 else random_string(rng, 3, 9)


def uppercase(draw: Draw) -> Sample:
    text = " ".join(_some_word(draw.rng) for _ in range(draw.rng.choice((1, 1, 1, 2, 3))))
    ask = draw.rng.choice(("Uppercase: {x}", "Write {x} in uppercase", "In uppercase: {x}"))
    return Sample(ask.format(x=text), text.upper())


def lowercase(draw: Draw) -> Sample:
    text = _some_word(draw.rng)
    ask = draw.rng.choice(("Lowercase: {x}", "Write {x} in lowercase"))
    return Sample(ask.format(x=text.upper()), text)


def spell(draw: Draw) -> Sample:
    text = _some_word(draw.rng)
    ask = draw.rng.choice(
        ("Spell {x}", "Spell: {x}", "How do you spell {x}?", "Spell the word {x}")
    )
    return Sample(ask.format(x=text), " ".join(text))


def letters(draw: Draw) -> Sample:
    text = _some_word(draw.rng)
    ask = draw.rng.choice(
        (
            "How many letters are in {x}?",
            "How many letters does {x} have?",
            "Count the letters in {x}",
            "How long is the word {x}?",
        )
    )
    return Sample(ask.format(x=text), str(len(text)))


def ends(draw: Draw) -> Sample:
    text, which = _some_word(draw.rng), draw.rng.randrange(2)
    ask = draw.rng.choice(("What is the {w} letter of {x}?", "{W} letter of {x}?"))
    side = ("first", "last")[which]
    return Sample(ask.format(w=side, W=side.capitalize(), x=text), text[-which])


def extremes(draw: Draw) -> Sample:
    rng = draw.rng
    numbers = rng.sample(range(100), rng.randint(2, 10))
    largest = rng.random() < 0.5
    ask = rng.choice(
        ("Which is the {w}: {x}?", "What is the {w} of {x}?", "Find the {w}: {x}", "{W}: {x}")
    )
    kind = rng.choice(("largest", "biggest", "maximum") if largest else ("smallest", "minimum"))
    text = rng.choice((" ", ", ")).join(map(str, numbers))
    answer = max(numbers) if largest else min(numbers)
    return Sample(ask.format(w=kind, W=kind.capitalize(), x=text), str(answer))


def compare(draw: Draw) -> Sample:
    a, b = draw.rng.sample(range(1000 if draw.rng.random() < 0.3 else 100), 2)
    ask = draw.rng.choice(("Which is larger, {a} or {b}?", "What is bigger, {a} or {b}?"))
    return Sample(ask.format(a=a, b=b), str(max(a, b)))


def parity(draw: Draw) -> Sample:
    n = draw.rng.randrange(1000)
    ask = draw.rng.choice(("Is {n} even or odd?", "Is {n} odd or even?", "Even or odd: {n}"))
    return Sample(ask.format(n=n), f"{n} is {('even', 'odd')[n % 2]}.")


def count(draw: Draw) -> Sample:
    """Long enough for streaming: a number takes about three tokens."""
    rng = draw.rng
    most = max(3, (draw.tokens - 24) // 4)
    first = rng.randint(0, 50) if rng.random() < 0.2 else 1
    last = first + rng.randint(2, most if rng.random() < 0.7 else min(most, 12))
    asks = ["Count from {a} to {b}", "List the numbers from {a} to {b}"]
    if first == 1:
        asks = ["Count to {b}", "Count up to {b}", "Count to {b}, please", "Count from 1 to {b}"]
    end = WORDS["numbers"][last - 1] if first == 1 and last <= 12 and rng.random() < 0.5 else last
    ask = rng.choice(asks).format(a=first, b=end) + rng.choice(("", "", "."))
    return Sample(ask, ", ".join(map(str, range(first, last + 1))))


def count_down(draw: Draw) -> Sample:
    first = draw.rng.randint(3, min(30, max(4, (draw.tokens - 24) // 4)))
    ask = draw.rng.choice(("Count down from {a}", "Count backwards from {a}"))
    return Sample(ask.format(a=first), ", ".join(map(str, range(first, -1, -1))))


def following(draw: Draw) -> Sample:
    n = draw.rng.randrange(1000)
    ask = draw.rng.choice(("What number comes after {n}?", "What comes after {n}?"))
    return Sample(ask.format(n=n), str(n + 1))


def repeat(draw: Draw) -> Sample:
    text, times = pseudo_word(draw.rng), draw.rng.randint(2, 6)
    if draw.rng.random() < 0.6:
        text = word(draw.rng)
    ask = draw.rng.choice(("Say {x} {n} times", "Write {x} {n} times", "Repeat {x} {n} times"))
    number = times if draw.rng.random() < 0.5 else WORDS["numbers"][times - 1]
    return Sample(ask.format(x=text, n=number), " ".join([text] * times))


EXTRAS: tuple[Task, ...] = (
    uppercase,
    lowercase,
    spell,
    letters,
    ends,
    extremes,
    compare,
    parity,
    count,
    count,
    count_down,
    following,
    repeat,
)
