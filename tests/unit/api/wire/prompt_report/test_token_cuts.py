from __future__ import annotations

import pytest

from kvasir.text.tokenizer import Tokenizer
from kvasir.wire.prompt_report.token_cuts import CutRules, TokenCuts, token_ends

BLOCK = 8


@pytest.mark.parametrize("tokenizer", ["byte-level", "whole-text"])
@pytest.mark.parametrize("text", ["", "plain words here", "ü<|end|> 東京\n\n x", " leading"])
def test_token_ends_cover_the_text(
    tokenizers: dict[str, Tokenizer], tokenizer: str, text: str
) -> None:
    made = tokenizers[tokenizer]
    ids = made.encode(text, add_special_tokens=False)
    ends = token_ends(made, text, ids, add_special_tokens=False)
    assert ends is not None
    assert len(ends) == len(ids)
    assert ends == sorted(ends)
    assert (ends or [0])[-1] == len(text.encode())


def test_cuts_stay_before_what_may_still_change(tokenizers: dict[str, Tokenizer]) -> None:
    made = tokenizers["byte-level"]
    text = "some words<|end|>more words"
    ids = made.encode(text, add_special_tokens=False)
    ends = token_ends(made, text, ids, add_special_tokens=False)
    assert ends is not None
    cuts = TokenCuts(text.encode(), ids, ends, CutRules(made))

    def within(end: int) -> str:
        return made.decode(ids[: cuts.tokens_within(end)], skip_special_tokens=False)

    assert within(len("some wor")) == "some"
    assert within(len("some")) == ""
    assert within(len("some words<|e")) == "some"
    assert within(len("some words<|end|>mo")) == "some words<|end|>"
    assert within(len(text)) == "some words<|end|>more"


def test_a_space_is_no_cut_where_a_token_crosses_it(tokenizers: dict[str, Tokenizer]) -> None:
    assert not CutRules(tokenizers["byte-level"]).crossing
    made = tokenizers["whole-text"]
    crossing = CutRules(made).crossing
    text = "The engine reads a prompt and writes an answer."
    ids = made.encode(text, add_special_tokens=False)
    ends = token_ends(made, text, ids, add_special_tokens=False)
    assert ends is not None
    cuts = TokenCuts(text.encode(), ids, ends, CutRules(made))
    ended_by = {
        text[ends[count - 1] - 1].encode()
        for end in range(len(text))
        if (count := cuts.tokens_within(end))
    }
    assert b"e" in crossing
    assert ended_by.isdisjoint(crossing)
