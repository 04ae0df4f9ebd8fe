"""Prompt reports of several API processes, over the one gRPC port."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import grpc
import httpx
import pytest

from kvasir.cli.local.ports import free_ports
from kvasir.wire.proto.engine.v1 import engine_pb2, engine_pb2_grpc
from kvasir.wire.text_chain import chain_hashes, completion_pieces

PROMPTS = 12


@pytest.mark.slow
def test_prompts_of_every_api_process_are_reported(serve: Callable[..., Any]) -> None:
    (port,) = free_ports(1)
    served = serve(
        *("sim", "--device", "sim", "--model-config", "builtin://kvasir-tiny"),
        *("--api-processes", "2", "--grpc-port", str(port)),
    )
    heard: set[int] = set()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = engine_pb2_grpc.EngineStub(channel)
        watch = stub.WatchPrompts(engine_pb2.WatchPromptsRequest(), wait_for_ready=True)
        reader = threading.Thread(target=collect, args=(watch, heard), daemon=True)
        reader.start()
        # A watch reaches the second process a moment late: rounds go on until one is whole.
        assert any(round_is_heard(served, attempt, heard) for attempt in range(20))
        watch.cancel()
        reader.join()


def round_is_heard(served: Any, attempt: int, heard: set[int]) -> bool:
    """Whether all of a round of prompts, over connections of their own, is reported soon."""
    wanted: set[int] = set()
    for i in range(PROMPTS):
        body = {"model": "sim", "prompt": f"{attempt} {i} " + "word " * 300, "max_tokens": 1}
        with httpx.Client(base_url=served.url, timeout=60, verify=False) as client:
            assert client.post("/v1/completions", json=body).status_code == 200
        wanted |= set(chain_hashes(completion_pieces(body, str(body["prompt"]))))
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline:
        if wanted <= heard:
            return True
        time.sleep(0.01)
    return False


def collect(watch: Any, heard: set[int]) -> None:
    with contextlib.suppress(grpc.RpcError):
        for message in watch:
            for report in message.reports:
                heard.update(report.text_hashes)
