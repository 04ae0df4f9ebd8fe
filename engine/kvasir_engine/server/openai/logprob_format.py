"""Log-probabilities in the three forms of the API."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from kvasir.text.tokenizer import Tokenizer
from kvasir_engine.request import LogprobEntry
from kvasir_engine.server.long_json import LongList, LongObject

LONG_TOP = 1024
"""Log-probabilities of one token, of which more are made as they are encoded, in turns."""
_MIN_LOGPROB = -9999.0
"""Stand for minus infinity, which JSON cannot write; OpenAI's value."""


class LogprobFormat:
    """`as_ids`: tokens are shown as "token_id:17" (return_tokens_as_token_ids). `in_turns`: lists
    with an element a token are LongLists, for `encode_in_turns`. So is always what one token has,
    if it is more than LONG_TOP."""

    def __init__(
        self, tokenizer: Tokenizer, *, as_ids: bool = False, in_turns: bool = False
    ) -> None:
        self.tokenizer = tokenizer
        self._as_ids = as_ids
        self._list: Callable[[Iterable[Any]], Any] = LongList if in_turns else list

    def in_turns(self) -> LogprobFormat:
        """The same format with LongLists."""
        return LogprobFormat(self.tokenizer, as_ids=self._as_ids, in_turns=True)

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of a prompt that was given as ids."""
        return self.tokenizer.decode(token_ids, skip_special_tokens=False)

    def _text(self, token_id: int) -> str:
        return f"token_id:{token_id}" if self._as_ids else self.tokenizer.token_text(token_id)

    def chat(self, entries: Iterable[LogprobEntry]) -> dict[str, Any]:
        """A chat choice's `logprobs`."""
        return {"content": self._list(map(self._chat_entry, entries)), "refusal": None}

    def _chat_entry(self, entry: LogprobEntry) -> dict[str, Any]:
        best = map(self._chat_token, entry.top_ids, entry.top_logprobs)
        return {
            **self._chat_token(entry.token_id, entry.logprob),
            "top_logprobs": LongList(best) if is_long(len(entry.top_ids)) else list(best),
        }

    def _chat_token(self, token_id: int, logprob: float) -> dict[str, Any]:
        return {
            "token": self._text(token_id),
            "logprob": max(logprob, _MIN_LOGPROB),
            "bytes": list(self.tokenizer.token_bytes(token_id)),
        }

    def legacy(self, entries: Sequence[LogprobEntry], offsets: Sequence[int]) -> dict[str, Any]:
        """A completion choice's `logprobs`; `offsets` is where each token's text begins."""
        return {
            "tokens": self._list(self._text(entry.token_id) for entry in entries),
            "token_logprobs": self._list(max(entry.logprob, _MIN_LOGPROB) for entry in entries),
            "top_logprobs": self._list(map(self._top, entries)),
            "text_offset": self._list(offsets),
        }

    def legacy_prompt(
        self, token_ids: Sequence[int], entries: Sequence[LogprobEntry]
    ) -> dict[str, Any]:
        """An echoed prompt in the legacy form; its first token has no prediction."""
        logprobs = (max(entry.logprob, _MIN_LOGPROB) for entry in entries)
        return {
            "tokens": self._list(map(self._text, token_ids)),
            "token_logprobs": self._list(chain((None,), logprobs)),
            "top_logprobs": self._list(chain((None,), map(self._top, entries))),
            "text_offset": self._list(self._offsets(token_ids)),
        }

    def _offsets(self, token_ids: Sequence[int]) -> Iterator[int]:
        at = 0
        for token_id in token_ids:
            yield at
            at += len(self.tokenizer.token_text(token_id))

    def _top(self, entry: LogprobEntry) -> Any:
        """The k best and the token itself; of tokens with the same text the likeliest."""
        ids = chain(entry.top_ids, (entry.token_id,))
        logprobs = chain(entry.top_logprobs, (entry.logprob,))
        return _object(
            entry,
            (
                (self._text(token_id), max(value, _MIN_LOGPROB))
                for token_id, value in zip(ids, logprobs, strict=True)
            ),
        )

    def prompt(self, entries: Sequence[LogprobEntry]) -> Any:
        """vLLM's `prompt_logprobs`: a list with a dictionary by token id for each prompt token."""
        return self._list(chain((None,), map(self._by_id, entries)))

    def _by_id(self, entry: LogprobEntry) -> Any:
        best = zip(entry.top_ids, entry.top_logprobs, strict=True)
        ranked = chain(
            ((entry.token_id, entry.logprob, entry.rank),),
            ((token_id, value, rank) for rank, (token_id, value) in enumerate(best, start=1)),
        )
        return _object(entry, ((str(each[0]), self._ranked(*each)) for each in ranked))

    def _ranked(self, token_id: int, logprob: float, rank: int) -> dict[str, Any]:
        text = self.tokenizer.token_text(token_id)
        return {"logprob": max(logprob, _MIN_LOGPROB), "rank": rank, "decoded_token": text}


def is_long(number: int) -> bool:
    """Return whether so many log-probabilities of one token are made in turns."""
    return number > LONG_TOP


def _object(entry: LogprobEntry, members: Iterable[tuple[str, Any]]) -> Any:
    """Return an object of an entry's members, of which the first with a name counts."""
    if is_long(len(entry.top_ids)):
        return LongObject(members)
    made: dict[str, Any] = {}
    for name, value in members:
        made.setdefault(name, value)
    return made


def join_legacy(first: dict[str, Any], second: dict[str, Any] | None) -> dict[str, Any]:
    """Echoed prompt and output as one."""
    if second is None:
        return first
    return {key: type(value)(chain(value, second[key])) for key, value in first.items()}
