from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvasir.text.tokenizer import Tokenizer
from kvasir_engine.text.detokenizer import (
    ByteDetokenizer,
    WindowDetokenizer,
    make_detokenizer,
)


def pieces(tokenizer: Tokenizer, ids: list[int], **options: object) -> list[str]:
    detokenizer = make_detokenizer(tokenizer, **options)  # type: ignore[arg-type]
    return [*(detokenizer.push(token) for token in ids), detokenizer.flush()]


def test_a_character_split_over_tokens_waits_for_its_last_byte(byte_tokenizer):
    ids = [byte_tokenizer.backend.token_to_id(char) for char in "ðŁĺĢ"]
    assert pieces(byte_tokenizer, ids) == ["", "", "", "😀", ""]


def test_an_unfinished_character_comes_out_at_the_end(byte_tokenizer):
    ids = [byte_tokenizer.backend.token_to_id(char) for char in "ðŁ"]
    assert pieces(byte_tokenizer, ids) == ["", "", "\ufffd"]


def test_special_tokens_are_left_out_or_kept(byte_tokenizer):
    ids = [*byte_tokenizer.encode("hello"), 1, *byte_tokenizer.encode(" world")]
    assert "".join(pieces(byte_tokenizer, ids)) == "hello world"
    kept = pieces(byte_tokenizer, ids, skip_special_tokens=False)
    assert "".join(kept) == "hello</s> world"


def test_the_prompt_keeps_the_first_tokens_leading_space(space_tokenizer):
    hello, wor, ld = (space_tokenizer.backend.token_to_id(t) for t in ("▁hello", "▁wor", "ld"))
    assert "".join(pieces(space_tokenizer, [wor, ld], prompt_token_ids=[1, hello])) == " world"
    assert "".join(pieces(space_tokenizer, [wor, ld])) == "world"


def test_byte_fallback_tokens_join_to_a_character(space_tokenizer):
    ids = [space_tokenizer.backend.token_to_id(f"<0x{byte:02X}>") for byte in "你".encode()]
    assert pieces(space_tokenizer, ids) == ["", "", "你", ""]


def window_pieces(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    detokenizer = WindowDetokenizer(tokenizer, [], skip_special_tokens=True)
    return [*map(detokenizer.push, ids), detokenizer.flush()]


def test_a_long_run_of_invalid_bytes_is_given_out_as_it_grows(byte_tokenizer):
    continuation = byte_tokenizer.backend.token_to_id("Ģ")
    got = window_pieces(byte_tokenizer, [continuation] * 100)
    assert max(map(len, got)) < 30
    assert "".join(got) == "\ufffd" * 100


def test_a_valid_character_after_many_invalid_bytes_is_whole(byte_tokenizer):
    continuation = byte_tokenizer.backend.token_to_id("Ģ")
    smile = [byte_tokenizer.backend.token_to_id(char) for char in "ðŁĺĢ"]
    for run in range(12, 36):
        ids = [continuation] * run + smile
        assert "".join(window_pieces(byte_tokenizer, ids)) == "\ufffd" * run + "😀"


def test_ids_without_text_do_not_pile_up(space_tokenizer):
    outside = space_tokenizer.vocab_size + 5
    detokenizer = WindowDetokenizer(space_tokenizer, [], skip_special_tokens=True)
    assert "".join(detokenizer.push(outside) for _ in range(200)) == ""
    assert len(detokenizer._window) < 32


@given(ids=st.lists(st.integers(0, 300), max_size=60))
def test_pieces_join_to_the_whole_text_for_any_bytes(byte_tokenizer, ids):
    assert "".join(pieces(byte_tokenizer, ids)) == byte_tokenizer.decode(ids)


@given(ids=st.lists(st.integers(0, 300), max_size=60), skip=st.booleans())
def test_both_ways_of_decoding_bytes_agree(byte_tokenizer, ids, skip):
    texts = []
    for kind in (ByteDetokenizer, WindowDetokenizer):
        detokenizer = kind(byte_tokenizer, [], skip_special_tokens=skip)
        texts.append("".join([*map(detokenizer.push, ids), detokenizer.flush()]))
    assert texts[0] == texts[1] == byte_tokenizer.decode(ids, skip_special_tokens=skip)


def test_a_character_that_the_prompt_began_is_finished(byte_tokenizer):
    first, second, *rest = (byte_tokenizer.backend.token_to_id(char) for char in "ðŁĺĢ")
    assert pieces(byte_tokenizer, rest, prompt_token_ids=[first, second]) == ["", "😀", ""]


@given(ids=st.lists(st.integers(0, 269), max_size=40))
def test_windows_join_to_the_whole_text_for_any_pieces(space_tokenizer, ids):
    fallback = {space_tokenizer.backend.token_to_id(f"<0x{byte:02X}>") for byte in range(256)}
    ids = [token for token in ids if token not in fallback]
    assert "".join(pieces(space_tokenizer, ids)) == space_tokenizer.decode(ids)


@given(text=st.text(max_size=60))
def test_any_text_comes_back(byte_tokenizer, text):
    ids = byte_tokenizer.encode(text)
    assert "".join(pieces(byte_tokenizer, ids)) == text
