"""gRPC over the real core in its own process: with KV events, reports and HTTP beside it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import zmq

from kvasir.wire import kv_events
from kvasir.wire.block_hash import chain_hashes
from kvasir.wire.proto.engine.v1 import engine_pb2 as pb
from kvasir.wire.proto.engine.v1 import engine_pb2_grpc
from kvasir_engine.server.rpc.start_grpc import start_grpc

PROMPT = "a prompt of more than a few blocks, of which every one is announced "


@pytest.fixture
async def engine(tmp_path: Path, start_real: Any) -> AsyncIterator[Any]:
    """(stub of the service, KV events' subscriber)"""
    events = f"ipc://{tmp_path}/events"
    with zmq.Context() as context, context.socket(zmq.SUB) as subscriber:
        subscriber.subscribe(b"")
        subscriber.connect(events)
        async with start_real(num_blocks=200, kv_events_endpoint=events) as server:
            serving = await start_grpc(server.app.state.server, 0)
            channel = grpc.aio.insecure_channel(f"127.0.0.1:{serving.port}")
            yield engine_pb2_grpc.EngineStub(channel), subscriber
            await channel.close()
            await serving.stop(0)


async def generate(stub: Any, **fields: Any) -> tuple[list[int], pb.GenerateResponse]:
    """The output's ids and the last message."""
    ids: list[int] = []
    last = pb.GenerateResponse()
    async with asyncio.timeout(30):
        async for last in stub.Generate(pb.GenerateRequest(return_token_ids=True, **fields)):
            ids += [token for chunk in last.chunks for token in chunk.token_ids]
    return ids, last


@pytest.mark.slow
async def test_a_seeded_request_repeats_itself_resumed_at_any_token(engine: Any) -> None:
    stub, _ = engine
    sampling = pb.SamplingParams(max_tokens=30, seed=5, ignore_eos=True)
    whole, last = await generate(stub, text=PROMPT, sampling=sampling)
    assert len(whole) == last.usage.completion_tokens == 30
    for at in (0, 1, 17, 29):
        resume = pb.Resume(output_token_ids=whole[:at], seed=5)
        rest, end = await generate(stub, text=PROMPT, sampling=sampling, resume=resume)
        assert whole[:at] + rest == whole
        assert end.usage.completion_tokens == 30
        assert end.chunks[-1].finish_reason == "length"


@pytest.mark.parametrize(
    "fields",
    [
        {"text": "an <image>"},
        {"token_ids": pb.TokenIds(ids=[1, 258])},
        {"token_ids": pb.TokenIds(ids=[2**32 - 1])},
        {"text": "x", "resume": pb.Resume(output_token_ids=[258])},
        {"text": "x", "sampling": pb.SamplingParams(stop_token_ids=[258])},
        {"text": "x", "sampling": pb.SamplingParams(bad_words=["<image>"])},
    ],
)
async def test_a_token_that_the_model_lacks_is_refused(engine: Any, fields: Any) -> None:
    stub, _ = engine
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await generate(stub, **fields)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    details = refused.value.details()
    assert details is not None
    assert details.endswith(", but the vocabulary is 0 to 257.")
    ids, _ = await generate(stub, text=PROMPT, sampling=pb.SamplingParams(max_tokens=1))
    assert len(ids) == 1


@pytest.mark.slow
async def test_announced_blocks_hash_to_what_the_prompt_gives(engine: Any) -> None:
    stub, subscriber = engine
    tokens = list(PROMPT.encode())
    while not subscriber.poll(0):  # it hears nothing until its subscription has arrived
        tokens = [tokens[0] + 1, *tokens[1:]]
        prompt = pb.TokenIds(ids=tokens)
        await generate(stub, token_ids=prompt, sampling=pb.SamplingParams(max_tokens=1))
        subscriber.poll(500)
    _, _, payload = kv_events.parse_frames(subscriber.recv_multipart())
    [event] = kv_events.decode_batch(payload).events
    assert isinstance(event, kv_events.BlockStored)
    full = len(tokens) // 16
    assert event.token_ids == tokens[: 16 * full]
    assert (event.block_size, event.parent_block_hash) == (16, None)
    assert len(event.block_hashes) == full
    announced = b"".join(each for each in event.block_hashes if isinstance(each, bytes))
    assert announced == chain_hashes(tokens, 16)


async def test_a_second_prompt_finds_the_first_ones_blocks(engine: Any) -> None:
    stub, _ = engine
    sampling = pb.SamplingParams(max_tokens=2)
    _, first = await generate(stub, text=PROMPT, sampling=sampling)
    _, second = await generate(stub, text=PROMPT + "and on", sampling=sampling)
    assert first.usage.cached_tokens == 0
    assert second.usage.cached_tokens == 16 * (len(PROMPT) // 16)


@pytest.mark.slow
async def test_abort_frees_the_core(engine: Any) -> None:
    stub, _ = engine
    sampling = pb.SamplingParams(max_tokens=400, ignore_eos=True)
    watch = stub.WatchLoad(pb.WatchLoadRequest())
    call = stub.Generate(pb.GenerateRequest(text=PROMPT, sampling=sampling, request_id="r"))
    async with asyncio.timeout(30):
        await call.read()
        await stub.Abort(pb.AbortRequest(request_id="r"))
        while (response := await call.read()) is not grpc.aio.EOF:
            last = response
        load = await watch.read()
        while load.running or load.kv_usage:
            load = await watch.read()
    watch.cancel()
    assert last.HasField("usage")


async def test_a_large_message_is_answered_as_a_small_one_is(engine: Any) -> None:
    stub, _ = engine
    fields = {"text": "hello", "sampling": pb.SamplingParams(max_tokens=4, seed=5, stop=["never"])}
    small, _ = await generate(stub, **fields)
    message = pb.GenerateRequest(return_token_ids=True, **fields)
    # What no message has is skipped: field 1000, of 200,000 bytes.
    padding = b"\xc2\x3e" + b"\xc0\x9a\x0c" + bytes(200_000)
    padded = pb.GenerateRequest.FromString(message.SerializeToString() + padding)
    large: list[int] = []
    async with asyncio.timeout(60):
        async for answer in stub.Generate(padded):
            large += [token for chunk in answer.chunks for token in chunk.token_ids]
    assert large == small
    assert len(large) == 4


async def test_a_large_message_that_cannot_run_ends_with_its_status(engine: Any) -> None:
    stub, _ = engine
    ids = pb.TokenIds(ids=[1] * 200_000)
    for message in (
        pb.GenerateRequest(token_ids=ids),
        pb.GenerateRequest(token_ids=pb.TokenIds(ids=[258]), cache_salt="x" * 200_000),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async with asyncio.timeout(60):
                _ = [answer async for answer in stub.Generate(message)]
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    ids_out, _ = await generate(stub, text="hello", sampling=pb.SamplingParams(max_tokens=2))
    assert len(ids_out) <= 2
