from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kvasir.text.tokenizer import Tokenizer
from kvasir_engine.request import LogprobEntry
from kvasir_engine.server.long_json import encode_in_turns
from kvasir_engine.server.loop_turns import LoopTurns
from kvasir_engine.server.openai import logprob_format
from kvasir_engine.server.openai.logprob_format import LogprobFormat, join_legacy


@pytest.fixture
def shown(byte_tokenizer: Tokenizer) -> LogprobFormat:
    return LogprobFormat(byte_tokenizer)


@pytest.fixture
def ids(byte_tokenizer: Tokenizer) -> list[int]:
    return byte_tokenizer.encode("ab")


def test_a_chat_shows_bytes_of_half_characters(
    shown: LogprobFormat, byte_tokenizer: Tokenizer
) -> None:
    first, second = byte_tokenizer.encode("é")
    made = shown.chat([LogprobEntry(first, -0.5, 1, [second], [-1.0])])
    [content] = made["content"]
    assert content["bytes"] == [0xC3]
    assert content["token"] == "\ufffd"
    assert content["top_logprobs"][0]["bytes"] == [0xA9]


def test_minus_infinity_is_a_number_json_can_write(shown: LogprobFormat, ids: list[int]) -> None:
    impossible = LogprobEntry(ids[0], float("-inf"), 9, [ids[1]], [float("-inf")])
    assert shown.chat([impossible])["content"][0]["logprob"] == -9999.0
    assert shown.legacy([impossible], [0])["token_logprobs"] == [-9999.0]
    assert shown.prompt([impossible])[1] == {
        str(ids[0]): {"logprob": -9999.0, "rank": 9, "decoded_token": "a"},
        str(ids[1]): {"logprob": -9999.0, "rank": 1, "decoded_token": "b"},
    }


def test_ids_instead_of_texts(byte_tokenizer: Tokenizer, ids: list[int]) -> None:
    made = LogprobFormat(byte_tokenizer, as_ids=True)
    entry = LogprobEntry(ids[0], -0.5, 2, [ids[1]], [-0.1])
    assert made.legacy([entry], [3]) == {
        "tokens": [f"token_id:{ids[0]}"],
        "token_logprobs": [-0.5],
        "top_logprobs": [{f"token_id:{ids[1]}": -0.1, f"token_id:{ids[0]}": -0.5}],
        "text_offset": [3],
    }


def test_an_echoed_prompt_comes_before_the_output(shown: LogprobFormat, ids: list[int]) -> None:
    entry = LogprobEntry(ids[1], -0.5, 1, [], [])
    prompt = shown.legacy_prompt(ids, [entry])
    assert (prompt["token_logprobs"], prompt["text_offset"]) == ([None, -0.5], [0, 1])
    joined = join_legacy(prompt, shown.legacy([entry], [2]))
    assert joined["tokens"] == ["a", "b", "b"]
    assert joined["text_offset"] == [0, 1, 2]
    assert join_legacy(prompt, None) == prompt


def test_of_tokens_with_the_same_text_the_likeliest_is_shown(
    shown: LogprobFormat, byte_tokenizer: Tokenizer
) -> None:
    first, second = byte_tokenizer.encode("é")
    entry = LogprobEntry(second, -3.0, 3, [first, second], [-1.0, -2.0])
    assert shown.legacy([entry], [0])["top_logprobs"] == [{"\ufffd": -1.0}]


@pytest.mark.parametrize("long_top", [logprob_format.LONG_TOP, 1])
async def test_what_is_made_in_turns_is_the_same(
    byte_tokenizer: Tokenizer, ids: list[int], monkeypatch: pytest.MonkeyPatch, long_top: int
) -> None:
    many = [*range(200), *range(200)]
    entries = [
        LogprobEntry(ids[0], -0.5, 2, [ids[1]], [-0.1]),
        LogprobEntry(ids[1], -0.2, 1),
        LogprobEntry(ids[1], -0.2, 1, many, [-float(token_id) for token_id in many]),
    ]

    def document(made: LogprobFormat) -> list[Any]:
        offsets = [2, 3, 4]
        prompt, legacy = made.legacy_prompt(ids, entries[1:]), made.legacy(entries, offsets)
        joined = join_legacy(made.legacy_prompt(ids, entries[1:]), made.legacy(entries, offsets))
        return [made.chat(entries), prompt, legacy, joined, made.prompt(entries)]

    plain = msgspec.json.encode(document(LogprobFormat(byte_tokenizer)))
    monkeypatch.setattr(logprob_format, "LONG_TOP", long_top)
    parts = await encode_in_turns(
        document(LogprobFormat(byte_tokenizer, in_turns=True)), LoopTurns()
    )
    assert b"".join(parts) == plain
