"""Tasks whose await never comes back."""

import asyncio
import time

import pytest

from kvasir_router.progress import ProgressWatch
from kvasir_router.tasks import SupervisedTasks


class Hangs:
    """Work that goes on a while and then waits for what never comes; the second run lives."""

    def __init__(self) -> None:
        self.starts = 0
        self.cancelled = 0
        self.lives = asyncio.Event()

    async def run(self) -> None:
        self.starts += 1
        for _ in range(3):
            await asyncio.sleep(0.01)
        while self.starts > 1:
            self.lives.set()
            await asyncio.sleep(0.01)
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


async def test_one_that_hangs_is_started_again_though_not_on_its_own_word() -> None:
    tasks, work = SupervisedTasks(), Hangs()
    tasks.child().keep("work", work.run, every=0.05)
    async with asyncio.timeout(10):
        await work.lives.wait()
    assert (work.starts, work.cancelled) == (2, 1)
    assert tasks.failures == {"work": 1}


async def test_one_that_goes_on_or_may_wait_is_left_alone() -> None:
    tasks, starts = SupervisedTasks(), []

    async def goes_on() -> None:
        starts.append("goes on")
        while True:  # noqa: ASYNC110 - steps are what it is to take
            await asyncio.sleep(0.05)

    async def waits() -> None:
        starts.append("waits")
        await asyncio.get_running_loop().create_future()

    hangs = Hangs()
    tasks.keep("goes on", goes_on, every=0.05)
    tasks.keep("waits", waits)
    tasks.keep("hangs", hangs.run, every=0.1)
    async with asyncio.timeout(10):
        await hangs.lives.wait()
    assert starts == ["goes on", "waits"]
    await tasks.stop()
    assert not tasks.down
    assert not tasks


async def test_a_process_that_stood_still_is_not_held_against_them() -> None:
    tasks, starts = SupervisedTasks(), []

    async def work() -> None:
        starts.append(len(starts))
        while True:  # noqa: ASYNC110 - steps are what it is to take
            await asyncio.sleep(0.2)

    tasks.keep("work", work, every=0.2)
    await asyncio.sleep(0.05)
    time.sleep(1.5)  # noqa: ASYNC251 - the loop is what stands still
    for _ in range(4):
        await asyncio.sleep(0.1)
    assert starts == [0]
    assert not tasks.failures
    await tasks.stop()


async def test_a_limit_is_moved_by_each_word_and_ends_what_is_silent() -> None:
    watch, words = ProgressWatch(), []

    async def speaks_and_falls_silent() -> None:
        async with watch.limit(0.4) as progress:
            for word in range(6):
                await asyncio.sleep(0.1)
                progress.went_on()
                words.append(word)
            await asyncio.get_running_loop().create_future()

    with pytest.raises(TimeoutError, match=r"it did not go on for 0.4 s"):
        await speaks_and_falls_silent()
    assert len(words) == 6


async def test_a_limit_does_not_count_what_the_process_stood_still() -> None:
    async with ProgressWatch().limit(0.4):
        time.sleep(1.0)  # noqa: ASYNC251 - the loop is what stands still
        await asyncio.sleep(0.15)


async def test_it_tells_since_when_the_process_goes_on() -> None:
    watch = ProgressWatch()
    async with watch.limit(60):
        await asyncio.sleep(0.2)
        slept = time.monotonic()
        assert watch.awake_since <= slept
        time.sleep(1.0)  # noqa: ASYNC251 - the loop is what stands still
        assert watch.awake_since > slept + 0.9, "before the watch itself has looked"
        await asyncio.sleep(0.2)
        woke = watch.awake_since
        assert woke > slept + 0.9
    await asyncio.sleep(0.1)
    woke = watch.awake_since
    time.sleep(0.5)  # noqa: ASYNC251
    assert watch.awake_since == woke, "nothing was watched"


@pytest.mark.parametrize(("seconds", "left"), [(600.0, 0.1), (0.1, 600.0)])
async def test_a_limit_can_be_shortened_and_not_be_made_longer(seconds: float, left: float) -> None:
    async def hangs() -> None:
        async with ProgressWatch().limit(seconds) as progress:
            progress.shorten(left)
            await asyncio.get_running_loop().create_future()

    with pytest.raises(TimeoutError):
        await hangs()


async def test_an_exception_and_an_own_timeout_come_as_they_are() -> None:
    watch = ProgressWatch()

    async def fails() -> None:
        await asyncio.sleep(0)
        raise ZeroDivisionError("why")

    async def is_late() -> None:
        async with asyncio.timeout(0):
            await asyncio.sleep(1)

    with pytest.raises(ZeroDivisionError, match="why"):
        await watch.run(fails(), 1)
    with pytest.raises(TimeoutError) as raised:
        await watch.run(is_late(), 1)
    assert str(raised.value) == ""


async def test_what_is_thrown_in_comes_to_the_work() -> None:
    seen: list[str] = []

    async def work() -> None:
        broken = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(broken.set_exception, OSError("gone"))
        try:
            await broken
        except OSError as error:
            seen.append(str(error))

    await ProgressWatch().run(work(), 1)
    assert seen == ["gone"]
