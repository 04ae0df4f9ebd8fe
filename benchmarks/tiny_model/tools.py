"""Tool calls in the Hermes format: the tools shown, the call, the reply, the answer."""

import json
from dataclasses import dataclass
from random import Random

from benchmarks.tiny_model.draw import WORDS, Draw, Sample, city, name, pseudo_word

# name, description, parameters, phrasings; {0} and {1} are the arguments in their order
_TOOLS: tuple[tuple[str, str, dict[str, str], tuple[str, ...]], ...] = (
    (
        "get_weather",
        "Get the weather of a city",
        {"city": "city"},
        ("What is the weather in {0}?", "How is the weather in {0}?", "Weather in {0}?"),
    ),
    (
        "get_time",
        "Get the time in a city",
        {"city": "city"},
        ("What time is it in {0}?", "What is the time in {0}?"),
    ),
    ("search", "Search the web", {"query": "thing"}, ("Search for {0}", "Search the web for {0}")),
    (
        "set_timer",
        "Set a timer",
        {"minutes": "integer"},
        ("Set a timer for {0} minutes", "Wake me in {0} minutes"),
    ),
    (
        "send_message",
        "Send a message to a person",
        {"to": "name", "text": "thing"},
        ("Send {0} the message {1}", "Tell {0}: {1}"),
    ),
    (
        "get_price",
        "Get the price of an item",
        {"item": "thing"},
        ("How much is the {0}?", "What is the price of the {0}?"),
    ),
    (
        "book_table",
        "Book a table",
        {"city": "city", "people": "integer"},
        ("Book a table in {0} for {1} people", "I need a table in {0} for {1} people"),
    ),
    (
        "play_music",
        "Play music",
        {"title": "thing"},
        ("Play {0}", "Play the song {0}"),
    ),
)


def _tool_schema(name_: str, description: str, kinds: dict[str, str]) -> dict[str, object]:
    properties = {
        key: {"type": "integer" if v == "integer" else "string"} for key, v in kinds.items()
    }
    parameters = {"type": "object", "properties": properties, "required": list(kinds)}
    return {"name": name_, "description": description, "parameters": parameters}


def _tool_argument(rng: Random, kind: str) -> str | int:
    if kind == "city":
        return city(rng)
    if kind == "name":
        return name(rng)
    return rng.randint(1, 99) if kind == "integer" else rng.choice(WORDS["things"])


def _invented_tool(rng: Random) -> tuple[str, str, dict[str, str], tuple[str, ...]]:
    """A tool of any name, called by that name."""
    keys = rng.sample(
        ["x", "y", "id", "user", "value", "text", pseudo_word(rng)], rng.randint(1, 2)
    )
    kinds = {key: rng.choice(("integer", "thing", "name", "city")) for key in keys}
    name_ = f"{rng.choice(WORDS['verbs'])}_{rng.choice([*WORDS['things'], pseudo_word(rng)])}"
    arguments = " and ".join(f"{key}={{{i}}}" for i, key in enumerate(keys))
    asks = (f"Call {name_} with {arguments}", f"Use {name_} with {arguments}")
    return name_, f"{name_.replace('_', ' ').capitalize()}", kinds, asks


@dataclass(frozen=True)
class ToolTurn:
    """One call: the tools shown, the question, the name of the tool, the call as text, the tool's
    reply, the answer."""

    tools: tuple[dict[str, object], ...]
    question: str
    name: str
    call: str
    reply: str
    answer: str


def tool_call_text(name_: str, arguments: dict[str, str | int]) -> str:
    """A call in the Hermes format, as the chat template writes it."""
    return f"<tool_call>\n{json.dumps({'name': name_, 'arguments': arguments})}\n</tool_call>"


def tool_turn(rng: Random) -> ToolTurn:
    known = rng.sample(_TOOLS, rng.randint(1, 3))
    offered = [*known, _invented_tool(rng)] if rng.random() < 0.4 else known
    rng.shuffle(offered)
    name_, _, kinds, asks = rng.choice(offered)
    arguments = {key: _tool_argument(rng, kind) for key, kind in kinds.items()}
    question = rng.choice(asks).format(*arguments.values())
    result = rng.choice((str(rng.randint(0, 999)), rng.choice(WORDS["adjectives"]), "ok", "done"))
    reply = json.dumps({rng.choice(("result", "value", "status")): result})
    return ToolTurn(
        tuple(_tool_schema(tool[0], tool[1], tool[2]) for tool in offered),
        question,
        name_,
        tool_call_text(name_, arguments),
        rng.choice((result, reply)),
        f"The result is {result}.",
    )


def call(draw: Draw) -> Sample:
    """A question to be answered by a call of one of up to four tools."""
    turn = tool_turn(draw.rng)
    return Sample(turn.question, turn.call, tools=turn.tools)
