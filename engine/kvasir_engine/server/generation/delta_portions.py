"""Portions of bounded work of what arrived of a request since its reader last looked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from kvasir_engine.request import SampleDelta
from kvasir_engine.text.sample_state import SampleUpdate

PORTION_VALUES = 256
"""Tokens and log-probabilities of a portion: a millisecond of making text and events."""
PORTION_CHARS = 1024
"""Characters of a resumed text that are given at once: arguments of a call take 4 µs each to
parse."""
_BEGINNING: dict[str, Any] = dict.fromkeys(
    ("prompt_logprobs", "num_cached_tokens", "seed", "times")
)
_END: dict[str, Any] = dict.fromkeys(("finish_reason", "stop_reason", "error"))


def portions(deltas: list[SampleDelta]) -> Iterable[list[SampleDelta]]:
    """Divide deltas into portions of at most PORTION_VALUES, or of one token that has more.

    A client that reads slowly, or a beam search that ends, brings thousands of tokens at once.
    """
    if len(deltas) == 1 and len(deltas[0].token_ids) <= 1:
        return (deltas,)  # by far the most common
    return _divided(deltas)


def _divided(deltas: list[SampleDelta]) -> Iterator[list[SampleDelta]]:
    portion: list[SampleDelta] = []
    values = 0
    for delta in deltas:
        for part in _parts(delta):
            more = len(part.token_ids) * _width(part)
            if portion and values + more > PORTION_VALUES:
                yield portion
                portion, values = [], 0
            portion.append(part)
            values += more
    yield portion


def _parts(delta: SampleDelta) -> Iterator[SampleDelta]:
    """Cut a delta: what it says of the beginning is in the first part, its end in the last."""
    size = max(1, PORTION_VALUES // _width(delta))
    ids = delta.token_ids
    if len(ids) <= size:
        yield delta
        return
    for at in range(0, len(ids), size):
        end = at + size
        without = {**(_BEGINNING if at > 0 else {}), **(_END if end < len(ids) else {})}
        logprobs = delta.logprobs and delta.logprobs[at:end]
        yield replace(delta, token_ids=ids[at:end], logprobs=logprobs, **without)


def _width(delta: SampleDelta) -> int:
    """Values of each token: its id, and its log-probability with those beside it."""
    return 2 + len(delta.logprobs[0].top_ids) if delta.logprobs else 1


def text_portions(update: SampleUpdate) -> Iterator[SampleUpdate]:
    """Divide what a client lacks of a resumed sample, which has neither ids nor
    log-probabilities; nothing where it lacks nothing."""
    text = update.text
    last = max(0, (len(text) - 1) // PORTION_CHARS * PORTION_CHARS)
    for at in range(0, last, PORTION_CHARS):
        yield SampleUpdate(update.index, text[at : at + PORTION_CHARS], [])
    if text or update.finish_reason:
        yield replace(update, text=text[last:])
