from __future__ import annotations

from typing import Any

import pytest

from kvasir_engine.request import EngineRequest, Resume
from kvasir_engine.sampling_params import SamplingParams
from kvasir_engine.scheduler.sequence import Sequence, make_sequences


def make(resume: Resume | None = None, **params: Any) -> Sequence:
    request = EngineRequest(
        "r", 5, [1, 2, 3], SamplingParams(**params), eos_token_ids=[9], resume=resume
    )
    return make_sequences(request, order=20, seed=77, max_model_len=16)


def test_samples_differ_in_handle_order_and_sample_index_alone() -> None:
    lead = make(n=3, seed=4, max_tokens=5)
    every = [lead, *lead.siblings]
    assert [s.handle for s in every] == [5, 6, 7]
    assert [s.order for s in every] == [20, 21, 22]
    assert [(s.sampling.seed, s.sampling.sample_index) for s in every] == [(4, 0), (4, 1), (4, 2)]
    assert {(s.num_prompt, s.limit, tuple(s.tokens)) for s in every} == {(3, 8, (1, 2, 3))}
    assert [s.lead for s in every] == [None, lead, lead]
    assert (lead.rows_needed, lead.is_special, lead.siblings[0].is_special) == (3, True, False)


@pytest.mark.parametrize(("max_tokens", "limit"), [(None, 16), (5, 8), (13, 16), (500, 16)])
def test_the_limit_is_the_requests_or_the_models(max_tokens: int | None, limit: int) -> None:
    assert make(max_tokens=max_tokens).limit == limit


def test_resumed_output_counts_as_output_and_keeps_its_random_bits() -> None:
    sequence = make(Resume([7, 8], 99, 2), seed=4, max_tokens=5)
    assert (sequence.tokens.tolist(), sequence.num_prompt, sequence.limit) == (
        [1, 2, 3, 7, 8],
        3,
        8,
    )
    assert (sequence.sampling.seed, sequence.sampling.sample_index) == (99, 2)


def test_an_unseeded_request_gets_the_seed_drawn_for_it() -> None:
    assert make().sampling.seed == 77
    assert make(Resume([7])).sampling.seed == 77


@pytest.mark.parametrize(("ignore", "stops"), [(False, [9, 4]), (True, [4])])
def test_ids_banned_before_min_tokens_are_those_that_stop(ignore: bool, stops: list[int]) -> None:
    sequence = make(stop_token_ids=[4], ignore_eos=ignore, min_tokens=2)
    assert sequence.request.all_stop_ids() == sequence.sampling.stop_ids == stops
    assert make(stop_token_ids=[4], ignore_eos=ignore).sampling.stop_ids == []


def test_prompt_logprobs_need_a_look_until_all_are_reported() -> None:
    sequence = make(prompt_logprobs=0)
    assert sequence.is_special
    sequence.reported = 2
    assert not sequence.is_special
