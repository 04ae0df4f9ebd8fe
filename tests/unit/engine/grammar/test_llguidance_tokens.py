"""Forced text is made of the tokens that spell it, whatever the tokenizer gives for it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from support.engine_server import EOS, byte_tokenizer
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers

from kvasir.text.tokenizer import Tokenizer
from kvasir_engine.grammar.constraint import parse_constraint
from kvasir_engine.grammar.llguidance_backend import GuidanceBackend
from kvasir_engine.grammar.matcher import GrammarMatcher, num_words

MARK = "<|im_end|>"
REST = {"required": [MARK], "additionalProperties": False}


def with_special_tokens() -> Tokenizer:
    tokenizer = byte_tokenizer()
    tokenizer.backend.add_special_tokens([MARK])
    return tokenizer


def with_spaces_in_front() -> Tokenizer:
    """Llama 2's kind: a text begins with a space that is not in it."""
    pieces = ["▁", "name", "▁name", "a", "n", "é", '"', ":", "{", "}", '{"', '▁{"', '":']
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    merges = [("▁", '{"'), ("▁", "name"), ("{", '"'), ('"', ":")]
    vocab = {token: at for at, token in enumerate(tokens)}
    backend = Backend(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True))
    backend.add_special_tokens(["<unk>", MARK])
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback()])
    return Tokenizer(backend, {})


def following(matcher: GrammarMatcher, size: int) -> list[int]:
    mask = np.zeros(num_words(size), dtype=np.int32)
    matcher.fill(mask)
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    return [int(token) for token in np.flatnonzero(bits[:size])]


@pytest.mark.parametrize("make", [with_special_tokens, with_spaces_in_front])
@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"const": MARK}, MARK),
        ({"enum": [f"a{MARK}b", MARK]}, f"a{MARK}b"),
        ({"type": "object", "properties": {MARK: {"const": 1}}, **REST}, {MARK: 1}),
        ({"const": "name"}, "name"),
        ({"const": " name é"}, " name é"),
        ({"const": {"name": "name"}}, {"name": "name"}),
    ],
)
def test_forced_text_has_the_bytes_it_spells(make: Any, schema: Any, value: Any) -> None:
    tokenizer = make()
    size = tokenizer.backend.get_vocab_size()
    eos = EOS if make is with_special_tokens else 0
    backend = GuidanceBackend(tokenizer, size, [eos])
    grammar = backend.compile(parse_constraint(json.dumps({"json": schema})))
    matcher, text = grammar.matcher([eos]), json.dumps(value, ensure_ascii=False).encode()
    written = b""
    while eos not in (allowed := following(matcher, size)):
        assert not tokenizer.special_ids & {*allowed}
        spelt = {each: tokenizer.token_bytes(each) for each in allowed}
        fitting = [each for each in allowed if text.startswith(written + spelt[each])]
        assert fitting, f"none of {spelt} follows {written!r}"
        token = max(fitting, key=lambda each: len(spelt[each]))
        assert matcher.accept(token)
        written += spelt[token]
    assert written == text
