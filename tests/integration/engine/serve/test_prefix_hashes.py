"""Prefix hashes of whole engines, as a router hears them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
import zmq

from kvasir.cli.local.ports import free_ports
from kvasir.wire.block_hash import chain_hashes, prefix_seed, root_hash
from kvasir.wire.fleet_secret import FLEET_SECRET_HEADER, secure_client
from kvasir.wire.kv_events import BlockStored, decode_batch
from kvasir.wire.proto.engine.v1 import engine_pb2 as pb
from kvasir.wire.proto.engine.v1 import engine_pb2_grpc

PROMPT = list(range(10, 60))


@pytest.mark.slow
def test_replicas_of_a_fleet_hash_alike_and_others_do_not(
    serve: Callable[..., Any], tmp_path: Path
) -> None:
    one, same, replaced, other_secret, other_model = (
        announced(serve, tmp_path, model, secret)
        for model, secret in (
            ("a", "s"),
            ("a", "s"),
            ("a", "t\nhash-key:s"),
            ("a", "t"),
            ("b", "s"),
        )
    )
    assert one == same == replaced
    assert not set(one) & {*other_secret, *other_model}
    seed = prefix_seed(fleet_secret="s", model="a", revision=None)
    assert b"".join(one) == chain_hashes(PROMPT, 16, root=root_hash(seed))


def announced(serve: Callable[..., Any], tmp_path: Path, model: str, secret: str) -> list[bytes]:
    """The hashes of PROMPT's blocks, as the engine's events tell those who have its secret."""
    grpc_port, events, replay = free_ports(3)
    file = tmp_path / "secret"
    file.write_text(secret)
    secret = secret.partition("\n")[0]
    served = serve(
        *(model, "--device", "sim", "--model-config", "builtin://kvasir-tiny"),
        *("--fleet-secret-file", str(file), "--grpc-port", str(grpc_port)),
        *("--kv-events-endpoint", f"tcp://127.0.0.1:{events}"),
        *("--kv-events-replay-endpoint", f"tcp://127.0.0.1:{replay}"),
    )
    with grpc.insecure_channel(f"127.0.0.1:{grpc_port}") as channel:
        asked = pb.GenerateRequest(
            token_ids=pb.TokenIds(ids=PROMPT), sampling=pb.SamplingParams(max_tokens=1)
        )
        stub = engine_pb2_grpc.EngineStub(channel)
        list(stub.Generate(asked, metadata=[(FLEET_SECRET_HEADER, secret)]))
    [event] = replayed(f"tcp://127.0.0.1:{replay}", secret)
    assert served.stop() == 0
    return event.block_hashes


def replayed(address: str, secret: str) -> list[BlockStored]:
    """What the engine's cache has been told to hold, once it is something."""
    stored: list[BlockStored] = []
    context = zmq.Context()
    try:
        socket = context.socket(zmq.DEALER)
        socket.rcvtimeo = 60_000
        secure_client(socket, secret)
        socket.connect(address)
        while not stored:
            socket.send_multipart([b"", (0).to_bytes(8, "big")])
            while (message := socket.recv_multipart())[2] != b"\xff" * 8:
                events = decode_batch(message[3]).events
                stored += [event for event in events if isinstance(event, BlockStored)]
    finally:
        context.destroy(linger=0)
    return stored
