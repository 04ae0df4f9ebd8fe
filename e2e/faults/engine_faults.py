"""Engines that end, stop, drain and come back."""

import asyncio
import signal
import time
from collections.abc import Sequence

from faults.load import Answer, ask, completion
from faults.processes import MODEL, BadEngine, Process
from faults.rig import CLIENTS, Rig, Row

_GONE = "down|suspect"


async def killed(rig: Rig) -> Row:
    """kill -9 of one of three under unary and streaming requests: streams move, unary ones are
    asked again, and both are the same text."""
    count = 60 if rig.quick else 200
    row = Row(f"kill -9 under {count} unary, {count} streams")
    port, victim = rig.router.port, rig.engines[0]
    asked = [
        # Of many lengths: when the shortest end the others are in the midst
        asyncio.create_task(ask(port, completion(number, tokens=100 + 3 * number, stream=stream)))
        for stream in (False, True)
        for number in range(count)
    ]
    while sum(task.done() for task in asked) < 5:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.02)
    died = time.monotonic()
    victim.signal(signal.SIGKILL)
    row.detected = await rig.router.until({victim.name: _GONE}) - died
    answers = await asyncio.gather(*asked)
    row.count(answers)
    unlike = sum(
        one.is_good and other.is_good and one.text != other.text
        for one, other in zip(answers[:count], answers[count:], strict=True)
    )
    row.expect(unlike == 0, f"{unlike} streams differ from the unary answer")
    moved = await rig.router.metric("stream_migrations_total", outcome="moved")
    row.note = f"{moved:.0f} streams moved"
    await victim.ended()
    again = await rig.revived(victim)
    row.within(again, 2.0, "used again")
    row.note += f", used again {again:.2f} s after it served"
    return row


async def stopped(rig: Rig) -> Row:
    """SIGSTOP, then SIGCONT."""
    return await _stopped(rig, Row("SIGSTOP, SIGCONT of one engine"), MODEL, rig.engines)


async def foreign_stopped(rig: Rig) -> Row:
    """The same of one whose load nobody pushes: probes alone tell."""
    row, name = Row("SIGSTOP, SIGCONT of a foreign engine"), "foreign"
    engines = [BadEngine(f"foreign-{at}", rig.folder, "ok", "vllm") for at in range(3)]
    await rig.add(name, *engines)
    row = await _stopped(rig, row, name, engines)
    for engine in engines:
        await engine.kill()
    return row


async def _stopped(rig: Rig, row: Row, model: str, engines: Sequence[Process]) -> Row:
    """Stop a model's second engine with SIGSTOP, and let it go on."""
    victim, load = engines[1], rig.load(CLIENTS, model)
    before = await rig.settle(load)
    begun = time.monotonic()
    victim.signal(signal.SIGSTOP)
    row.detected = await rig.router.until({victim.name: _GONE}, model) - begun
    await asyncio.sleep(5)
    row.recovered = load.recovered(begun, 0.9 * before * (len(engines) - 1) / len(engines))
    went_on = time.monotonic()
    victim.signal(signal.SIGCONT)
    again = await rig.router.until({victim.name: "ready"}, model) - went_on
    answers = await load.stop()
    row.count(answers)
    stuck = sum(each.slow and begun - 1 < each.begun < went_on for each in answers)
    row.within(row.detected, 1.0, "detected")
    row.within(row.recovered, 2.0, "recovered")
    row.within(again, 2.0, "used again")
    row.note = f"{stuck} requests were stuck, used again {again:.2f} s after SIGCONT"
    return row


async def refused(rig: Rig) -> Row:
    """Two of three engines refuse connections, under many clients. They end one after the other:
    who is in flight at two deaths is suspected of them."""
    row, victims = Row("connections refused by two of three"), rig.engines[1:]
    load = rig.load(4 * CLIENTS)
    before = await rig.settle(load)
    died = time.monotonic()
    for victim in victims:
        await victim.kill()
        gone = await rig.router.until({victim.name: _GONE})
        row.detected = row.detected or gone - died
        await asyncio.sleep(2)
    await asyncio.sleep(3)
    row.recovered = load.recovered(died, 0.9 * before / len(rig.engines))
    for victim in victims:
        await victim.start()
    await rig.all_ready()
    answers = await load.stop()
    row.count(answers)
    return row


async def all_down(rig: Rig) -> Row:
    """All engines end and come back. Requests wait, for a while; then they are told when to come
    again, and clients that do are served."""
    row = Row("all engines down, then back")
    for engine in rig.engines:
        await engine.kill()
    told = 0
    served: list[Answer] = []

    async def insist(number: int) -> None:
        nonlocal told
        until = time.monotonic() + 120
        while time.monotonic() < until:
            answer = await ask(rig.router.port, completion(number, stream=number % 2 == 0))
            if answer.is_good:
                served.append(answer)
                return
            if answer.status == 503 and b"retry-after: " in answer.headers:
                told += 1
            elif not (answer.status == 200 and b"model_not_ready" in answer.body):
                row.expect(False, f"answered {answer.status}")
            await asyncio.sleep(1)

    asked = [asyncio.create_task(insist(number)) for number in range(20)]
    await asyncio.sleep(10)
    row.expect(told > 0, "nobody was told to come again")
    begun = time.monotonic()
    for engine in rig.engines:
        await engine.start()
    await asyncio.gather(*asked)
    back = await rig.all_ready()
    row.requests, row.lost = len(asked), len(asked) - len(served)
    if served:
        row.recovered = max(0.0, max(answer.ended for answer in served) - begun)
    row.note = f"{told} times 503 with Retry-After; engines took {back - begun:.1f} s to start"
    return row


async def rolling_restart(rig: Rig) -> Row:
    """Each engine is ended by SIGTERM and started again, under load."""
    row = Row("rolling restart of every engine")
    load = rig.load()
    await rig.settle(load)
    for engine in rig.engines:
        engine.signal(signal.SIGTERM)
        status = await engine.ended()
        row.expect(status == 0, f"{engine.name} ended with {status}")
        await engine.start()
        await rig.all_ready()
    answers = await load.stop()
    row.count(answers)
    return row


async def poison(rig: Rig) -> Row:
    """A request that ends every engine which gets it, among others."""
    row = Row("poison request, four engines")
    engines = [BadEngine(f"p{number}", rig.folder, "poison") for number in range(4)]
    await rig.add("fragile", *engines)
    load = rig.load(8, "fragile")
    await asyncio.sleep(0.5)
    bad = completion("poison", model="fragile")
    first = await ask(rig.router.port, bad)
    again = await ask(rig.router.port, bad)
    answers = await load.stop()
    dead = sum(not engine.running for engine in engines)
    # Who was in flight at both deaths is suspected too, and told so
    beside = [answer for answer in answers if b"poison_request" in answer.body]
    row.count(answer for answer in answers if answer not in beside)
    row.expect(0 < dead <= 2, f"{dead} engines died")
    row.expect(b"poison_request" in first.body and b"poison_request" in again.body, "not refused")
    row.note = f"{dead} engines died, {len(beside)} others were in flight at both deaths"
    return row
