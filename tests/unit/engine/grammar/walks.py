"""Outputs of a grammar over a vocabulary of bytes, token by token."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import numpy as np
from support.random_schemas import Schemas
from support.schema_judge import exact, violation

from kvasir_engine.grammar.compiler import Backend
from kvasir_engine.grammar.constraint import parse_constraint
from kvasir_engine.grammar.constraint_error import ConstraintError
from kvasir_engine.grammar.matcher import GrammarMatcher, num_words

BYTES, END = 256, 256
SPACE = frozenset(b" \n\r\t")
CLOSING = frozenset(b'}]"')


class ByteTokenizer:
    """A token for each byte."""

    special_ids = frozenset({END})

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return list(text.encode())

    def token_bytes(self, token: int) -> bytes:
        return bytes([token]) if token < BYTES else b""


def matcher_of(backend: Backend, asked: Any) -> GrammarMatcher:
    return backend.compile(parse_constraint(json.dumps(asked))).matcher([END])


def following(matcher: GrammarMatcher) -> list[int]:
    """Tokens that may follow."""
    mask = np.zeros(num_words(BYTES + 1), dtype=np.int32)
    matcher.fill(mask)
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    return np.flatnonzero(bits[: BYTES + 1]).tolist()


def takes(backend: Backend, asked: Any, text: str) -> bool:
    """Whether `text` is a whole output."""
    matcher = matcher_of(backend, asked)
    return all(matcher.accept(byte) for byte in text.encode()) and END in following(matcher)


def walk(matcher: GrammarMatcher, draw: random.Random) -> bytes | None:
    """A random output; None for one that does not end soon."""
    output = bytearray()
    for step in range(3000):
        allowed = following(matcher)
        assert allowed, f"a dead end after {bytes(output)!r}"
        if END in allowed and draw.random() < 0.5:
            return bytes(output)
        closing = [token for token in allowed if token in CLOSING]
        inked = [token for token in allowed if token not in SPACE]
        if closing and draw.random() < (0.2 if step < 200 else 0.9):
            token = draw.choice(closing)
        else:
            token = draw.choice(inked if inked and draw.random() < 0.95 else allowed)
        if token == END:
            return bytes(output)
        assert matcher.accept(token)
        output.append(token)
    return None


def outputs_of_random_schemas(backend: Backend, seed: int) -> Counter[str]:
    """Walk through random schemas; every output has to satisfy its own. Returns what became of
    them."""
    schemas, draw = Schemas(seed), random.Random(seed)
    told: Counter[str] = Counter()
    for _ in range(400):
        schema = schemas.root()
        try:
            grammar = backend.compile(parse_constraint(json.dumps({"json": schema})))
        except ConstraintError:
            told["refused"] += 1
            continue
        for _ in range(3):
            output = walk(grammar.matcher([END]), draw)
            text = None if output is None else output.decode(errors="replace")
            if text is None or "\N{REPLACEMENT CHARACTER}" in text:
                told["endless or no UTF-8"] += 1
                continue
            told["valid"] += 1
            assert violation(schema, exact(text)) is None, (text, schema)
    return told
