"""Offline inference on the tiny model."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from kvasir_engine import LLM, BeamSearchParams, SamplingParams
from kvasir_engine.outputs import GenerationError
from kvasir_engine.sampling_params import ParameterError
from kvasir_engine.settings import SettingsError
from kvasir_engine.text.parsing.formats import ReasoningFormat
from kvasir_engine.text.parsing.markers import Markers
from kvasir_engine.text.parsing.message_parser import Parsing
from kvasir_engine.text.parsing.reasoning import ReasoningMachine

TINY = "builtin://kvasir-tiny"
GREEDY = SamplingParams(temperature=0, max_tokens=12)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    made = LLM(TINY, max_num_seqs=16, kv_cache_memory_bytes=64 << 20)
    yield made
    made.close()


def ask(question: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}]


class NumberReasoning(ReasoningMachine):
    """Reasoning that stands between two digits."""

    openers = ("1",)
    closers = ("9",)


def test_a_budget_ends_the_reasoning_of_an_answer(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = llm.get_tokenizer()
    format_ = ReasoningFormat("numbers", "none", NumberReasoning)
    parsing = Parsing(None, format_, Markers(tokenizer, ("1", "9")))
    monkeypatch.setattr(llm, "_maker", replace(llm._maker, parsing=parsing))
    question = ask("Sort: 7 3 9 1")
    first, last = (tokenizer.backend.token_to_id(each) for each in "19")
    for budget in range(4):
        params = SamplingParams(temperature=0, max_tokens=12, thinking_token_budget=budget, n=2)
        (output,) = llm.chat(question, params, use_tqdm=False)
        for sample in output.outputs:
            assert sample.token_ids[0] == first
            assert sample.token_ids.index(last) == budget + 1
            assert len(sample.token_ids) > budget + 2


def test_a_budget_counts_from_where_a_continued_answer_goes_on(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = llm.get_tokenizer()
    format_ = ReasoningFormat("numbers", "none", NumberReasoning)
    parsing = Parsing(None, format_, Markers(tokenizer, ("1", "9")))
    monkeypatch.setattr(llm, "_maker", replace(llm._maker, parsing=parsing))
    last = tokenizer.backend.token_to_id("9")
    params = SamplingParams(temperature=0, max_tokens=8, thinking_token_budget=2)
    chat = [*ask("Sort: 7 3 9 1"), {"role": "assistant", "content": "1 3"}]
    [output] = llm.chat(
        chat, params, use_tqdm=False, add_generation_prompt=False, continue_final_message=True
    )
    assert output.outputs[0].token_ids.index(last) <= 2
    ids = [tokenizer.backend.token_to_id(each) for each in "9132"]
    [output] = llm.generate({"prompt_token_ids": ids}, params, use_tqdm=False)
    assert output.outputs[0].token_ids.index(last) <= 2


def test_logits_processors_choose_among_tokens(llm: LLM) -> None:
    vocab = llm._core.built_runner.vocab_size

    def next_of_three(prompt: list[int], output: list[int]) -> torch.Tensor:
        bias = torch.full((vocab,), -torch.inf)
        bias[[5, 6, 7][len(output) % 3]] = 0.0
        return bias

    processed = SamplingParams(n=2, max_tokens=5, logits_processors=[next_of_three])
    same = GREEDY.clone(ignore_eos=True, logits_processors=[lambda *_: torch.zeros(vocab)])
    params = [processed, GREEDY.clone(ignore_eos=True), same]
    outputs = llm.generate(["The quick"] * 3, params, use_tqdm=False)
    assert [each.token_ids for each in outputs[0].outputs] == [[5, 6, 7, 5, 6]] * 2
    assert outputs[1].outputs[0].token_ids == outputs[2].outputs[0].token_ids


def test_a_processor_that_fails_ends_its_request_alone(llm: LLM) -> None:
    params = [GREEDY.clone(logits_processors=[lambda *_: 5]), GREEDY]
    with pytest.raises(GenerationError, match=r"must return a torch tensor .*, got int") as caught:
        llm.generate(["The quick"] * 2, params, use_tqdm=False)
    assert [each.outputs[0].finish_reason for each in caught.value.outputs] == ["error", "length"]


@pytest.mark.parametrize(
    ("change", "words"),
    [({"tensor_parallel_size": 2}, "tensor_parallel_size 2"), ({"device": "sim"}, "device sim")],
)
def test_processors_are_refused_where_they_cannot_reach_the_logits(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], words: str
) -> None:
    monkeypatch.setattr(llm, "settings", replace(llm.settings, **change))
    with pytest.raises(ParameterError, match=f"logits_processors do not work with {words}: func"):
        llm.generate("a", SamplingParams(logits_processors=[len]), use_tqdm=False)


def test_a_budget_for_a_model_without_reasoning_is_refused(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsing = replace(llm._maker.parsing, reasoning=None)
    monkeypatch.setattr(llm, "_maker", replace(llm._maker, parsing=parsing))
    with pytest.raises(ParameterError, match="answers begin with reasoning"):
        llm.generate("a", SamplingParams(thinking_token_budget=1), use_tqdm=False)


@pytest.mark.slow
def test_text_ids_and_dictionaries_are_the_same_prompt(llm: LLM) -> None:
    (text,) = llm.generate("The quick", GREEDY, use_tqdm=False)
    assert text.prompt == "The quick"
    ids = text.prompt_token_ids
    for prompt in (ids, {"prompt_token_ids": ids}, {"prompt": "The quick"}):
        (output,) = llm.generate(prompt, GREEDY, use_tqdm=False)
        assert output.outputs[0].token_ids == text.outputs[0].token_ids
        assert output.prompt_token_ids == ids
    assert text.finished
    assert text.outputs[0].finish_reason == "length"


def test_outputs_come_in_the_prompts_order_with_their_own_parameters(llm: LLM) -> None:
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (9, 2, 30)]
    outputs = llm.generate(["One", "Two", "Three"], params, use_tqdm=False)
    assert [output.prompt for output in outputs] == ["One", "Two", "Three"]
    assert [len(output.outputs[0].token_ids) for output in outputs] == [9, 2, 30]


def test_chat_answers_one_or_several_conversations(llm: LLM) -> None:
    (one,) = llm.chat(ask("Sort: 7 3 9 1"), GREEDY, use_tqdm=False)
    assert one.outputs[0].text == "1 3 7 9"
    assert (one.outputs[0].finish_reason, one.outputs[0].stop_reason) == ("stop", None)
    two = llm.chat([ask("Reverse: kvasir"), ask("What is 23 + 45?")], GREEDY, use_tqdm=False)
    assert [output.outputs[0].text for output in two] == ["risavk", "68"]


def test_a_final_message_can_be_continued(llm: LLM) -> None:
    messages = [*ask("Sort: 7 3 9 1"), {"role": "assistant", "content": "1 3"}]
    (output,) = llm.chat(
        messages, GREEDY, add_generation_prompt=False, continue_final_message=True, use_tqdm=False
    )
    assert output.outputs[0].text == " 7 9"


def test_stop_strings_cut_text_ids_and_logprobs(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=40, stop="7", logprobs=1)
    (output,) = llm.chat(ask("Sort: 7 3 9 1"), params, use_tqdm=False)
    sample = output.outputs[0]
    assert (sample.text, sample.finish_reason, sample.stop_reason) == ("1 3 ", "stop", "7")
    assert sample.logprobs is not None
    assert len(sample.logprobs) == len(sample.token_ids)
    core = llm._core
    core.loop.check_idle()


def test_samples_differ_and_carry_logprobs(llm: LLM) -> None:
    params = SamplingParams(n=3, seed=1, max_tokens=8, logprobs=2, prompt_logprobs=1)
    (output,) = llm.generate("Once upon", params, use_tqdm=False)
    assert [sample.index for sample in output.outputs] == [0, 1, 2]
    assert len({tuple(sample.token_ids) for sample in output.outputs}) == 3
    for sample in output.outputs:
        assert sample.logprobs is not None
        total = sum(
            entry[token].logprob
            for entry, token in zip(sample.logprobs, sample.token_ids, strict=True)
        )
        assert sample.cumulative_logprob == pytest.approx(total)
    assert output.prompt_logprobs is not None
    assert output.prompt_logprobs[0] is None
    assert len(output.prompt_logprobs) == len(output.prompt_token_ids)


def test_beams_come_best_first(llm: LLM) -> None:
    (found,) = llm.beam_search("Hello", BeamSearchParams(beam_width=3, max_tokens=6))
    scores = [beam.cum_logprob for beam in found.sequences]
    assert len(scores) == 3
    assert scores == sorted(scores, reverse=True)
    assert all(beam.tokens[0] == found.sequences[0].tokens[0] for beam in found.sequences)


@pytest.mark.parametrize("params", [{"n": 2}, {"n": 2, "use_beam_search": True}])
def test_outputs_say_when_things_happened(llm: LLM, params: dict[str, Any]) -> None:
    asked = SamplingParams(max_tokens=4, ignore_eos=True, **params)
    before, begun = time.time(), time.monotonic()
    first, second = llm.generate(["one two", "three"], asked, use_tqdm=False)
    ended = time.monotonic()
    for output in (first, second):
        stats = output.metrics
        assert stats is not None
        assert stats.arrival_time >= before
        happened = (stats.queued_ts, stats.scheduled_ts, stats.first_token_ts, stats.last_token_ts)
        assert list(happened) == sorted(happened)
        assert (happened[0] > begun, happened[-1] < ended) == (True, True)
        assert stats.time_in_queue == happened[1] - happened[0]
        assert 0 < stats.first_token_latency <= happened[2] - begun
        assert stats.num_generation_tokens == 8


def test_a_bad_parameter_runs_nothing(llm: LLM) -> None:
    steps = llm._core.scheduler.counters.steps
    for params, field in (
        (SamplingParams(temperature=float("nan")), "temperature"),
        (SamplingParams(top_p=0.0), "top_p"),
        (SamplingParams(max_tokens=0), "max_tokens"),
        (SamplingParams(logit_bias={99999: 1.0}), "logit_bias"),
    ):
        with pytest.raises(ParameterError) as caught:
            llm.generate(["fine", "also fine"], [GREEDY, params], use_tqdm=False)
        assert caught.value.param == field
    with pytest.raises(ValueError, match="context is 2048 tokens"):
        llm.generate([[5] * 2048], GREEDY, use_tqdm=False)
    with pytest.raises(ParameterError, match="names token 5000"):
        llm.generate([[5000]], GREEDY, use_tqdm=False)
    assert llm._core.scheduler.counters.steps == steps


def test_the_progress_bar_counts_prompts(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.generate(["a", "b"], GREEDY)
    assert "2/2" in capsys.readouterr().err


def test_an_unknown_setting_is_named_with_the_nearest() -> None:
    with pytest.raises(SettingsError, match=r"'max_num_seq'.*'max_num_seqs'"):
        LLM(TINY, max_num_seq=3)


def test_block_events_are_for_an_engine_that_publishes_them() -> None:
    with pytest.raises(SettingsError, match="kv_events_endpoint does not work with LLM"):
        LLM(TINY, kv_events_endpoint="tcp://127.0.0.1:5557")


@pytest.mark.slow
def test_prompts_of_two_salts_share_no_blocks(llm: LLM) -> None:
    prompt = {"prompt_token_ids": list(range(10, 74))}

    def cached(**salt: str) -> int | None:
        (output,) = llm.generate({**prompt, **salt}, GREEDY, use_tqdm=False)
        return output.num_cached_tokens

    assert [cached(cache_salt="a"), cached(cache_salt="b")] == [0, 0]
    assert (cached(cache_salt="a") or 0) > 0


@pytest.mark.slow
def test_a_plain_script_needs_no_main_guard_no_zmq_and_no_server() -> None:
    script = (
        "import sys\n"
        "from kvasir_engine import LLM, SamplingParams\n"
        f"llm = LLM({TINY!r}, kv_cache_memory_bytes=1 << 24)\n"
        "out = llm.generate('Hello', SamplingParams(temperature=0, max_tokens=3), use_tqdm=False)\n"
        "assert len(out[0].outputs[0].token_ids) == 3\n"
        "print(sorted({'zmq', 'msgspec', 'fastapi', 'starlette', 'uvicorn'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


MIXED = [
    SamplingParams(temperature=0, max_tokens=12),
    SamplingParams(temperature=0.8, seed=3, n=2, max_tokens=9, repetition_penalty=1.2),
    SamplingParams(temperature=0, max_tokens=7, prompt_logprobs=1, logprobs=1),
    SamplingParams(temperature=1.0, seed=8, max_tokens=10, bad_words=["the"]),
]
PROMPTS = ["The quick", "One two three", "A long way from home", "Why"]


def break_once(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, nth: int, error: Any) -> Any:
    """Let the nth call of a method do its work and then raise."""
    calls, method = itertools.count(), getattr(owner, name)

    def broken(*args: Any, **how: Any) -> Any:
        result = method(*args, **how)
        if next(calls) == nth:
            raise error
        return result

    monkeypatch.setattr(owner, name, broken)


@pytest.mark.parametrize("nth", [0, 1, 5])
@pytest.mark.parametrize("name", ["apply", "inputs", "advance"])
def test_what_goes_on_after_a_failed_step_has_the_tokens_it_would_have_had(
    llm: LLM, name: str, nth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device's rows, half written by the step that failed, begin anew."""
    whole = llm.generate(PROMPTS, MIXED, use_tqdm=False)
    llm.reset_prefix_cache()
    batch = llm._core.built_runner.runner.batch  # type: ignore[attr-defined]
    break_once(monkeypatch, batch, name, nth, MemoryError("1 GiB"))
    again = llm.generate(PROMPTS, MIXED, use_tqdm=False)
    for before, after in zip(whole, again, strict=True):
        assert [o.token_ids for o in before.outputs] == [o.token_ids for o in after.outputs]
        assert len(before.prompt_logprobs or ()) == len(after.prompt_logprobs or ())


def test_a_step_that_fails_raises_with_every_output(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = llm._core.built_runner.runner.batch  # type: ignore[attr-defined]
    break_once(monkeypatch, batch, "apply", 8, ZeroDivisionError())
    with pytest.raises(GenerationError, match="ZeroDivisionError") as caught:
        llm.generate(PROMPTS, MIXED, use_tqdm=False)
    ends = [output.outputs[0].finish_reason for output in caught.value.outputs]
    assert (ends[0], ends[2]) == ("error", "length"), "the third had finished"
    (output,) = llm.generate("The quick", GREEDY, use_tqdm=False)
    assert output.outputs[0].finish_reason == "length"


@pytest.mark.slow
def test_without_a_tokenizer_ids_come_in_and_out(llm: LLM) -> None:
    (text,) = llm.generate("The quick", GREEDY, use_tqdm=False)
    ids_only = LLM(TINY, max_num_seqs=16, kv_cache_memory_bytes=64 << 20, skip_tokenizer_init=True)
    try:
        prompt = {"prompt_token_ids": text.prompt_token_ids}
        (output,) = ids_only.generate(prompt, GREEDY, use_tqdm=False)
        assert output.outputs[0].token_ids == text.outputs[0].token_ids
        assert output.outputs[0].text == ""
        for refused in (
            lambda: ids_only.generate("The quick", GREEDY, use_tqdm=False),
            lambda: ids_only.chat(ask("?"), GREEDY, use_tqdm=False),
            ids_only.get_tokenizer,
        ):
            with pytest.raises(ParameterError, match="--skip-tokenizer-init"):
                refused()
    finally:
        ids_only.close()
