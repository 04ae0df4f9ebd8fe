"""The core's log-probability entries in the form that `LLM.generate` returns."""

from __future__ import annotations

from collections.abc import Iterable

from kvasir.text.tokenizer import Tokenizer
from kvasir_engine.outputs import Logprob
from kvasir_engine.request import LogprobEntry


def logprob_dict(entry: LogprobEntry, tokenizer: Tokenizer | None) -> dict[int, Logprob]:
    """The sampled (or prompt) token first, then the most likely ones, by token id."""
    made = {entry.token_id: _logprob(entry.token_id, entry.logprob, entry.rank, tokenizer)}
    for rank, (token_id, value) in enumerate(
        zip(entry.top_ids, entry.top_logprobs, strict=True), start=1
    ):
        if token_id not in made:
            made[token_id] = _logprob(token_id, value, rank, tokenizer)
    return made


def logprob_dicts(
    entries: Iterable[LogprobEntry], tokenizer: Tokenizer | None
) -> list[dict[int, Logprob]]:
    """Return one dictionary a token."""
    return [logprob_dict(entry, tokenizer) for entry in entries]


def _logprob(token_id: int, value: float, rank: int, tokenizer: Tokenizer | None) -> Logprob:
    text = None if tokenizer is None else tokenizer.token_text(token_id)
    return Logprob(logprob=value, rank=rank, decoded_token=text)
