"""The core's log-probability entries in the form that `LLM.generate` returns."""

from __future__ import annotations

from collections.abc import Iterable

from kvasir.text.tokenizer import Tokenizer
from kvasir_engine.outputs import Logprob
from kvasir_engine.request import LogprobEntry


def logprob_dicts(
    entries: Iterable[LogprobEntry], tokenizer: Tokenizer | None
) -> list[dict[int, Logprob]]:
    """Return a dictionary a token, by token id: the sampled (or prompt) token first, then the most
    likely ones."""
    found = []
    for entry in entries:
        top = zip(entry.top_ids, entry.top_logprobs, range(1, len(entry.top_ids) + 1), strict=True)
        made: dict[int, Logprob] = {}
        for token_id, value, rank in [(entry.token_id, entry.logprob, entry.rank), *top]:
            if token_id not in made:
                made[token_id] = _logprob(token_id, value, rank, tokenizer)
        found.append(made)
    return found


def _logprob(token_id: int, value: float, rank: int, tokenizer: Tokenizer | None) -> Logprob:
    text = None if tokenizer is None else tokenizer.token_text(token_id)
    return Logprob(logprob=value, rank=rank, decoded_token=text)
