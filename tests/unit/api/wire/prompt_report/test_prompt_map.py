"""A report's claims hold for every request with the same text chain, and they are worth having."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st

from kvasir.text.chat_messages import normalise_messages
from kvasir.text.chat_template import ChatTemplate, TemplateError
from kvasir.text.tokenizer import Tokenizer
from kvasir.wire.block_hash import HASH_BYTES, chain_hashes
from kvasir.wire.prompt_report.prompt_map import Messages, Render, common_prefix
from kvasir.wire.prompt_report.report import PromptReport, TokenisedPrompt, make_report
from kvasir.wire.prompt_report.token_cuts import CutRules
from kvasir.wire.text_chain import BLOCK_ENDS, chat_pieces, completion_pieces
from kvasir.wire.text_chain import chain_hashes as text_hashes

pytestmark = pytest.mark.slow

BLOCK = 8


WORDS = re.split(
    " ",
    "The engine reads prompts and its router asks users, maybe queues. <think> long </think> 12345 "
    "blocks: Zürich, São 東京\n\n\tIndented = f(y)[0] + 'quoted' words don't hash.\n",
)
LONG = (
    "The engine reads a prompt and writes an answer. A router sends the prompt to the engine that "
    "already holds its cache; the cache is made of blocks, and each block has a hash. Long system "
) * 8


CHATML = (
    "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


TRIMMED = "<s>" + CHATML.replace("{{ m.content }}", "{{ m.content | trim }}")


# Keeps an assistant's reasoning only behind the last question, as Qwen3 does.
REASONING = (
    "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}{% for m in messages %}"
    "<|start|>{{ m.role }}\n{% if m.role == 'assistant' and loop.index0 < ns.last %}"
    "{{ m.content.split('</think>')[-1].lstrip() }}{% else %}{{ m.content }}{% endif %}<|end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


# Puts the system prompt into the last question, as older Mistral templates do.
SYSTEM_LAST = (
    "{% set system = messages[0].content if messages[0].role == 'system' else '' %}<s>"
    "{% for m in messages %}{% if m.role == 'user' %}[INST] "
    "{% if loop.last and system %}{{ system }}\n\n{% endif %}{{ m.content }}[/INST]"
    "{% elif m.role == 'assistant' %} {{ m.content }}<|end|>{% endif %}{% endfor %}"
)


# Refuses turns that do not alternate, and joins the system prompt with the first one, as Gemma.
ALTERNATING = (
    "{% set system = messages[0].content if messages[0].role == 'system' else '' %}"
    "{% set turns = messages[1:] if system else messages %}<s>{% for m in turns %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "<|start|>{{ m.role }}\n{% if loop.first and system %}{{ system }}\n\n{% endif %}"
    "{{ m.content | trim }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>model\n{% endif %}"
)


TEMPLATES = {
    "chatml": CHATML,
    "trimmed": TRIMMED,
    "reasoning": REASONING,
    "system-last": SYSTEM_LAST,
    "alternating": ALTERNATING,
}


class Prompt:
    """A conversation as an engine sees it."""

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer, messages: Messages) -> None:
        self.template = template
        self.body = {"messages": list(messages)}
        self.rendered = self.render(messages)
        self.token_ids = tokenizer.encode(self.rendered, add_special_tokens=False)
        self.kv = split(chain_hashes(self.token_ids, BLOCK))
        self.text = list(text_hashes(chat_pieces(self.body)))

    def render(self, messages: Messages) -> str:
        return self.template.render(normalise_messages(messages, "string"))


def split(hashes: bytes) -> list[bytes]:
    return [hashes[at : at + HASH_BYTES] for at in range(0, len(hashes), HASH_BYTES)]


def report_of(
    tokenizer: Tokenizer, prompt: Prompt, render: Render | None = None, **known: int
) -> PromptReport | None:
    tokenised = TokenisedPrompt(
        chat_pieces(prompt.body),
        prompt.body["messages"],
        prompt.rendered,
        prompt.token_ids,
        b"".join(prompt.kv),
        False,
        render or prompt.render,
    )
    return make_report(tokenised, prompt.text, tokenizer, CutRules(tokenizer), BLOCK, **known)


def shared_blocks(report: PromptReport, text: Sequence[int]) -> int:
    """Leading text blocks of a report that `text` has too."""
    pairs = zip(report.text_hashes, text, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), len(report.text_hashes))


def check_claims(report: PromptReport, text: Sequence[int], kv: Sequence[bytes]) -> None:
    """Every claim about a text block that `text` has too is true of `kv`."""
    own = set(text)
    hashes = split(report.kv_hashes)
    for text_hash, count, last in zip(report.text_hashes, report.kv_blocks, hashes, strict=True):
        if text_hash in own and count:
            assert count <= len(kv)
            assert kv[count - 1] == last


words = st.lists(st.sampled_from(WORDS), min_size=0, max_size=30)


long_text = st.tuples(words, st.integers(1, 12), words).map(
    lambda parts: " ".join([*(parts[0] * parts[1]), *parts[2]])
)


@st.composite
def conversations(draw: st.DrawFn) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Two conversations that share leading messages and the beginning of the next one."""
    roles = ["user", "assistant"] * 3
    if draw(st.booleans()):
        roles.insert(0, "system")
    contents = draw(st.lists(long_text, min_size=len(roles), max_size=len(roles)))
    one = [{"role": r, "content": c} for r, c in zip(roles, contents, strict=True)]
    fork = draw(st.integers(0, len(one) - 1))
    content = one[fork]["content"]
    kept = content[: draw(st.integers(0, len(content)))]
    ending = draw(st.sampled_from(["", "x", " ", "\n\n", "</think>", "<|end|>", "ü", "é and more"]))
    other = {**one[fork], "content": kept + ending + draw(st.sampled_from(["", "tail " * 200]))}
    more = [
        {"role": role, "content": draw(long_text)}
        for role in roles[fork + 1 : fork + 1 + draw(st.integers(0, 3))]
    ]
    return one[: draw(st.integers(fork + 1, len(one)))], [*one[:fork], other, *more]


@pytest.mark.parametrize("tokenizer", ["byte-level", "whole-text"])
@pytest.mark.parametrize("template", TEMPLATES)
@settings(max_examples=12)
@given(pair=conversations())
def test_claims_hold_for_every_conversation_with_the_same_chain(
    tokenizers: dict[str, Tokenizer],
    template: str,
    tokenizer: str,
    pair: tuple[list[dict[str, Any]], list[dict[str, Any]]],
) -> None:
    made = tokenizers[tokenizer]
    assume(all(any(m["role"] == "user" for m in messages) for messages in pair))
    try:
        one, other = (Prompt(ChatTemplate(TEMPLATES[template]), made, each) for each in pair)
    except TemplateError:
        reject()
    for first, second in ((one, other), (other, one)):
        report = report_of(made, first)
        if report is not None:
            check_claims(report, second.text, second.kv)
            check_claims(report, first.text, first.kv)
        if report is not None and (shared := shared_blocks(report, second.text)):
            # As one who was told of the first asks about the second
            more = report_of(made, second, known=shared, claimed=report.kv_blocks[shared - 1])
            if more is not None:
                check_claims(more, first.text, first.kv)


THOUGHT = f"<think>{LONG}</think>{LONG}"


ASK = {"role": "user", "content": "a question"}


FORKS = {
    "an answer's reasoning is dropped behind the next question": (
        "reasoning",
        [ASK, {"role": "assistant", "content": THOUGHT}, ASK],
        [ASK, {"role": "assistant", "content": THOUGHT}],
    ),
    "a tool's answer keeps the reasoning, a question drops it": (
        "reasoning",
        [ASK, {"role": "assistant", "content": THOUGHT}, {"role": "tool", "content": "x"}],
        [ASK, {"role": "assistant", "content": THOUGHT}, ASK],
    ),
    "text before a closing tag is dropped": (
        "reasoning",
        [ASK, {"role": "assistant", "content": LONG + " more"}, ASK],
        [ASK, {"role": "assistant", "content": LONG + "</think> more"}, ASK],
    ),
    "the system prompt moves to the last question": (
        "system-last",
        [{"role": "system", "content": LONG}, ASK],
        [{"role": "system", "content": LONG}, ASK, {"role": "assistant", "content": "x"}, ASK],
    ),
    "a short system prompt moves out from before a long question": (
        "system-last",
        [{"role": "system", "content": LONG[9:209]}, {"role": "user", "content": LONG}],
        [
            {"role": "system", "content": LONG[9:209]},
            {"role": "user", "content": LONG},
            {"role": "assistant", "content": "x"},
        ],
    ),
}


@pytest.mark.parametrize("tokenizer", ["byte-level", "whole-text"])
@pytest.mark.parametrize("fork", FORKS)
def test_claims_hold_where_templates_look_ahead(
    tokenizers: dict[str, Tokenizer], fork: str, tokenizer: str
) -> None:
    made = tokenizers[tokenizer]
    template, *pair = FORKS[fork]
    one, other = (Prompt(ChatTemplate(TEMPLATES[template]), made, each) for each in pair)
    assert one.text[0] == other.text[0]
    assert one.kv != other.kv
    for first, second in ((one, other), (other, one)):
        report = report_of(made, first)
        assert report is not None
        check_claims(report, second.text, second.kv)


@pytest.mark.parametrize("tokenizer", ["byte-level", "whole-text"])
@given(one=long_text, ending=st.sampled_from(["", "x", " y", "ü"]), cut=st.floats(0, 1))
def test_completion_claims_hold_for_every_prompt_with_the_same_chain(
    tokenizers: dict[str, Tokenizer], tokenizer: str, one: str, ending: str, cut: float
) -> None:
    made = tokenizers[tokenizer]
    other = one[: int(cut * len(one))] + ending
    kv = [split(chain_hashes(made.encode(text), BLOCK)) for text in (one, other)]
    pieces, ids = completion_pieces({}, one), made.encode(one)
    prompt = TokenisedPrompt(pieces, (), one, ids, b"".join(kv[0]), True, None)
    report = make_report(prompt, text_hashes(pieces), made, CutRules(made), BLOCK)
    if report is not None:
        check_claims(report, text_hashes(completion_pieces({}, other)), kv[1])
        check_claims(report, text_hashes(completion_pieces({}, one)), kv[0])


def talk(*contents: str) -> list[dict[str, Any]]:
    roles = ["system", *["user", "assistant"] * len(contents)]
    return [{"role": r, "content": c} for r, c in zip(roles, contents, strict=False)]


@pytest.mark.parametrize("tokenizer", ["byte-level", "whole-text"])
@pytest.mark.parametrize("template", ["chatml", "trimmed", "reasoning", "alternating"])
def test_nearly_all_of_a_shared_prefix_is_claimed(
    tokenizers: dict[str, Tokenizer], template: str, tokenizer: str
) -> None:
    made = tokenizers[tokenizer]
    prompt = Prompt(
        ChatTemplate(TEMPLATES[template]), made, talk(LONG, "a question", "a reply", LONG)
    )
    report = report_of(made, prompt)
    assert report is not None
    assert list(report.text_hashes) == prompt.text
    claimed = [
        made.decode(prompt.token_ids[: count * BLOCK], skip_special_tokens=False)
        for count in report.kv_blocks
    ]
    for block, text in enumerate(claimed):
        # less than two blocks of text are lost to headers, cuts and whole KV blocks
        assert len(text.encode()) > BLOCK_ENDS[max(block - 1, 0)]


def test_what_moves_is_not_claimed(tokenizers: dict[str, Tokenizer]) -> None:
    made = tokenizers["byte-level"]
    prompt = Prompt(ChatTemplate(SYSTEM_LAST), made, talk(LONG, "a question"))
    report = report_of(made, prompt)
    assert report is not None
    assert max(report.kv_blocks) == 0


def test_many_messages_have_bounded_probes(tokenizers: dict[str, Tokenizer]) -> None:
    made = tokenizers["byte-level"]
    prompt = Prompt(ChatTemplate(CHATML), made, talk(*["a text of a turn " * 40] * 60))
    calls = 0

    def render(messages: Messages) -> str:
        nonlocal calls
        calls += 1
        return prompt.render(messages)

    report = report_of(made, prompt, render)
    assert report is not None
    assert calls <= 32
    assert report.kv_blocks[-1] > 0.9 * len(prompt.kv)


@given(st.binary(max_size=20), st.binary(max_size=20), st.binary(max_size=20))
def test_common_prefix(shared: bytes, one: bytes, other: bytes) -> None:
    length = common_prefix(shared + one, shared + other)
    assert length >= len(shared)
    assert (shared + one)[:length] == (shared + other)[:length]
    assert (shared + one)[: length + 1] != (shared + other)[: length + 1] or length == min(
        len(shared + one), len(shared + other)
    )
