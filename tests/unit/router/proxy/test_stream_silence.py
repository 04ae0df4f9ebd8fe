"""What an engine may leave its client waiting for, and what its first part tells."""

import asyncio

import pytest

from kvasir_router.discovery.specs import ReplicaSpec
from kvasir_router.fleet.replica import Replica
from kvasir_router.proxy.attempts.stream_silence import StreamLimits, StreamSilence
from kvasir_router.proxy.failures.silence_limit import FIRST_BYTE, IDLE
from kvasir_router.wire.upstream import ResponseHead
from kvasir_router.wire.upstream_pool import ConnectionPool


@pytest.fixture
async def replica() -> Replica:
    pool = ConnectionPool("127.0.0.1", 1, connect_timeout=1, idle_timeout=1)
    return Replica(ReplicaSpec("r0", "127.0.0.1", 1), pool, 10, lambda: None)


def head(*, events: bool = True) -> ResponseHead:
    made = ResponseHead()
    made.status, made.content_type = 200, b"text/event-stream" if events else b"text/plain"
    return made


async def silence_of(replica: Replica, limits: StreamLimits, *parts: bytes) -> tuple[str, float]:
    """Return what is exceeded after these parts."""
    exceeded: asyncio.Future[tuple[str, float]] = asyncio.get_running_loop().create_future()
    silence = StreamSilence(replica, limits)
    silence.begin(100, lambda *what: exceeded.set_result(what))
    for part in parts:
        silence.heard(head(), part, last=False)
    return await asyncio.wait_for(exceeded, 30)


async def test_comments_are_silence(replica: Replica) -> None:
    limits = StreamLimits(0.05, 0.02)
    assert (await silence_of(replica, limits, b": ping\n\n"))[0] == FIRST_BYTE
    assert await silence_of(replica, limits, b"data: {}\n\n") == (IDLE, 0.02)


async def test_a_request_that_is_sent_again_has_the_whole_time(replica: Replica) -> None:
    told: list[str] = []
    silence = StreamSilence(replica, StreamLimits(0.02, 0.0))
    silence.begin(100, lambda reason, seconds: told.append("first"))
    silence.begin(100, lambda reason, seconds: told.append("second"))
    async with asyncio.timeout(30):
        while not told:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert told == ["second"]


async def test_nothing_is_exceeded_after_the_end(replica: Replica) -> None:
    told: list[str] = []
    silence = StreamSilence(replica, StreamLimits(0.02, 0.02))
    silence.heard(head(), b"data: 1\n\n", last=False)  # nothing was begun
    silence.begin(100, lambda reason, seconds: told.append(reason))
    silence.heard(head(events=False), b"x", last=True)
    await asyncio.sleep(0.1)
    assert told == []
