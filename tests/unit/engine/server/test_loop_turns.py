"""Bodies share the turns of the event loop."""

from __future__ import annotations

import asyncio

from support.loop_clock import LoopClock

from kvasir_engine.server.loop_turns import MAX_BODIES, LoopTurns


async def test_while_turns_are_long_each_takes_one_in_the_order_of_arrival() -> None:
    turns, clock = LoopTurns(seconds=0.0), LoopClock()
    began: list[tuple[int, int]] = []

    async def work(number: int) -> None:
        await turns.enter()
        began.append((number, clock.turn))

    await asyncio.gather(*(work(number) for number in range(6)))
    assert [number for number, _ in began] == list(range(6))
    assert len({turn for _, turn in began}) == 6


async def test_in_a_short_turn_all_go_on_at_once() -> None:
    turns, clock = LoopTurns(seconds=60.0), LoopClock()
    before = clock.turn
    for _ in range(100):
        await turns.enter()
        await turns.pause()
    assert clock.turn == before


async def test_a_long_piece_of_work_pauses_for_others() -> None:
    turns, clock = LoopTurns(seconds=0.0), LoopClock()
    await turns.enter()
    before = clock.turn
    for _ in range(10):
        await turns.pause()
    assert clock.turn >= before + 10


async def test_one_that_was_cancelled_takes_no_turn() -> None:
    turns = LoopTurns(seconds=0.0)
    await turns.enter()
    waiting = [asyncio.create_task(turns.enter()) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    async with asyncio.timeout(10):
        await asyncio.gather(*waiting[1:])


async def test_few_bodies_are_read_at_once() -> None:
    turns = LoopTurns()
    inside = most = 0

    async def read() -> None:
        nonlocal inside, most
        async with turns.body():
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0)
            inside -= 1

    await asyncio.gather(*(read() for _ in range(3 * MAX_BODIES)))
    assert most == MAX_BODIES
