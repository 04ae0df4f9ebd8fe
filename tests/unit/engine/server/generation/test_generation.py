from __future__ import annotations

import asyncio
import threading
from collections import Counter

import pytest
from support.loop_clock import LoopClock

from kvasir_engine.metric_registry import MetricRegistry
from kvasir_engine.request import EngineRequest, FinishReason, Resume
from kvasir_engine.sampling_params import SamplingParams
from kvasir_engine.server.generation.api_metrics import ApiMetrics
from kvasir_engine.server.generation.delta_portions import PORTION_VALUES
from kvasir_engine.server.generation.generation import (
    INLINE_TOKENS,
    Generation,
    GenerationInterruptedError,
    Interruption,
)
from kvasir_engine.server.generation.run import PromptRun
from kvasir_engine.server.loop_turns import LoopTurns
from kvasir_engine.text.output_assembler import OutputAssembler
from kvasir_engine.text.sample_state import SampleState


@pytest.fixture
async def core(scripted_core):
    core = scripted_core()
    core.become_ready()
    return core


def generation(core, prompts: int = 1, **params) -> Generation:
    runs = []
    for number in range(prompts):
        sampling = SamplingParams(**{"max_tokens": 50, **params})
        request = EngineRequest("r", 0, [1, 2], sampling, eos_token_ids=[257])
        runs.append(PromptRun(request, OutputAssembler(request, core.tokenizer), None, number))
    return of_runs(core, runs)


def of_runs(core, runs) -> Generation:
    return Generation(core, ApiMetrics(MetricRegistry("kvasir_", "tiny")), runs, LoopTurns(0.0))


async def test_an_interruption_before_admission_admits_nothing(core):
    made = generation(core)
    made.hand_over()
    with pytest.raises(GenerationInterruptedError):
        await made.admit()
    assert core.requests == []
    await asyncio.sleep(0)  # no cancellation is left behind on this task


@pytest.mark.parametrize("prompts", [1, 2])
async def test_an_interruption_between_two_events_is_seen_before_the_next(core, prompts):
    made = generation(core, prompts)
    await made.admit()
    seen = 0

    async def read() -> None:
        nonlocal seen
        async for updates in made.updates():
            seen += len(updates)
            made.hand_over()

    with pytest.raises(GenerationInterruptedError) as caught:
        await read()
    assert caught.value.reason is Interruption.HANDOVER
    assert seen == sum(run.assembler.num_output_tokens for run in made.runs) == 1
    await made.close()
    assert [still_ran for _, still_ran in core.closed] == [True] * prompts


@pytest.mark.parametrize("prompts", [1, 2])
async def test_an_interruption_ends_a_silent_wait(core, prompts):
    core.paused.clear()
    made = generation(core, prompts)
    await made.admit()
    asyncio.get_running_loop().call_later(0.01, made.interrupt, Interruption.DISCONNECT)
    with pytest.raises(GenerationInterruptedError):
        async for _ in made.updates():
            pass
    await made.close()
    assert len(core.closed) == prompts


async def test_samples_that_are_broken_off_are_counted_as_aborted(core):
    made = generation(core, prompts=2)
    await made.admit()
    await made.close()
    await made.close()
    metrics = made.metrics.registry.exposition().decode()
    counts = [line for line in metrics.splitlines() if "request_success_total{" in line]
    assert [x.rpartition(" ")[2] for x in counts if 'finished_reason="abort"' in x] == ["2.0"]


async def test_a_cancellation_from_outside_stays_one(core):
    core.paused.clear()
    made = generation(core)

    async def read() -> None:
        await made.admit()
        async for _ in made.updates():
            pass

    task = asyncio.create_task(read())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_deltas_that_arrive_together_are_one_update(core):
    core.tokens_a_batch = 5
    made = generation(core)
    await made.admit()
    updates = made.updates()
    first = await anext(updates)
    assert [update.text for update in first] == ["The q"]
    assert len(first[0].token_ids) == 5
    await updates.aclose()
    await made.close()


async def test_a_long_resumed_output_is_replayed_beside_the_loop(core, monkeypatch):
    ids = core.tokenizer.encode("ab" * INLINE_TOKENS)
    request = EngineRequest(
        "r", 0, [1], SamplingParams(max_tokens=len(ids)), [257], resume=Resume(ids, 1)
    )
    run = PromptRun(request, OutputAssembler(request, core.tokenizer), None, 3)
    made = of_runs(core, [run])
    threads = []
    replay = OutputAssembler.resume

    def resume(self, sent_chars):
        threads.append(threading.current_thread())
        return replay(self, sent_chars)

    monkeypatch.setattr(OutputAssembler, "resume", resume)
    await made.admit()
    assert threads != [threading.main_thread()]
    assert run.resumed.text == "ab" * INLINE_TOKENS
    assert run.resumed.index == 3
    assert core.requests == []  # its output is whole already
    await made.close()


def noted_work(monkeypatch) -> Counter[int]:
    """Return a count of the tokens and log-probabilities that samples take in each turn."""
    clock, taken, push = LoopClock(), Counter(), SampleState.push

    def noted(self, delta):
        taken[clock.turn] += len(delta.token_ids)
        taken[clock.turn] += sum(1 + len(entry.top_ids) for entry in delta.logprobs or ())
        return push(self, delta)

    monkeypatch.setattr(SampleState, "push", noted)
    return taken


@pytest.mark.parametrize("prompts", [1, 2])
@pytest.mark.parametrize("logprobs", [None, 2])
async def test_what_waited_for_a_slow_reader_is_taken_in_turns(
    core, monkeypatch, prompts, logprobs
):
    core.tokens_a_batch = 1000
    made = generation(
        core, prompts, n=2, max_tokens=1000, ignore_eos=True, min_tokens=1000, logprobs=logprobs
    )
    taken = noted_work(monkeypatch)
    await made.admit()
    texts, ids, entries = Counter(), Counter(), Counter()
    async for updates in made.updates():
        for update in updates:
            texts[update.index] += len(update.text)
            ids[update.index] += len(update.token_ids)
            entries[update.index] += len(update.logprobs or ())
    samples = [sample for run in made.runs for sample in run.assembler.samples]
    assert sum(texts.values()) == sum(len(sample.text) for sample in samples)
    assert sum(ids.values()) == 2000 * prompts
    assert sum(entries.values()) == (0 if logprobs is None else 2000 * prompts)
    # A turn that has had none goes on with one portion before it looks at the time.
    assert max(taken.values()) <= 2 * PORTION_VALUES
    await made.close()


async def test_an_interruption_is_seen_between_two_portions(core):
    core.tokens_a_batch = 1000
    made = generation(core, max_tokens=1000, ignore_eos=True)
    await made.admit()
    seen = []

    async def read() -> None:
        async for [update] in made.updates():
            seen.extend(update.token_ids)
            made.hand_over()

    with pytest.raises(GenerationInterruptedError):
        await read()
    [sample] = made.runs[0].assembler.samples
    assert seen == sample.token_ids
    assert len(seen) == PORTION_VALUES
    await made.close()


async def test_nothing_comes_behind_a_stop_string(core):
    core.tokens_a_batch = 1000
    made = generation(core, max_tokens=1000, ignore_eos=True, stop=["<stop>"])
    await made.admit()
    updates = [update async for [update] in made.updates()]
    assert [update.finish_reason for update in updates] == [FinishReason.STOP]
    await made.close()
