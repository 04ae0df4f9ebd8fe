"""A body's prompt becomes the report that a Kvasir engine would make of it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvasir.text.chat_template import ChatTemplate
from kvasir.text.json_files import TokenizerError
from kvasir.text.tokenizer import Tokenizer
from kvasir.wire.block_hash import HASH_BYTES, chain_hashes, root_hash
from kvasir.wire.text_chain import chain_hashes as text_hashes
from kvasir.wire.text_chain import chat_pieces, completion_pieces
from kvasir_router.tokenizing import prompt_tokenizer
from kvasir_router.tokenizing.job_messages import Job
from kvasir_router.tokenizing.prompt_tokenizer import PromptTokenizer, tokenizer_directory


@pytest.fixture(scope="module")
def made(tiny: Path) -> PromptTokenizer:
    return PromptTokenizer(tiny)


def job(body: dict[str, Any], **fields: Any) -> Job:
    chat = "messages" in body
    return Job(0, "", chat, json.dumps({"model": "m", **body}).encode(), **fields)


def talk(*contents: str) -> list[dict[str, str]]:
    roles = ["system", *["user", "assistant"] * len(contents)]
    return [{"role": r, "content": c} for r, c in zip(roles, contents, strict=False)]


@pytest.mark.parametrize("fields", [{}, {"cache_salt": "s"}, {"add_special_tokens": False}])
@pytest.mark.parametrize("lora", ["", "sql"])
def test_a_completion(
    made: PromptTokenizer,
    tokenizer: Tokenizer,
    words: Callable[[int, int], str],
    fields: dict[str, Any],
    lora: str,
) -> None:
    text = words(1, 600)
    report = made.report(job({"prompt": text, **fields}, lora=lora))
    pieces = completion_pieces(fields, text, lora=lora)
    assert list(report.text_hashes) == text_hashes(pieces)
    ids = tokenizer.encode(text, add_special_tokens=fields.get("add_special_tokens", True))
    root = root_hash(cache_salt=fields.get("cache_salt", ""), lora=lora)
    count = report.kv_blocks[-1]
    assert count > 0.8 * len(ids) / 16
    assert report.kv_hashes[-HASH_BYTES:] == chain_hashes(ids[: 16 * count], 16, root=root)[-16:]


def test_a_conversation_that_goes_on(
    made: PromptTokenizer, words: Callable[[int, int], str]
) -> None:
    before = talk(words(1, 300), words(2, 200))
    after = [*before, *talk("", "yes", "no")[1:], {"role": "user", "content": words(3, 300)}]
    first = made.report(job({"messages": before}))
    known = len(first.text_hashes)
    again = made.report(job({"messages": after}, known=known, claimed=first.kv_blocks[-1]))
    whole = made.report(job({"messages": after}))
    assert list(whole.text_hashes[:known]) == list(first.text_hashes)
    assert again.text_hashes == whole.text_hashes[known:]
    assert again.kv_hashes[-HASH_BYTES:] == whole.kv_hashes[-HASH_BYTES:]
    assert list(whole.text_hashes) == text_hashes(chat_pieces({"messages": after}))


def test_templates_get_what_the_body_says(tiny: Path, tmp_path: Path) -> None:
    template = (
        "{{ tools | tojson }}|{{ documents }}|{{ reasoning_effort }}|{{ flag }}|"
        "{% for m in messages %}{{ m.content }}{% endfor %}{{ add_generation_prompt }}"
    )
    body = {
        "messages": talk("x"),
        "tools": [{"function": {"name": "f", "strict": True}}],
        "documents": [{"text": "d"}],
        "reasoning_effort": "low",
        "chat_template_kwargs": {"flag": 7},
    }
    tool = {
        "type": "function",
        "function": {"name": "f", "description": None, "parameters": None, "strict": True},
    }
    text = prompt_tokenizer._render(ChatTemplate(template), body, body["messages"])
    assert text == f"{json.dumps([tool])}|[{{'text': 'd'}}]|low|7|xTrue"


@pytest.mark.parametrize(
    "body",
    [
        {"messages": 7},
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        {"messages": [], "chat_template": "{{ messages }}"},
        {"messages": [{"content": "no role"}]},
        {"messages": talk("x"), "tools": [7]},
        {"prompt": [1, 2]},
        {"prompt": "\ud800" * 600},
    ],
)
def test_a_body_without_a_prompt_is_refused(made: PromptTokenizer, body: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        made.report(job(body))


def test_where_a_tokenizer_is(tiny: Path, tmp_path: Path) -> None:
    assert tokenizer_directory("builtin://kvasir-tiny") == tiny
    assert tokenizer_directory(str(tmp_path)) == tmp_path
    with pytest.raises(TokenizerError):
        PromptTokenizer(tmp_path)
    with pytest.raises(ValueError, match="pvc"):
        tokenizer_directory("pvc://claim/model")
