"""What a report is made of; that its claims hold is test_prompt_map.py's."""

from __future__ import annotations

import pytest

from kvasir.text.tokenizer import Tokenizer
from kvasir.wire.block_hash import HASH_BYTES, chain_hashes
from kvasir.wire.prompt_report.report import TokenisedPrompt
from kvasir.wire.text_chain import BLOCK_ENDS, completion_pieces
from kvasir.wire.text_chain import chain_hashes as text_hashes
from kvasir_engine.server.reports import report_maker as maker_module
from kvasir_engine.server.reports.report_maker import ReportMaker

BLOCK = 16
TEXT = "a prompt of many words, which goes on and on. " * 40


@pytest.fixture
def maker(byte_tokenizer: Tokenizer) -> ReportMaker:
    return ReportMaker(byte_tokenizer, BLOCK)


def completion(tokenizer: Tokenizer, text: str) -> TokenisedPrompt:
    ids = tokenizer.encode(text)
    return TokenisedPrompt(
        completion_pieces({}, text), (), text, ids, chain_hashes(ids, BLOCK), True, None
    )


def test_each_text_block_has_the_last_kv_block_that_it_determines(
    maker: ReportMaker, byte_tokenizer: Tokenizer
) -> None:
    prompt = completion(byte_tokenizer, TEXT)
    report = maker.make(prompt)
    assert report is not None
    assert list(report.text_hashes) == list(text_hashes(prompt.pieces))
    for at, count in enumerate(report.kv_blocks):
        # One token a byte; less than a word, and what is no full KV block, is left out.
        assert 0 < BLOCK_ENDS[at + 1] - count * BLOCK < 3 * BLOCK
        kv_hash = prompt.block_hashes[(count - 1) * HASH_BYTES : count * HASH_BYTES]
        assert report.kv_hashes[at * HASH_BYTES : (at + 1) * HASH_BYTES] == kv_hash


def test_a_text_that_goes_on_reports_only_what_is_new(
    maker: ReportMaker, byte_tokenizer: Tokenizer
) -> None:
    before, after = (completion(byte_tokenizer, TEXT * times) for times in (1, 2))
    first, second = maker.make(before), maker.make(after)
    assert first is not None
    assert second is not None
    new = list(text_hashes(after.pieces))[len(first.text_hashes) :]
    assert list(second.text_hashes) == new
    assert second.kv_blocks[0] >= first.kv_blocks[-1]
    assert maker.make(after) is None
    assert maker.fresh().make(after) is not None


def test_what_was_reported_long_ago_is_reported_again(
    maker: ReportMaker, byte_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maker_module, "MAX_REMEMBERED_BLOCKS", 4)
    prompts = [completion(byte_tokenizer, f"{number} {TEXT}") for number in (1, 2)]
    assert all(maker.make(prompt) for prompt in prompts)
    assert maker.make(prompts[0]) is not None


def test_no_more_is_claimed_than_was_hashed(maker: ReportMaker, byte_tokenizer: Tokenizer) -> None:
    whole = completion(byte_tokenizer, TEXT)
    cut = TokenisedPrompt(
        whole.pieces, (), TEXT, whole.token_ids, whole.block_hashes[: 5 * HASH_BYTES], True, None
    )
    report = maker.make(cut)
    assert report is not None
    assert set(report.kv_blocks) == {5}


def test_ids_of_another_text_are_not_reported(
    maker: ReportMaker, byte_tokenizer: Tokenizer
) -> None:
    prompt = completion(byte_tokenizer, TEXT)
    other = TokenisedPrompt(
        prompt.pieces, (), TEXT, prompt.token_ids[:-1], prompt.block_hashes, True, None
    )
    assert maker.make(other) is None
