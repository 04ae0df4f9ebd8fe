"""Plans survive the way to another rank, whatever their fields hold."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from kvasir_engine.parallel.plan_codec import decode, decode_masks, encode, encode_masks
from kvasir_engine.step_plan import (
    BlockAppends,
    PromptLogprobsPlan,
    RowFork,
    RowInit,
    RowSampling,
    StepPlan,
)

numbers = st.integers(-(2**63), 2**63 - 1)
floats = st.floats(allow_nan=False)
int32 = arrays(np.int32, st.integers(0, 5))
pairs = arrays(np.int32, st.tuples(st.integers(0, 3), st.just(2)))


def few(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(strategy, max_size=2)


sampling = st.builds(
    RowSampling,
    seed=numbers,
    sample_index=numbers,
    temperature=floats,
    top_p=floats,
    top_k=numbers,
    min_p=floats,
    presence_penalty=floats,
    frequency_penalty=floats,
    repetition_penalty=floats,
    logit_bias=st.dictionaries(numbers, floats, max_size=3),
    allowed_token_ids=st.none() | st.lists(numbers, max_size=3),
    bad_words=few(st.lists(numbers, max_size=3)),
    stop_ids=st.lists(numbers, max_size=3),
    min_tokens=numbers,
)
init = st.builds(
    RowInit,
    row=numbers,
    token_ids=int32,
    num_prompt=numbers,
    num_computed=numbers,
    block_tables=few(int32),
    sampling=sampling,
)
fork = st.builds(RowFork, src=numbers, dst=numbers, block_tables=few(int32), sampling=sampling)
appends = st.builds(BlockAppends, rows=int32, index=int32, blocks=int32)
prompt = st.builds(PromptLogprobsPlan, entry=numbers, first=numbers, last=numbers, top=numbers)
plans = st.builds(
    StepPlan,
    step_id=numbers,
    rows=int32,
    num_new=int32,
    starts=int32,
    num_decodes=numbers,
    sample_entries=int32,
    sample_rows=int32,
    replaced=st.none() | pairs,
    inits=few(init),
    forks=few(fork),
    appends=few(appends),
    copies=few(pairs),
    top_logprobs=numbers,
    prompt_logprobs=few(prompt),
    forced=st.none() | pairs,
    masked=st.none() | int32,
    masks=st.none() | pairs,
    biased=st.none() | int32,
    biases=st.just([]),
)


def plain(value: Any) -> Any:
    """`value` with arrays as (dtype, shape, items), so that == compares all of it."""
    if isinstance(value, np.ndarray):
        return (value.dtype, value.shape, value.tolist())
    if dataclasses.is_dataclass(value):
        return [plain(getattr(value, field.name)) for field in dataclasses.fields(value)]
    return [plain(item) for item in value] if isinstance(value, list) else value


@pytest.mark.slow
@given(plans)
def test_every_field_survives(plan: StepPlan) -> None:
    assert plain(decode(bytearray(encode(plan)))) == plain(plan)


def test_the_plans_above_give_every_field() -> None:
    """A field that is added to a plan must be added here."""
    built = {
        RowSampling: sampling,
        RowInit: init,
        RowFork: fork,
        BlockAppends: appends,
        PromptLogprobsPlan: prompt,
        StepPlan: plans,
    }
    for kind, strategy in built.items():
        given_fields = strategy.wrapped_strategy.kwargs  # type: ignore[attr-defined]
        assert set(given_fields) == {field.name for field in dataclasses.fields(kind)}


@given(arrays(np.int32, array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)))
def test_arrays_of_any_shape_survive(array: np.ndarray[Any, Any]) -> None:
    plan = a_plan()
    plan.copies = [array, array]
    assert plain(decode(bytearray(encode(plan)))) == plain(plan)


@given(arrays(np.int32, array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=4)))
def test_masks_survive(masks: np.ndarray[Any, Any]) -> None:
    assert plain(decode_masks(bytearray(encode_masks(masks)))) == plain(masks)


def test_arrays_can_be_written_to_as_torch_wants() -> None:
    plan = decode(bytearray(encode(a_plan())))
    assert plan.rows.flags.writeable
    assert plan.sample_rows.flags.aligned


def a_plan() -> StepPlan:
    rows = np.array([3, 1, 2], dtype=np.int32)
    return StepPlan(7, rows, rows, rows, 3, rows, rows)


def test_other_dtypes_are_refused() -> None:
    plan = a_plan()
    plan.rows = plan.rows.astype(np.int64)  # type: ignore[assignment]
    with pytest.raises(TypeError, match="array of int64"):
        encode(plan)


def test_a_message_of_another_length_is_refused() -> None:
    with pytest.raises(msgspec.DecodeError, match="trailing"):
        decode(bytearray(encode(a_plan()) + bytes(8)))
