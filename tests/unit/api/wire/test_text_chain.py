import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir.wire.text_chain import (
    BLOCK_BYTES,
    BLOCK_ENDS,
    BLOCK_SIZES,
    MAX_BLOCKS,
    chain_hashes,
    chat_pieces,
    chat_text,
    completion_pieces,
    content_start,
)

LONG = "The quick brown fox jumps over the lazy dog. " * 40

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)
messages = st.lists(
    st.dictionaries(st.sampled_from(["role", "content", "name"]), values, max_size=3), max_size=4
)


def chat(*contents: Any, **fields: Any) -> list[int]:
    roles = ["system", "user", "assistant", "user", "assistant"]
    body = {
        "messages": [{"role": r, "content": c} for r, c in zip(roles, contents, strict=False)],
        **fields,
    }
    return list(chain_hashes(chat_pieces(body)))


def test_a_longer_conversation_keeps_the_blocks_of_its_past() -> None:
    before = chat(LONG, "question")
    after = chat(LONG, "question", LONG, "another question")
    assert len(before) == len(LONG) // BLOCK_BYTES
    assert after[: len(before)] == before
    assert len(after) > len(before)


def test_a_change_changes_every_later_block() -> None:
    one = chat("a" * 2000 + "X" + "b" * 2000)
    two = chat("a" * 2000 + "Y" + "b" * 2000)
    same = sum(x == y for x, y in zip(one, two, strict=True))
    assert one[:same] == two[:same]
    assert (2000 // BLOCK_BYTES) - 1 <= same <= 2000 // BLOCK_BYTES


@pytest.mark.parametrize(
    "fields",
    [
        {"cache_salt": "s"},
        {"tools": [{"type": "function"}]},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"continue_final_message": True},
    ],
)
def test_what_changes_the_prompt_is_another_chain(fields: dict[str, Any]) -> None:
    assert set(chat(LONG)).isdisjoint(chat(LONG, **fields))


def test_a_lora_is_another_chain() -> None:
    body = {"messages": [{"role": "user", "content": LONG}]}
    plain, adapted = chain_hashes(chat_pieces(body)), chain_hashes(chat_pieces(body, lora="a"))
    assert set(plain).isdisjoint(adapted)
    prompt = completion_pieces({}, LONG), completion_pieces({}, LONG, lora="a")
    assert set(chain_hashes(prompt[0])).isdisjoint(chain_hashes(prompt[1]))


def test_what_does_not_change_the_prompt_is_the_same_chain() -> None:
    assert chat(LONG) == chat(LONG, temperature=0.5, stream=True, model="m", documents=None)
    assert chat(LONG) == chat(LONG, tools=[], tool_choice="none", chat_template_kwargs={})
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert chat(LONG, tools=tools) == chat(LONG, tools=tools, tool_choice="auto")
    assert chat(LONG, tools=tools) != chat(LONG)
    assert chat(LONG, tools=tools) != chat(LONG, tools=tools, tool_choice="none")


def test_the_order_of_a_messages_fields_does_not_matter() -> None:
    one = {"messages": [{"role": "user", "content": LONG, "name": "n"}]}
    two = {"messages": [{"content": LONG, "name": "n", "role": "user"}]}
    assert chat_pieces(one) == chat_pieces(two)


def test_chat_and_completion_differ() -> None:
    body = {"messages": [{"role": "user", "content": LONG}]}
    completion = completion_pieces({}, LONG)
    assert set(chain_hashes(chat_pieces(body))).isdisjoint(chain_hashes(completion))


def test_work_is_bounded() -> None:
    assert BLOCK_ENDS[MAX_BLOCKS] == 1 << 20
    assert len(chat("x" * (1 << 21))) == MAX_BLOCKS


@pytest.mark.parametrize("blocks", [1, 16, 17, 44, 45, 60])
def test_a_block_is_there_when_all_its_text_is(blocks: int) -> None:
    text = bytes(range(256)) * 1000
    assert len(chain_hashes([text[: BLOCK_ENDS[blocks]]])) == blocks
    assert len(chain_hashes([text[: BLOCK_ENDS[blocks] - 1]])) == blocks - 1
    whole = chain_hashes([text])
    assert chain_hashes([text[: BLOCK_ENDS[blocks]]]) == whole[:blocks]
    assert BLOCK_ENDS[blocks] - BLOCK_ENDS[blocks - 1] == BLOCK_SIZES[blocks - 1]


@pytest.mark.slow
@given(messages)
def test_the_text_is_that_of_the_pieces(given: list[dict[str, Any]]) -> None:
    assert chat_text({}, given) == b"".join(chat_pieces({"messages": given}))


def test_lone_surrogates_have_a_text() -> None:
    body = json.loads('{"messages": [{"role": "user", "content": "\\ud800"}]}')
    assert b"\xed\xa0\x80" in chat_pieces(body)[1]


@pytest.mark.parametrize("content", ["", "plain", 'quote " and \n', "é ⧖ 🦄"])
def test_content_start_finds_the_content(content: str) -> None:
    piece = chat_pieces({"messages": [{"role": "user", "name": content, "content": content}]})[1]
    start = content_start(piece, content)
    assert piece[start:-1] == content.encode()


@given(messages, messages)
def test_different_messages_have_different_texts(
    one: list[dict[str, Any]], two: list[dict[str, Any]]
) -> None:
    texts = [b"".join(chat_pieces({"messages": given})) for given in (one, two)]

    def meaning(given: list[dict[str, Any]]) -> str:
        full = [{"role": None, "content": None, **message} for message in given]
        return json.dumps(full, sort_keys=True)

    assert (meaning(one) == meaning(two)) or texts[0] != texts[1]


@pytest.mark.parametrize("given", [None, 5, "text", {}, [], [None], ["x"], [5, [1]]])
def test_any_json_gives_a_text(given: Any) -> None:
    assert chat_pieces({"messages": given})[0].startswith(b'["chat"')
