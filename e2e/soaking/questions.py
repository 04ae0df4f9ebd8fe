"""Questions of the soak, and their right answers."""

from __future__ import annotations

import json
import random
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.traffic.truth import MODEL, reference_engine

CHAT, COMPLETIONS, TOKENIZE = "/v1/chat/completions", "/v1/completions", "/tokenize"
STREAM_TOKENS = (20, 50, 100, 200)
"""Lengths of streams; at ten tokens a second the longest last from one fault to the next."""
SYSTEMS = (
    "You sort lists, reverse words and add numbers, and you say nothing else. " * 8,
    "You are a raven who remembers everything that he has seen during the day. " * 8,
)
"""Prefixes that many prompts share."""
LONG = "The planets from the sun outwards, with a sentence for each of them. " * 24
SHORT = ("Sort: 7 3 9 1", "Reverse: abcdef", "What is 12 + 30?", "Recall: the key is 42.")
FRESH_LENGTHS = (600, 1700, 1700)
"""Token ids of prompts that no cache has: after some 20 minutes every block has been used."""
_FRESH_IDS = range(100, 1500)
_FRESH_END = (74, 71, 78, 78, 81)
"""Its last ones stay ("hello"): half a character at the end would be a part of the answer."""


@dataclass(frozen=True)
class Answer:
    """Parts of an answer that are compared."""

    texts: tuple[str, ...]
    """Text of each choice."""
    ends: tuple[str | None, ...]
    """Reason of each choice's end."""
    usage: tuple[int, int]
    """Prompt tokens, output tokens."""


@dataclass(frozen=True)
class Question:
    """A request but for its model: `fields` is a JSON object."""

    kind: str
    path: str
    fields: str
    stream: bool = False
    fresh: int = 0
    """Random token ids of its prompt, other ones each time; a simulated engine's answer depends on
    their number only."""

    def body(self, model: str, draw: random.Random | None = None) -> dict[str, Any]:
        """The request's body."""
        body: dict[str, Any] = {"model": model, **json.loads(self.fields)}
        if self.fresh:
            draw = draw or random.Random(0)
            count = self.fresh - len(_FRESH_END)
            body["prompt"] = [*draw.choices(_FRESH_IDS, k=count), *_FRESH_END]
        if self.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return body


FILLING = Question(
    "filling",
    COMPLETIONS,
    json.dumps({"max_tokens": 1, "temperature": 0, "ignore_eos": True}),
    fresh=100,
)
"""A prompt of six blocks and a batch of events, to fill what an engine keeps of both."""


def answer_of(document: Mapping[str, Any]) -> Answer:
    """Return what counts of a unary answer. Raises LookupError or TypeError for something else."""
    if "tokens" in document:
        return Answer((json.dumps(document["tokens"]),), (None,), (document["count"], 0))
    collected = Collected()
    for choice in document["choices"]:
        collected.add_choice(choice, choice["message"]["content"] if "message" in choice else None)
    collected.usage = _usage(document["usage"])
    return collected.answer()


@dataclass
class Collected:
    """An answer as its parts come."""

    texts: dict[int, str] = field(default_factory=dict)
    ends: dict[int, str | None] = field(default_factory=dict)
    usage: tuple[int, int] | None = None

    def add(self, event: Mapping[str, Any]) -> None:
        """An event of a stream."""
        for choice in event["choices"]:
            delta = choice.get("delta")
            self.add_choice(choice, None if delta is None else delta.get("content") or "")
        if event.get("usage"):
            self.usage = _usage(event["usage"])

    def add_choice(self, choice: Mapping[str, Any], text: str | None) -> None:
        """Text of a choice; None = where completions have it."""
        index = choice["index"]
        self.texts[index] = self.texts.get(index, "") + (choice["text"] if text is None else text)
        self.ends[index] = choice["finish_reason"] or self.ends.get(index)

    def answer(self) -> Answer:
        """All of it, now that it has ended. Raises LookupError where something is missing."""
        if self.usage is None:
            raise LookupError("the answer has no usage")
        order = sorted(self.texts)
        texts = tuple(self.texts[index] for index in order)
        return Answer(texts, tuple(self.ends[index] for index in order), self.usage)


def pool(seed: int = 0) -> list[Question]:
    """Return all questions."""
    draw = random.Random(seed)
    return [
        *(_chat("chat stream", draw, tokens, stream=True) for tokens in STREAM_TOKENS * 6),
        *(_completion("completion stream", draw, tokens, stream=True) for tokens in STREAM_TOKENS),
        *(_chat("chat", draw, tokens) for tokens in (1, 4, 8) * 6),
        *(_chat("long chat", draw, 8, LONG) for _ in range(6)),
        *(_completion("two choices", draw, 6, n=2) for _ in range(6)),
        *(_fresh(draw, length) for length in FRESH_LENGTHS),
        FILLING,
        *(Question("tokenize", TOKENIZE, json.dumps({"prompt": each})) for each in (*SHORT, LONG)),
    ]


def right_answers(questions: Iterable[Question], model: str) -> dict[Question, Answer]:
    """Return each question's answer, from an engine of this checkout that takes no time."""
    with reference_engine(model) as url:
        return {question: _ask(url, question) for question in questions}


def _sampling(draw: random.Random, tokens: int) -> dict[str, Any]:
    """Greedy, or sampled with a seed, which makes the answer another one."""
    how = draw.choice(({"temperature": 0}, {"temperature": 1, "seed": draw.randrange(2**31)}))
    return {"max_tokens": tokens, "ignore_eos": True, **how}


def _chat(
    kind: str, draw: random.Random, tokens: int, text: str = "", *, stream: bool = False
) -> Question:
    messages = [{"role": "user", "content": text or f"{draw.choice(SHORT)} {draw.randrange(100)}"}]
    if draw.random() < 0.5 and not text:
        messages.insert(0, {"role": "system", "content": draw.choice(SYSTEMS)})
    fields = {"messages": messages, **_sampling(draw, tokens)}
    return Question(kind, CHAT, json.dumps(fields), stream)


def _completion(
    kind: str, draw: random.Random, tokens: int, n: int = 1, *, stream: bool = False
) -> Question:
    seed = draw.randrange(2**31)
    fields = {"prompt": draw.choice(SHORT), **_sampling(draw, tokens)}
    if n > 1:
        fields |= {"n": n, "temperature": 1, "seed": seed}
    return Question(kind, COMPLETIONS, json.dumps(fields), stream)


def _fresh(draw: random.Random, length: int) -> Question:
    return Question("fresh prompt", COMPLETIONS, json.dumps(_sampling(draw, 8)), fresh=length)


def _ask(url: str, question: Question) -> Answer:
    body = question.body(MODEL)
    body.pop("stream_options", None)
    request = urllib.request.Request(
        f"{url}{question.path}",
        json.dumps({**body, "stream": False} if question.stream else body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer_of(json.load(answer))


def _usage(usage: Mapping[str, Any]) -> tuple[int, int]:
    return usage["prompt_tokens"], usage["completion_tokens"]
