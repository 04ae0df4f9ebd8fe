"""From prompts to requests, with the tiny model's tokenizer."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers.models import WordLevel

from kvasir.text.chat_template import ChatTemplate
from kvasir.text.tokenizer import Tokenizer
from kvasir.wire.block_hash import chain_hashes, root_hash
from kvasir_engine.inputs import RequestMaker, cache_salt, choose_parsing, load_text
from kvasir_engine.loader.model_directory import resolve_model
from kvasir_engine.request import Resume
from kvasir_engine.sampling_params import ParameterError, SamplingParams
from kvasir_engine.settings import SettingsError, make_settings

VOCAB = 1792


@pytest.fixture(scope="module")
def maker() -> RequestMaker:
    directory = resolve_model("builtin://kvasir-tiny")
    settings = make_settings("builtin://kvasir-tiny", max_logprobs=5)
    maker = RequestMaker.load(directory, settings, vocab_size=VOCAB)
    return dataclasses.replace(maker, block_size=4)


def test_every_form_of_a_prompt_gives_its_ids(maker: RequestMaker) -> None:
    text, ids = maker.tokenise("Hello there")
    assert text == "Hello there"
    assert maker.tokenise({"prompt": "Hello there"}) == (text, ids)
    assert maker.tokenise(tuple(ids)) == (None, ids)
    assert maker.tokenise({"prompt_token_ids": ids, "prompt": "other"}) == ("other", ids)


@pytest.mark.parametrize(
    ("prompt", "named"),
    [
        ({"prompt": "Hello", "multi_modal_data": {"image": 1}}, "multi_modal_data"),
        ({"promt": "Hello"}, "promt"),
        ({"cache_salt": "tenant"}, "prompt"),
    ],
)
def test_a_key_of_a_prompt_that_has_no_meaning_is_named(
    maker: RequestMaker, prompt: dict[str, Any], named: str
) -> None:
    with pytest.raises(ParameterError) as caught:
        maker.tokenise(prompt)
    assert caught.value.param == named
    assert maker.tokenise({"prompt_token_ids": [1], "multi_modal_data": None}) == (None, [1])


def test_a_prompt_may_bring_its_salt() -> None:
    assert cache_salt({"prompt": "Hello", "cache_salt": "tenant"}) == "tenant"
    assert cache_salt({"prompt": "Hello", "cache_salt": None}) == cache_salt("Hello") == ""


def test_a_template_without_a_tokenizer_is_refused() -> None:
    directory = resolve_model("builtin://kvasir-tiny")
    with pytest.raises(SettingsError, match="--chat-template needs the tokenizer"):
        load_text(directory, skip=True, trust_remote_code=False, chat_template="{{ messages }}")


@pytest.mark.parametrize("token", [-1, VOCAB, 2**31, 2**64])
def test_an_id_outside_the_vocabulary_is_named(maker: RequestMaker, token: int) -> None:
    named = f"names token {token}, .* 0 to {VOCAB - 1}"
    with pytest.raises(ParameterError, match=f"prompt {named}"):
        maker.request("r", [1, token], SamplingParams())
    with pytest.raises(ParameterError, match=f"resume.output_token_ids {named}"):
        maker.request("r", [1], SamplingParams(), resume=Resume([1, token]))


def test_a_text_with_a_token_that_the_model_lacks_is_refused(maker: RequestMaker) -> None:
    """As Gemma 3's <image_soft_token>, which its tokenizer has and its embedding lacks."""
    small = dataclasses.replace(maker, vocab_size=2)
    _, ids = small.tokenise("<|im_end|>")
    with pytest.raises(
        ParameterError, match=r"prompt names token \d+ \('<\|im_end\|>'\), .* 0 to 1\."
    ):
        small.request("r", ids, SamplingParams())
    with pytest.raises(ParameterError, match=r"bad_words names token \d+ \('sort'\), .* 0 to 1\."):
        small.request("r", [1], SamplingParams(bad_words=["sort"]))
    assert small.request("r", [1], SamplingParams()).eos_token_ids == [0]


def test_a_request_has_the_hashes_of_its_full_blocks(maker: RequestMaker) -> None:
    ids = list(range(10, 19))
    plain = maker.request("r", ids, SamplingParams())
    salted = maker.request("r", ids, SamplingParams(), cache_salt="tenant")
    assert plain.block_hashes == chain_hashes(ids, 4, root=root_hash())
    assert len(plain.block_hashes) == 2 * 16
    assert plain.block_hashes[16:] != salted.block_hashes[16:]


def test_the_hashes_have_the_cores_seed(maker: RequestMaker) -> None:
    ids = list(range(10, 19))
    seeded = dataclasses.replace(maker, prefix_seed=b"seed")
    made = seeded.request("r", ids, SamplingParams(), cache_salt="tenant")
    root = root_hash(b"seed", cache_salt="tenant")
    assert made.block_hashes == chain_hashes(ids, 4, root=root)


def test_a_request_carries_what_it_was_given(maker: RequestMaker) -> None:
    resume = Resume([7], 3, 0)
    made = maker.request("r", [5], SamplingParams(), priority=-2, resume=resume)
    assert (made.request_id, made.priority, made.resume) == ("r", -2, resume)
    assert made.eos_token_ids == list(maker.eos_ids) == [2, 0]


@pytest.mark.parametrize("params", [{"logprobs": 6}, {"logit_bias": {VOCAB: 1.0}}])
def test_parameters_are_checked_against_the_model(
    maker: RequestMaker, params: dict[str, Any]
) -> None:
    (field,) = params
    with pytest.raises(ParameterError) as caught:
        maker.request("r", [5], SamplingParams(**params))
    assert caught.value.param == field


def test_spaces_between_special_tokens_are_kept_or_have_no_meaning(maker: RequestMaker) -> None:
    spaced = dataclasses.replace(
        maker, tokenizer=Tokenizer(Backend(WordLevel({"a": 0}, unk_token="a")), {})
    )
    together = {"spaces_between_special_tokens": False}
    shown = SamplingParams(**together, skip_special_tokens=False)
    with pytest.raises(ParameterError, match=r"not supported .* leave it out"):
        spaced.request("r", [0], shown)
    assert spaced.request("r", [0], SamplingParams(**together)).params
    assert maker.request("r", [0], shown).params


def test_bad_words_are_banned_at_the_start_and_after_a_space(maker: RequestMaker) -> None:
    encode = maker.tokenizer.encode
    forms = [encode(text, add_special_tokens=False) for text in ("sort", " sort")]
    assert maker.bad_word_ids(["sort"]) == forms
    assert maker.bad_word_ids(["sort", " sort", "sort"]) == forms
    made = maker.request("r", [5], SamplingParams(bad_words=["sort"]))
    assert made.params.bad_words_token_ids == forms


@pytest.mark.parametrize(
    ("prompt", "opens"),
    [
        ("<assistant>{% if enable_thinking %}<think>\n{% endif %}", True),
        ("<assistant>{{ '<think>' if thinking else '</think>' }}", True),
        ("<assistant><think>\n", True),
        ("<assistant>{% if enable_thinking is false %}<think></think>{% endif %}", False),
        ("{{ raise_exception('<think></think>') }}", False),
    ],
)
def test_whether_prompts_open_the_reasoning_is_tried_out(prompt: str, opens: bool) -> None:
    tokenizer, _ = load_text(
        resolve_model("builtin://kvasir-tiny"),
        skip=False,
        trust_remote_code=False,
        chat_template=None,
    )
    template = ChatTemplate(prompt)
    parsing = choose_parsing(tokenizer, template, tools="none", reasoning="think")
    assert parsing.prompt_opens is opens
    assert not choose_parsing(tokenizer, template, tools="none", reasoning="none").prompt_opens
