"""The shipped tokenizer: every text round-trips, with the `tokenizers` library alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

TINY = Path(__file__).parents[4] / "engine" / "kvasir_engine" / "assets" / "tiny"
TOKENIZER = Tokenizer.from_file(str(TINY / "tokenizer.json"))
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


@given(st.text())
def test_any_text_round_trips(text: str) -> None:
    ids = TOKENIZER.encode(text).ids
    assert TOKENIZER.decode(ids, skip_special_tokens=False) == text


@given(st.text(st.characters(codec="ascii"), min_size=1))
def test_ids_stay_below_the_embedding(text: str) -> None:
    size = json.loads((TINY / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    assert size == TOKENIZER.get_vocab_size()
    assert max(TOKENIZER.encode(text).ids) < size


def test_digits_are_single_tokens() -> None:
    assert TOKENIZER.encode("2026+17").tokens == ["2", "0", "2", "6", "+", "1", "7"]


def test_an_unknown_word_is_its_letters_and_a_frequent_one_a_token() -> None:
    assert TOKENIZER.encode("qzxk").tokens == ["q", "z", "x", "k"]
    assert TOKENIZER.encode(" Kubernetes").tokens == ["ĠKubernetes"]


def test_no_token_is_added_around_a_text() -> None:
    assert TOKENIZER.encode("a").tokens == ["a"]


@pytest.mark.parametrize(("index", "token"), list(enumerate(SPECIAL)))
def test_special_tokens_are_found_in_text_and_left_out_of_it(index: int, token: str) -> None:
    ids = TOKENIZER.encode(f"a{token}b").ids
    assert ids[1] == index
    assert TOKENIZER.decode(ids) == "ab"
