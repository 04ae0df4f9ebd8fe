"""The gRPC service over a real channel; only the core is scripted."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from kvasir.wire.block_hash import chain_hashes, root_hash
from kvasir.wire.proto.engine.v1 import engine_pb2 as pb
from kvasir_engine.core.client import (
    EngineDeadError,
    LoadSnapshot,
    RequestRejectedError,
)
from kvasir_engine.request import FinishReason
from kvasir_engine.server.gpu_faults.fault_page import FaultPage
from kvasir_engine.server.reports import report_backlog
from kvasir_engine.text.no_tokenizer import NoTokenizer

TEXT = {"text": "hello world"}


async def test_a_text_prompt_is_tokenised_hashed_and_streamed(start_rig: Any) -> None:
    rig = await start_rig()
    call, stream = await rig.generate(
        text="hello world a b", cache_salt="s", priority=3, request_id="r", return_token_ids=True
    )
    request = stream.request
    prompt = rig.tokenizer.encode("hello world a b")
    assert len(prompt) == rig.block_size
    assert list(request.prompt_token_ids) == prompt
    assert request.block_hashes == chain_hashes(
        prompt, rig.block_size, root=root_hash(cache_salt="s")
    )
    assert (request.request_id, request.cache_salt, request.priority) == ("r", "s", 3)
    assert request.params.max_tokens == rig.max_model_len - len(prompt)
    stream.send(rig.hello, seed=-5, num_cached_tokens=2)
    stream.send(rig.world)
    stream.send(rig.eos, finish_reason=FinishReason.STOP)
    responses = [response async for response in call]
    chunks = [chunk for response in responses for chunk in response.chunks]
    assert "".join(chunk.text for chunk in chunks) == "hello world"
    assert [t for chunk in chunks for t in chunk.token_ids] == [rig.hello, rig.world, rig.eos]
    assert [chunk.seed for chunk in chunks if chunk.HasField("seed")] == [-5]
    assert chunks[-1].finish_reason == "stop"
    assert chunks[-1].WhichOneof("stop_reason") is None
    usage = responses[-1].usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (
        rig.block_size,
        3,
        2,
    )
    assert not any(response.HasField("usage") for response in responses[:-1])


@pytest.mark.parametrize(
    ("refusal", "status"),
    [
        (RequestRejectedError("full", status=429, retry_after=7), "RESOURCE_EXHAUSTED"),
        (RequestRejectedError("draining", status=503), "UNAVAILABLE"),
        (RequestRejectedError("too long", status=400), "INVALID_ARGUMENT"),
        (EngineDeadError("killed"), "UNAVAILABLE"),
    ],
)
async def test_the_cores_refusal_has_its_status(
    start_rig: Any, refusal: Exception, status: str
) -> None:
    rig = await start_rig()
    rig.core.refusal = refusal
    error = await rig.failure(rig.stub.Generate(pb.GenerateRequest(**TEXT)))
    assert error.code() is grpc.StatusCode[status]
    assert str(refusal) in str(error.details())
    retry_after = dict(error.trailing_metadata()).get("retry-after")
    assert retry_after == (None if status != "RESOURCE_EXHAUSTED" else "7")


async def test_headers_mean_admission(start_rig: Any) -> None:
    rig = await start_rig()
    call, _ = await rig.generate(**TEXT)
    async with asyncio.timeout(10):
        await call.initial_metadata()
    call.cancel()


async def test_a_cancelled_call_leaves_the_core(start_rig: Any, until: Any) -> None:
    rig = await start_rig()
    call, stream = await rig.generate(request_id="gone", **TEXT)
    stream.send(rig.hello)
    await call.read()
    call.cancel()
    await until(lambda: rig.core.closed == ["gone"])
    again, _ = await rig.generate(request_id="gone", **TEXT)
    again.cancel()


async def test_a_running_request_id_is_not_taken_twice(start_rig: Any) -> None:
    rig = await start_rig()
    call, _ = await rig.generate(request_id="r", **TEXT)
    error = await rig.failure(rig.stub.Generate(pb.GenerateRequest(request_id="r", **TEXT)))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (await rig.stub.Abort(pb.AbortRequest(request_id="r"))).found
    assert (await rig.collect(call))[1] == {0: "abort"}


async def test_a_core_that_dies_or_fails_ends_the_call(start_rig: Any) -> None:
    rig = await start_rig()
    call, stream = await rig.generate(**TEXT)
    stream.send(rig.hello)
    stream.queue.put_nowait(EngineDeadError("killed by signal 9"))
    error = await rig.failure(call)
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert "signal 9" in str(error.details())
    call, stream = await rig.generate(**TEXT)
    stream.send(finish_reason=FinishReason.ERROR, error="The mask could not be built.")
    error = await rig.failure(call)
    assert error.code() is grpc.StatusCode.INTERNAL
    assert "mask" in str(error.details())


async def test_the_drain_deadline_hands_calls_over(start_rig: Any) -> None:
    rig = await start_rig()
    call, stream = await rig.generate(request_id="r", **TEXT)
    stream.send(rig.hello)
    await anext(aiter(call))
    await rig.lifecycle.drain(0.05)
    error = await rig.failure(call)
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert "resume" in str(error.details())
    assert rig.core.closed == ["r"]


async def test_load_is_pushed_on_change_and_as_a_heartbeat(start_rig: Any) -> None:
    rig = await start_rig()
    call = rig.stub.WatchLoad(pb.WatchLoadRequest())
    first = await call.read()
    assert (first.running, first.ready, first.draining) == (0, True, False)
    assert (await call.read()).running == 0  # nothing changed: a heartbeat
    rig.core.snapshot = LoadSnapshot(3, 2, 5000, 0.25, 1.5)
    load = await call.read()
    while load.running == 0:
        load = await call.read()
    assert (load.running, load.waiting, load.inflight_tokens) == (3, 2, 5000)
    assert (load.kv_usage, load.step_age_seconds) == (0.25, 1.5)
    await rig.lifecycle.drain(1)
    load = await call.read()
    while not load.draining:
        load = await call.read()
    assert not load.ready
    call.cancel()


async def test_a_gpu_that_has_failed_is_told_with_the_load(start_rig: Any, tmp_path: Path) -> None:
    rig = await start_rig()
    rig.lifecycle.fault = page = FaultPage(tmp_path / "page", create=True)
    call = rig.stub.WatchLoad(pb.WatchLoadRequest())
    assert not (await call.read()).leaving
    page.write("GPU g: Xid 79")
    load = await call.read()
    while not load.leaving:
        load = await call.read()
    assert (load.ready, load.draining) == (False, False)
    call.cancel()


async def test_many_changes_are_one_message_a_tick(start_rig: Any) -> None:
    rig = await start_rig()
    call = rig.stub.WatchLoad(pb.WatchLoadRequest())
    await call.read()
    for running in range(1, 101):
        rig.core.snapshot = LoadSnapshot(running, 0, 0, 0.0, 0.0)
        await asyncio.sleep(0)
    seen = [(await call.read()).running]
    while seen[-1] != 100:
        seen.append((await call.read()).running)
    assert len(seen) < 20
    call.cancel()


async def test_prompt_reports_are_streamed_to_watchers(
    start_rig: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_backlog, "KEPT_SECONDS", 0.0)
    rig = await start_rig()
    prompt = "hello world a b" * 200
    ids = rig.tokenizer.encode(prompt)
    hashes = chain_hashes(ids, rig.block_size)
    call = rig.stub.WatchPrompts(pb.WatchPromptsRequest())
    async with asyncio.timeout(10):
        await call.initial_metadata()
        rig.reporter.completion({}, prompt, ids, hashes, add_special_tokens=True)
        message = await call.read()
    [report] = message.reports
    assert len(report.text_hashes) == len(report.kv_blocks) == len(report.kv_hashes) // 16 > 3
    last = report.kv_blocks[-1]
    assert report.kv_hashes[-16:] == hashes[16 * (last - 1) : 16 * last]
    call.cancel()
    await until(lambda: not rig.reporter.watched)


async def test_without_a_tokenizer_ids_come_in_and_out(start_rig: Any) -> None:
    rig = await start_rig(tokenizer=NoTokenizer())
    refused = await rig.failure(rig.stub.Generate(pb.GenerateRequest(text="hello")))
    assert refused.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "--skip-tokenizer-init" in (refused.details() or "")
    call, stream = await rig.generate(token_ids=pb.TokenIds(ids=[1, 2]))
    stream.send(7, finish_reason="stop")
    answers = [answer async for answer in call]
    assert [list(chunk.token_ids) for each in answers for chunk in each.chunks] == [[7]]
