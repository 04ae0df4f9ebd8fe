"""A prompt that came over HTTP is reported over gRPC, under the chain a router computes."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import msgspec
import pytest

from kvasir.wire.block_hash import HASH_BYTES, chain_hashes
from kvasir.wire.proto.engine.v1 import engine_pb2 as pb
from kvasir.wire.proto.engine.v1 import engine_pb2_grpc
from kvasir.wire.text_chain import chain_hashes as text_hashes
from kvasir.wire.text_chain import chat_pieces, completion_pieces
from kvasir_engine.server.rpc.start_grpc import start_grpc

# More than one text block, less than the context of a server with one token a byte
LONG = ("a system prompt that many share, word by word, line by line. " * 9)[:470]
CHAT = {"messages": [{"role": "system", "content": LONG}, {"content": "hi", "role": "user"}]}
BODIES = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"prompt": LONG + " and some more here, too."},
}


@pytest.mark.parametrize("path", BODIES)
async def test_http_prompts_are_reported(server: Any, path: str) -> None:
    serving = await start_grpc(server.app.state.server, 0)
    body = {**BODIES[path], "max_tokens": 2}
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{serving.port}")
    try:
        async with asyncio.timeout(20):
            call = engine_pb2_grpc.EngineStub(channel).WatchPrompts(pb.WatchPromptsRequest())
            await call.initial_metadata()
            assert (await server.post(path, body)).status_code == 200
            [report] = (await call.read()).reports
    finally:
        await channel.close()
        await serving.stop(0)

    raw = msgspec.json.decode(msgspec.json.encode(body))
    pieces = chat_pieces(raw) if "messages" in raw else completion_pieces(raw, raw["prompt"])
    assert list(report.text_hashes) == list(text_hashes(pieces))
    [request] = server.core.requests
    block_size = (await server.core.wait_ready()).block_size
    hashes = chain_hashes(request.prompt_token_ids, block_size)
    last = report.kv_blocks[-1]
    assert last > 0.5 * len(hashes) / HASH_BYTES
    assert report.kv_hashes[-HASH_BYTES:] == hashes[(last - 1) * HASH_BYTES : last * HASH_BYTES]
