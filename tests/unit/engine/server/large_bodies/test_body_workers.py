"""Workers over real processes: time, memory, the order of bodies, the end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.engine_server import write_model

from kvasir_engine.messages import CoreInfo
from kvasir_engine.server.large_bodies.body_workers import (
    HUGE_BODY_BYTES,
    NUM_WORKERS,
    BodyWorkers,
)
from kvasir_engine.server.large_bodies.shared_body import SharedBody
from kvasir_engine.server.large_bodies.worker_messages import (
    MAX_PACKET_BYTES,
    BodyRefusal,
    Document,
    Job,
    Setup,
)
from kvasir_engine.server.server_settings import ServerSettings

MAX_BODY = 64 * 2**20
StartWorkers = Callable[..., BodyWorkers]


@pytest.fixture
async def start_workers(tmp_path: Path) -> AsyncIterator[StartWorkers]:
    """start_workers(memory_bytes, chat_template): workers for the byte tokenizer's model."""
    settings = ServerSettings(model="tiny", model_dir=write_model(tmp_path / "model"))
    made: list[BodyWorkers] = []

    def start(*, memory_bytes: int = 2**30, chat_template: str | None = None) -> BodyWorkers:
        info = CoreInfo(2**26, 16, 258, [64], {})
        setup = Setup(replace(settings, chat_template=chat_template), info, memory_bytes)
        made.append(BodyWorkers(lambda: setup, MAX_BODY))
        return made[-1]

    yield start
    for each in made:
        await each.close()


def reading(workers: BodyWorkers, content: bytes) -> Awaitable[Any]:
    body = SharedBody(workers.budget)
    body.append(content)
    return workers.read(Job("tokenize", "r"), body)


def tokenize(text: str) -> bytes:
    return json.dumps({"prompt": text}).encode()


async def test_a_body_is_read_and_freed(start_workers: StartWorkers) -> None:
    workers = start_workers()
    result = await reading(workers, tokenize("hi"))
    assert json.loads(result.json)["count"] == 2
    assert workers.budget.held == 0


async def test_one_that_takes_too_long_is_refused_and_the_next_is_read(
    start_workers: StartWorkers,
) -> None:
    workers = start_workers()
    assert isinstance(await reading(workers, tokenize("hi")), Document)
    [worker] = workers.idle
    os.kill(worker.pid, signal.SIGSTOP)
    # For this body alone: the next one's worker has to start within its time
    usual, workers._max_seconds = workers._max_seconds, 0.5
    slow = await reading(workers, tokenize("hi"))
    workers._max_seconds = usual
    assert (slow.status, slow.code) == (400, "body_too_complex")
    assert "more than 0.5 s" in slow.message
    assert isinstance(await reading(workers, tokenize("hi")), Document)


@pytest.mark.parametrize(
    "content",
    [
        b'{"messages": [' + b"{}," * 4_000_000 + b"{}]}",  # Python's own objects
        tokenize("a" * 2_000_000),  # a library that ends its process
    ],
)
async def test_one_that_takes_too_much_memory_is_refused(
    start_workers: StartWorkers, content: bytes
) -> None:
    workers = start_workers(memory_bytes=100 * 2**20)
    refusal = await reading(workers, content)
    assert isinstance(refusal, BodyRefusal)
    assert (refusal.status, refusal.code) == (400, "body_too_complex")
    assert "too much memory" in refusal.message
    assert isinstance(await reading(workers, tokenize("hi")), Document)


async def test_huge_bodies_leave_a_worker_for_others(start_workers: StartWorkers) -> None:
    workers = start_workers()
    huge = tokenize("hi").ljust(HUGE_BODY_BYTES + 1)
    first, second = (asyncio.ensure_future(reading(workers, huge)) for _ in range(2))
    small = asyncio.ensure_future(reading(workers, tokenize("hi")))
    done, _ = await asyncio.wait({second, small}, return_when=asyncio.FIRST_COMPLETED)
    assert done == {small} or first.done()
    await asyncio.gather(first, second, small)


async def test_a_body_that_nobody_waits_for_any_more_is_freed_before_its_turn(
    start_workers: StartWorkers,
) -> None:
    workers = start_workers()
    running = [asyncio.ensure_future(reading(workers, tokenize("hi"))) for _ in range(NUM_WORKERS)]
    await asyncio.sleep(0)
    held = workers.budget.held
    left = asyncio.ensure_future(reading(workers, tokenize("a" * 1000)))
    await asyncio.sleep(0)
    assert workers.budget.held > held
    left.cancel()
    await asyncio.wait([left])
    assert workers.budget.held == held
    for each in await asyncio.gather(*running):
        assert isinstance(each, Document)


async def test_a_template_longer_than_a_packet_reaches_the_worker(
    start_workers: StartWorkers,
) -> None:
    template = "{{ messages[0].content }}{# " + "x" * MAX_PACKET_BYTES + " #}"
    workers = start_workers(chat_template=template)
    body = SharedBody(workers.budget)
    body.append(json.dumps({"messages": [{"role": "user", "content": "hi"}]}).encode())
    result = await workers.read(Job("tokenize", "r"), body)
    assert isinstance(result, Document)
    assert json.loads(result.json)["count"] == 2


async def test_the_end_answers_what_waits(start_workers: StartWorkers) -> None:
    workers = start_workers()
    waiting = [asyncio.ensure_future(reading(workers, tokenize("hi"))) for _ in range(5)]
    await asyncio.sleep(0)
    await workers.close()
    for each in await asyncio.gather(*waiting):
        assert isinstance(each, BodyRefusal)
        assert each.status == 503
    assert workers.budget.held == 0


async def test_a_worker_that_cannot_start_is_a_refusal() -> None:
    def setup() -> Setup:
        raise OSError("no processes are left")

    workers = BodyWorkers(setup, MAX_BODY)
    refusal = await reading(workers, tokenize("hi"))
    assert (refusal.status, refusal.code) == (503, "body_not_read")
