"""gRPC beside the processes that a router starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, json
import uvloop
from kvasir_router.feeds import rpc
from kvasir_router.feeds.rpc import grpc

async def connect():
    while True:
        async with grpc.aio.insecure_channel("127.0.0.1:1") as channel:
            try:
                await channel.unary_unary("/a/b")(b"", timeout=0.2)
            except grpc.aio.AioRpcError:
                pass

async def start():
    return [
        await (await asyncio.create_subprocess_exec("true", start_new_session=True)).wait()
        for _ in range(100)
    ]

async def main():
    connecting = [asyncio.create_task(connect()) for _ in range(8)]
    ended = await asyncio.gather(*(start() for _ in range(4)))
    print(json.dumps(sum(ended, [])))
    for task in connecting:
        task.cancel()

uvloop.run(main())
"""


@pytest.mark.slow
def test_processes_start_while_grpc_connects() -> None:
    environment = {k: v for k, v in os.environ.items() if k != "GRPC_ENABLE_FORK_SUPPORT"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == [0] * 400
