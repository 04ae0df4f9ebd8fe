"""Engines that answer, but not as they should; clients that leave."""

import asyncio
import json
import socket
import time

from faults.load import ask, completion
from faults.processes import BadEngine, get
from faults.rig import Rig, Row

FEW_CLIENTS = 8
"""Fewer than the 10 that the retry budget allows at least: before there are requests of which it
could be a part, all clients may be at the faulty engine at once."""


async def _one_of_three(rig: Rig, mode: str, fault: str, *lines: str) -> Row:
    """A load on a model of which one engine is faulty; the others are those of the rig."""
    row, name = Row(fault), f"with-{mode}"
    bad = BadEngine(f"bad-{mode}", rig.folder, mode)
    good = [BadEngine(f"good-{mode}-{number}", rig.folder, "ok") for number in range(2)]
    await rig.add(name, bad, *good)
    load = rig.load(FEW_CLIENTS, name, *lines)
    await asyncio.sleep(3 if rig.quick else 10)
    answers = await load.stop()
    failures = await rig.router.metric("replica_failures_total", model=name, replica=bad.name)
    row.count(answers)
    row.expect(failures > 0, "the router saw no failure")
    row.note = f"{failures:.0f} failures of it seen"
    await bad.kill()
    return row


async def status_500(rig: Rig) -> Row:
    """Let one of three engines answer 500."""
    return await _one_of_three(rig, "500", "an engine answering 500")


async def half_a_body(rig: Rig) -> Row:
    """Let one of three engines break its answers off."""
    return await _one_of_three(rig, "half_body", "an engine sending half a body")


async def bad_framing(rig: Rig) -> Row:
    """Let one of three engines send what is no HTTP."""
    return await _one_of_three(rig, "bad_framing", "an engine whose chunks are none")


async def garbage_events(rig: Rig) -> Row:
    """A stream of garbage that breaks off cannot be resumed: it ends with an error event, and
    never silently."""
    row, name = Row("garbage as events, cut off"), "garbage"
    await rig.add(name, BadEngine("bad-garbage", rig.folder, "garbage_events"))
    for number in range(20):
        answer = await ask(rig.router.port, completion(number, model=name, stream=True))
        row.requests += 1
        told = b'data: {"error"' in answer.body or answer.status >= 500
        row.lost += not told
    row.note = "each ended with an error"
    return row


async def slow_engine(rig: Rig) -> Row:
    """A byte a second: requests end by their deadline, and hold nobody up."""
    row, name = Row("an engine sending a byte a second"), "slow"
    await rig.add(name, BadEngine("bad-slow", rig.folder, "dribble"))
    load = rig.load()
    slow = [
        ask(rig.router.port, completion(number, model=name), "x-request-timeout: 2")
        for number in range(50)
    ]
    answers = await asyncio.gather(*slow)
    others = await load.stop()
    row.count(others)
    ended = sum(answer.status == 504 for answer in answers)
    row.expect(ended == len(answers), f"{ended} of {len(answers)} ended by their deadline")
    row.note = f"{ended} of its own ended with 504"
    return row


async def client_leaves(rig: Rig) -> Row:
    """Clients leave their streams while the router is as busy as can be: how soon the engine sees
    it."""
    row, name = Row("clients leave, under overload"), "leaving"
    engine = BadEngine("events", rig.folder, "events")
    await rig.add(name, engine)
    load = rig.load(48)
    body, left = completion("x", model=name, stream=True), []
    for _ in range(40):
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.router.port)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\n")
        writer.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        await reader.readuntil(b"data: 1")
        left.append(time.monotonic())
        # The transport closes after all else that the load has to do in this turn of the loop.
        writer.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
        writer.transport.abort()
    await asyncio.sleep(1)
    seen = sorted(json.loads(await get(engine.port, "/left")))
    answers = await load.stop()
    row.count(answers)
    row.expect(len(seen) == len(left), f"the engine saw {len(seen)} of {len(left)} leave")
    waits = sorted(there - here for here, there in zip(left, seen, strict=False))
    if waits:
        row.detected = waits[len(waits) // 2]
        row.within(row.detected, 0.005, "heard of")
        row.note = f"p50 {1e3 * row.detected:.1f} ms, worst {1e3 * waits[-1]:.1f} ms"
    return row
