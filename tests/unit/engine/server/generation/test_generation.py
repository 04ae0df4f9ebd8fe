from __future__ import annotations

import asyncio
import threading

import pytest

from kvasir_engine.metric_registry import MetricRegistry
from kvasir_engine.request import EngineRequest, Resume
from kvasir_engine.sampling_params import SamplingParams
from kvasir_engine.server.generation.api_metrics import ApiMetrics
from kvasir_engine.server.generation.generation import (
    INLINE_TOKENS,
    Generation,
    GenerationInterruptedError,
    Interruption,
)
from kvasir_engine.server.generation.run import PromptRun
from kvasir_engine.text.output_assembler import OutputAssembler


@pytest.fixture
async def core(scripted_core):
    core = scripted_core()
    core.become_ready()
    return core


def generation(core, prompts: int = 1) -> Generation:
    runs = []
    for number in range(prompts):
        request = EngineRequest("r", 0, [1, 2], SamplingParams(max_tokens=50), eos_token_ids=[257])
        runs.append(PromptRun(request, OutputAssembler(request, core.tokenizer), None, number))
    return Generation(core, ApiMetrics(MetricRegistry("kvasir_", "tiny")), runs)


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
    made = Generation(core, ApiMetrics(MetricRegistry("kvasir_", "tiny")), [run])
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
