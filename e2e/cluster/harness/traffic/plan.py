"""Requests that make the load."""

from __future__ import annotations

from dataclasses import dataclass

PROMPTS = (
    "Sort: 7 3 9 1",
    "Reverse: abcdef",
    "What is 12 + 30?",
    "A list of the planets, from the sun outwards, with a sentence for each of them",
    "Tell me a story of a raven who forgot everything he had seen during the day",
    "Recall: the key is 42; what is the key?",
)


@dataclass(frozen=True)
class Question:
    """Prompt, and how many tokens its answer has."""

    prompt: str
    tokens: int

    def body(self, model: str, *, stream: bool) -> dict[str, object]:
        """The chat completion request; greedy, and exactly `tokens` long."""
        return {
            "model": model,
            "messages": [{"role": "user", "content": self.prompt}],
            "temperature": 0,
            "max_tokens": self.tokens,
            "ignore_eos": True,
            "stream": stream,
        }


@dataclass(frozen=True)
class Plan:
    """The load: `unary_rate` short requests a second, and `streams` streams at any time.

    `endpoints` (base URLs) are used in turn. With the `slow` speed profile an engine gives ten
    tokens a second, so streams of 50 to 1200 tokens last 5 to 120 s.
    """

    endpoints: tuple[str, ...]
    model: str
    key: str | None = None
    unary_rate: float = 20.0
    unary_tokens: int = 4
    streams: int = 50
    stream_tokens: tuple[int, ...] = (50, 80, 120, 200, 320, 500, 800, 1200)
    timeout: float = 300.0
    """Seconds after which a request that has not ended is failed."""

    def questions(self) -> list[Question]:
        """Return everything that may be asked."""
        lengths = (self.unary_tokens, *self.stream_tokens)
        return [Question(prompt, tokens) for prompt in PROMPTS for tokens in lengths]
