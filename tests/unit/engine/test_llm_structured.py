"""Structured outputs beside everything else that a request may ask for, on the tiny model."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from kvasir_engine import LLM, SamplingParams
from kvasir_engine.outputs import CompletionOutput

pytestmark = pytest.mark.slow

TINY = "builtin://kvasir-tiny"
KV_BYTES = 3 << 20
"""Too few for the eight prompts with their outputs."""
PAIR = r'\{\s*"name"\s*:\s*"[a-z]{1,6}"\s*,\s*"age"\s*:\s*[0-9]{1,3}\s*\}'
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z]{1,6}$"},
        "age": {"type": "integer", "minimum": 0, "maximum": 999},
    },
    "required": ["name", "age"],
}
TAG = {
    "type": "tag",
    "begin": "<a>",
    "content": {"type": "regex", "pattern": "[a-z]{4}"},
    "end": "</a>",
}
FORMS: dict[str, tuple[Any, str]] = {
    "json": (SCHEMA, PAIR),
    "regex": ("[a-z]{4}-[0-9]{4}", "[a-z]{4}-[0-9]{4}"),
    "choice": (["red", "green", "blue"], "red|green|blue"),
    "grammar": ('root ::= "(" root ")" | [a-z] [0-9]', r"\(*[a-z][0-9]\)*"),
    "lark": ("start: /[a-z]{5}/ | NUMBER\nNUMBER: /[0-9]{3}/", "[a-z]{5}|[0-9]{3}"),
    "structural_tag": ({"type": "structural_tag", "format": TAG}, "<a>[a-z]{4}</a>"),
}
"""Each language's form, and a regular expression of its outputs."""


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    made = LLM(TINY, max_num_seqs=16, kv_cache_memory_bytes=64 << 20)
    yield made
    made.close()


def sampled(llm: LLM, kind: str, prompts: list[str], **how: Any) -> list[CompletionOutput]:
    form = json.dumps({kind: FORMS[kind][0]})
    given = {"temperature": 1.0, "seed": 3, "max_tokens": 120, **how}
    params = SamplingParams(structured_outputs=form, **given)
    outputs = llm.generate(prompts, params, use_tqdm=False)
    return [each for output in outputs for each in output.outputs]


def have_form(kind: str, samples: list[CompletionOutput]) -> bool:
    ended = {each.finish_reason for each in samples} == {"stop"}
    return ended and all(re.fullmatch(FORMS[kind][1], each.text) for each in samples)


@pytest.mark.parametrize("kind", FORMS)
def test_samples_of_one_prompt_go_their_own_ways(llm: LLM, kind: str) -> None:
    samples = sampled(llm, kind, ["Go:"], n=6, logprobs=2, temperature=3.0)
    assert have_form(kind, samples)
    assert len({each.text for each in samples}) > 1
    for each in samples:
        assert each.logprobs is not None
        assert len(each.logprobs) == len(each.token_ids)


@pytest.mark.parametrize("kind", FORMS)
def test_penalties_and_biases_choose_among_what_the_form_allows(llm: LLM, kind: str) -> None:
    how: dict[str, Any] = {
        "presence_penalty": 1.5,
        "frequency_penalty": 1.5,
        "repetition_penalty": 1.5,
        "logit_bias": dict.fromkeys(range(40, 60), 50.0),
        "top_k": 5,
        "min_p": 0.01,
    }
    assert have_form(kind, sampled(llm, kind, ["Go:", "Who?"], **how))


def test_a_stop_string_ends_an_output_within_its_form(llm: LLM) -> None:
    [sample] = sampled(llm, "regex", ["Go:"], stop=["-"])
    assert re.fullmatch("[a-z]{4}", sample.text)
    assert sample.finish_reason == "stop"


LONG: dict[str, tuple[Any, str]] = {
    "json": ({"type": "string", "pattern": "^[a-z]{90}$"}, '"[a-z]{90}"'),
    "regex": ("[a-z]{90}", "[a-z]{90}"),
    "grammar": ("root ::= [a-z]{90}", "[a-z]{90}"),
    "lark": ("start: /[a-z]{90}/", "[a-z]{90}"),
}


@pytest.mark.parametrize("kind", LONG)
def test_preempted_outputs_go_on_in_their_form(llm: LLM, kind: str) -> None:
    form, pattern = LONG[kind]
    params = SamplingParams(
        temperature=1.0, seed=3, max_tokens=150, structured_outputs=json.dumps({kind: form})
    )
    prompts = [f"Prompt {at}: " + "one two three " * 8 for at in range(8)]
    small = LLM(TINY, max_num_seqs=8, kv_cache_memory_bytes=KV_BYTES, max_model_len=256)
    few, many = (
        [each.outputs[0].text for each in made.generate(prompts, params, use_tqdm=False)]
        for made in (small, llm)
    )
    preemptions = small._core.scheduler.counters.preemptions
    small.close()
    assert preemptions > 0
    assert few == many
    assert all(re.fullmatch(pattern, text) for text in few)


@pytest.mark.parametrize("kind", FORMS)
def test_a_prompt_from_the_prefix_cache_begins_the_form_anew(llm: LLM, kind: str) -> None:
    prompt = f"{kind}: " + "a long prompt that fills blocks, " * 6
    params = SamplingParams(
        temperature=1.0,
        seed=5,
        max_tokens=120,
        structured_outputs=json.dumps({kind: FORMS[kind][0]}),
    )
    first, second = (llm.generate(prompt, params, use_tqdm=False)[0] for _ in range(2))
    assert second.num_cached_tokens
    assert first.outputs[0].text == second.outputs[0].text
    assert have_form(kind, first.outputs)
