"""Prompts of `sim_fleet.py`'s words as router and engines see them, without tokenising."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from kvasir.wire.block_hash import block_hash, root_hash
from kvasir.wire.text_chain import BLOCK_ENDS, chat_pieces, content_start, text_hashes
from kvasir_router.index.block_sink import PromptReport
from kvasir_router.wire.envelope import Envelope
from kvasir_router.wire.http_request import Request
from kvasir_router.wire.query import Query

BLOCK = 16
FIRST_WORD = 6
"""The id of the first word; those below are special."""
_ROLES = {"system": 2, "user": 3, "assistant": 4, "tool": 5}


class Prompt:
    """A conversation's text blocks, and its tokens: a role's one, and one a word."""

    def __init__(self, messages: Sequence[Mapping[str, Any]], ids: Mapping[str, int]) -> None:
        pieces = chat_pieces({"messages": list(messages)})
        self.text = b"".join(pieces)
        self.chain = text_hashes(self.text)
        self.tokens: list[int] = []
        self._ends: list[int] = []
        """The byte of text by which each token is certain."""
        at = len(pieces[0])
        for message, piece in zip(messages, pieces[1:], strict=True):
            words = message["content"].split(" ")
            self.tokens += [_ROLES[message["role"]], *(ids[word] for word in words)]
            start = at + content_start(piece, message["content"])
            at += len(piece)
            if message["role"] == "assistant":  # engines claim nothing inside of these
                self._ends += [at] * (len(words) + 1)
            else:
                step = len(words[0]) + 1
                self._ends += [start, *(start + step * (i + 1) for i in range(len(words)))]
        self.tokens.append(_ROLES["assistant"])

    @cached_property
    def report(self) -> PromptReport:
        """Return what an engine reports of the prompt."""
        hashes, parent = [], root_hash()
        content = np.asarray(self.tokens, dtype=np.int32)
        for at in range(0, len(content) - BLOCK + 1, BLOCK):
            parent = block_hash(parent, content[at : at + BLOCK].tobytes())
            hashes.append(parent)
        counts = [
            bisect_right(self._ends, BLOCK_ENDS[i + 1]) // BLOCK for i in range(len(self.chain))
        ]
        last = b"".join(hashes[count - 1] if count else bytes(16) for count in counts)
        return PromptReport(self.chain, counts, last)


def query_of(prompt: Prompt) -> Query:
    """A query whose prompt is known."""
    query = Query(Request(), Envelope())
    query._chain, query._text_bytes = prompt.chain, len(prompt.text)
    return query
