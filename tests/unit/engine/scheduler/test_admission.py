from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import pytest

from kvasir_engine.request import EngineRequest, Resume
from kvasir_engine.sampling_params import SamplingParams
from kvasir_engine.scheduler import admission

Make = Callable[..., Any]


def refusal(
    engine: Any, prompt: int, resume: Resume | None = None, **params: Any
) -> admission.Refusal | None:
    request = EngineRequest("r", 0, [1] * prompt, SamplingParams(**params), resume=resume)
    return admission.check(engine.scheduler, request)


def test_the_longest_prompt_leaves_room_for_one_token(engine_model: Make) -> None:
    engine = engine_model(max_model_len=32, num_blocks=(20,))
    assert refusal(engine, 31) is None
    found = refusal(engine, 32)
    assert found is not None
    assert (found.status, found.param) == (400, "prompt")
    assert "32 tokens, but the model's context is 32 tokens" in found.message


def test_an_empty_prompt_is_refused(engine_model: Make) -> None:
    found = refusal(engine_model(), 0)
    assert found is not None
    assert found.message == "The prompt must have at least one token."


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "resumed", "room"), [(4, 5, 5, 5), (4, 5, 4, None), (60, None, 4, 4)]
)
def test_resumed_output_must_leave_something_to_generate(
    engine_model: Make, prompt: int, max_tokens: int | None, resumed: int, room: int | None
) -> None:
    found = refusal(engine_model(), prompt, Resume([1] * resumed), max_tokens=max_tokens)
    if room is None:
        assert found is None
    else:
        assert found is not None
        assert (found.status, found.param) == (400, "resume")
        assert f"{resumed} output tokens, but the request ends after {room};" in found.message


@pytest.mark.parametrize("token", [-1, 32, 2**31, 2**64])
@pytest.mark.parametrize(
    "where",
    [
        "prompt",
        "resume.output_token_ids",
        "eos_token_ids",
        "logit_bias",
        "stop_token_ids",
        "allowed_token_ids",
        "bad_words",
    ],
)
def test_a_token_that_the_model_lacks_never_reaches_a_step(
    engine_model: Make, where: str, token: int
) -> None:
    request = EngineRequest("r", 0, [1, 31], SamplingParams(), [31], resume=Resume([1, 31]))
    engine = engine_model(vocab_size=32)
    assert admission.check(engine.scheduler, request) is None
    match where:
        case "prompt":
            request.prompt_token_ids = [1, token]
        case "resume.output_token_ids":
            request.resume = Resume([1, token])
        case "eos_token_ids":
            request.eos_token_ids = [token]
        case "logit_bias":
            request.params.logit_bias = {1: 0.0, token: 0.0}
        case "bad_words":
            request.params.bad_words_token_ids = [[1], [1, token]]
        case _:
            setattr(request.params, where, [1, token])
    found = admission.check(engine.scheduler, request)
    assert found is not None
    assert (found.status, found.param) == (400, where)
    assert found.message == f"{where} names token {token}, but the vocabulary is 0 to 31."


def test_n_is_bounded_by_the_rows(engine_model: Make) -> None:
    engine = engine_model(rows=4)
    assert refusal(engine, 4, n=4) is None
    found = refusal(engine, 4, n=5)
    assert found is not None
    assert found.message == "n must be at most 4 (--max-num-seqs), got 5."


def test_only_one_sample_resumes(engine_model: Make) -> None:
    found = refusal(engine_model(), 4, Resume([1]), n=2)
    assert found is not None
    assert found.message == "resume continues one sample; n must be 1."


def test_a_prompt_and_its_samples_must_fit_the_cache(engine_model: Make) -> None:
    engine = engine_model(num_blocks=(9,), max_model_len=32, rows=8)
    # 20 tokens and the next: 6 blocks, and one more for each further sample.
    assert refusal(engine, 20, n=3) is None
    found = refusal(engine, 20, n=4)
    assert found is not None
    assert "n = 4 needs 9 KV blocks, but the cache has 8; lower n" in found.message


def test_what_is_let_through_runs_alone(engine_model: Make) -> None:
    """At the very limit of the cache, for every length and n."""
    for length in range(1, 31):
        engine = engine_model(num_blocks=(9,), max_model_len=32, rows=8)
        n = max(n for n in range(1, 9) if refusal(engine, length, n=n) is None)
        engine.add([1] * length, n=n, max_tokens=2)
        engine.run()
        assert engine.counters.forks == n - 1


def test_a_window_groups_pool_need_not_hold_the_prompt(engine_model: Make) -> None:
    engine = engine_model(windows=(None, 6), num_blocks=(17, 7), budget=8, rows=2)
    assert refusal(engine, 60) is None


def test_the_queue_is_bounded(engine_model: Make) -> None:
    engine = engine_model(max_queued=2)
    for _ in range(2):
        engine.add([1], max_tokens=1)
    found = refusal(engine, 1)
    assert found is not None
    assert (found.status, found.retry_after) == (429, 1)
    assert "2 requests wait already (--max-queued-requests 2)" in found.message
    engine.end(0)
    assert refusal(engine, 1) is None, "what was aborted waits no more"


def test_a_beam_search_is_not_resumed(engine_model: Make) -> None:
    found = refusal(engine_model(), 4, Resume([1]), use_beam_search=True)
    assert found is not None
    assert (found.param, found.message) == (
        "resume",
        "A beam search cannot be resumed; leave resume out.",
    )


@pytest.mark.parametrize("token", [-1, 32, -(2**31), 2**31 - 1])
def test_nor_does_one_of_an_array(engine_model: Make, token: int) -> None:
    engine = engine_model(vocab_size=32)
    request = EngineRequest("r", 0, array("i", [0, 31]), SamplingParams())
    assert admission.check(engine.scheduler, request) is None
    request.prompt_token_ids = array("i", [1, token, 31])
    found = admission.check(engine.scheduler, request)
    assert found is not None
    assert (found.status, found.param) == (400, "prompt")
    assert str(token) in found.message
