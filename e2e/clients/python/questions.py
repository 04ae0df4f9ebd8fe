"""Questions of all clients' tests, and the tiny model's answers. They are exact, since the engine's
default temperature is 0 (../conftest.py)."""

from __future__ import annotations

import json
import os
import re
import time
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from pydantic import BaseModel

URL = os.environ["KVASIR_URL"]
"""The router."""
V1 = f"{URL}/v1"
MODEL = "kvasir-tiny"

SORT, SORTED = "Sort: 7 3 9 1", "1 3 7 9"
NAME, ASK_NAME, NAMED = "My name is Anna.", "What is my name?", "Your name is Anna."
WEATHER, WEATHER_ANSWER = "What is the weather in Oslo?", "The result is 21."
EXTRACT = "Extract as JSON: Anna is 31 years old and lives in Oslo."
LETTERS, THOUGHT, NUMBER = "How many r are in strawberry?", "s t r 1 a w b e r 2 r 3 y", "3"
"""A question that the model has to think about, its thought and its answer."""
FEW, COUNTED = "Count to 50", ", ".join(map(str, range(1, 51)))
MANY = "Count to 200"
"""Its answer takes long."""
UNKNOWN = "The model `nope` does not exist. Models here: `kvasir-tiny`."


class Person(BaseModel):
    """Whom EXTRACT is about."""

    name: str
    age: int
    city: str


ANNA = Person(name="Anna", age=31, city="Oslo")


def get_weather(city: str) -> str:
    """Get the weather of a city"""
    assert city == "Oslo"
    return json.dumps({"result": "21"})


CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER_FUNCTION = {
    "name": "get_weather",
    "description": get_weather.__doc__,
    "parameters": CITY,
}
WEATHER_TOOL = {"type": "function", "function": WEATHER_FUNCTION}
WEATHER_TOOL_OF_RESPONSES = {"type": "function", **WEATHER_FUNCTION}
WEATHER_TOOL_OF_MESSAGES = {
    "name": "get_weather",
    "description": get_weather.__doc__,
    "input_schema": CITY,
}


def user(text: str) -> list[dict[str, str]]:
    """Return a conversation of one message."""
    return [{"role": "user", "content": text}]


def check_stream(pieces: Iterable[str | None]) -> None:
    """Fail unless these are COUNTED as it was made: several tokens may come together, not all."""
    texts = [piece for piece in pieces if piece]
    assert "".join(texts) == COUNTED
    assert len(texts) > 5


def _disconnects() -> float:
    with urllib.request.urlopen(f"{URL}/metrics") as answer:
        metrics = answer.read().decode()
    pattern = rf'^kvasir_router_client_disconnects_total{{model="{MODEL}"}} (\S+)$'
    found = re.search(pattern, metrics, re.MULTILINE)
    return float(found[1]) if found else 0.0


@contextmanager
def cancelled() -> Iterator[None]:
    """Fail unless the router sees that a client leaves an answer that is not at its end."""
    before = _disconnects()
    yield
    deadline = time.monotonic() + 10
    while _disconnects() == before:
        assert time.monotonic() < deadline, "the router still relays the answer"
        time.sleep(0.01)
