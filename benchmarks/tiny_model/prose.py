"""System prompts, and plain text for completions without a chat template."""

from random import Random

from benchmarks.tiny_model.chat import facts, small_talk
from benchmarks.tiny_model.draw import DAYS, WORDS, city, name

SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are a helpful assistant",
    "You are Kvasir.",
    "You are Kvasir Tiny, a small model.",
    "Be brief.",
    "Answer the question.",
    "Answer briefly and exactly.",
    "You are a friendly bot. Help the user.",
    "You are a test model.",
    "Be kind and clear.",
    "You are a helpful, honest assistant. Always answer as well as you can.",
)


def system_prompt(rng: Random) -> str:
    if rng.random() < 0.8:
        return rng.choice(SYSTEM_PROMPTS)
    sentences = [_sentence(rng) for _ in range(rng.randint(1, 4))]
    return " ".join((rng.choice(SYSTEM_PROMPTS), *sentences))


_STORY = (
    "{name} was a {job} in {city}.",
    "One day {name} found a {adjective} {thing}.",
    "The {thing} was {adjective} and {adjective}.",
    "Every day {name} went to the {thing} near {city}.",
    "{name} wanted to {verb} the {thing}.",
    "So {name} took a {thing} and went home.",
    "On {day} it was cold and the rain fell.",
    "The {thing} and the {thing} became friends.",
    "{name} said hello to {name}.",
    "They lived in a {adjective} house by the sea.",
    "There was a {colour} {thing} on the table.",
    "After that {name} was happy.",
    "Nobody knew where the {thing} was.",
    "{name} had to {verb} it before {day}.",
    "In the evening they drank tea and ate bread.",
)


def _sentence(rng: Random, who: str = "") -> str:
    text = rng.choice(_STORY)
    while "{" in text:
        text = text.replace("{name}", who or name(rng), 1).replace("{city}", city(rng), 1)
        who = ""
        text = text.replace("{job}", rng.choice(WORDS["jobs"]), 1)
        text = text.replace("{thing}", rng.choice(WORDS["things"]), 1)
        text = text.replace("{verb}", rng.choice(WORDS["verbs"]), 1)
        text = text.replace("{colour}", rng.choice(WORDS["colours"]), 1)
        text = text.replace("{adjective}", rng.choice(WORDS["adjectives"]), 1)
        text = text.replace("{day}", rng.choice(DAYS), 1)
    return text


def story(rng: Random, sentences: int) -> str:
    who = name(rng)
    kind = rng.choice(("king", "queen", "child", "raven", "fox", "bear", *WORDS["jobs"]))
    adjective = rng.choice(WORDS["adjectives"])
    start = f"Once upon a time there was a {adjective} {kind} called {who}."
    body = (_sentence(rng, who if rng.random() < 0.6 else "") for _ in range(sentences))
    return " ".join((start, *body, "The end."))


def plain_text(rng: Random, tokens: int) -> str:
    """A text of about `tokens` tokens at most: a story, facts or numbers."""
    kind = rng.random()
    if kind < 0.5:
        return story(rng, rng.randint(1, max(1, tokens // 14 - 3)))
    if kind < 0.7:
        said = [rng.choice(rng.choice(facts())).answer for _ in range(max(1, tokens // 24))]
        return rng.choice((" ", "\n")).join(said[: rng.randint(1, len(said))])
    if kind < 0.8:
        said = [rng.choice(rng.choice(small_talk())).answer for _ in range(max(1, tokens // 24))]
        return " ".join(said)
    if kind < 0.85:
        first = rng.randrange(7)
        return ", ".join((DAYS * (tokens // 16 + 1))[first : first + max(2, tokens // 3)])
    first, step = rng.randint(0, 30), rng.choice((1, 1, 1, 2, 5, 10))
    last = first + step * max(2, tokens // 5)
    return rng.choice((", ", " ")).join(str(n) for n in range(first, last, step))
