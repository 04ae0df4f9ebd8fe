"""Mixed load of the soak: short requests at a pace, streams in a loop, clients that leave."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Self

import aiohttp
from soaking.client import Client, Outcome, RouterKills
from soaking.questions import FILLING, Answer, Question

LEAVING = 0.15
"""Part of the streams whose client leaves in the middle."""


@dataclass(frozen=True)
class Plan:
    """Size of the load."""

    endpoints: Sequence[str]
    models: Mapping[str, float]
    """Weight of each."""
    rate: float = 4.0
    """Requests a second that are no streams."""
    streams: int = 12
    """Streams at a time."""
    fresh: float = 0.4
    """Part of the requests that have a prompt which no cache has."""


@dataclass
class Keys:
    """API keys that clients use in turn: some that stay, one that is replaced."""

    lasting: list[str]
    current: str

    def all(self) -> list[str]:
        return [*self.lasting, self.current]


@dataclass
class Counts:
    """Numbers of a run."""

    requests: Counter[str] = field(default_factory=Counter)
    """Good answers by kind."""
    left: int = 0
    """Streams whose client left, as planned."""
    retried: int = 0
    """Requests that were sent again, since their router had been killed."""
    longest: dict[str, float] = field(default_factory=dict)
    """Seconds of the longest of each kind."""
    lost: list[Outcome] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """Count one."""
        if outcome.failure is not None:
            self.lost.append(outcome)
            return
        self.left += outcome.left
        self.retried += outcome.retries > 0
        self.requests[outcome.kind] += not outcome.left
        seconds = outcome.ended - outcome.started
        self.longest[outcome.kind] = max(seconds, self.longest.get(outcome.kind, 0.0))


class Load:
    """`async with Load(...) as load:` keeps the load up; `await load.pause()` lets it run dry."""

    def __init__(
        self, plan: Plan, answers: Mapping[Question, Answer], keys: Keys, seed: int
    ) -> None:
        self.kills = RouterKills()
        self.keys = keys
        self.counts = Counts()
        self._plan = plan
        self._answers = answers
        self._random = random.Random(seed)
        self._endpoints = itertools.cycle(plan.endpoints)
        self._streams = [each for each in answers if each.stream]
        self._fresh = [each for each in answers if each.fresh and each != FILLING]
        self._others = [each for each in answers if not each.stream and not each.fresh]
        self._running = asyncio.Event()
        self._asking: set[asyncio.Task[None]] = set()
        self._loops: list[asyncio.Task[None]] = []
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
        session = aiohttp.ClientSession(connector=connector, timeout=timeout)
        await self._stack.enter_async_context(session)
        self._client = Client(session, self.kills, self._random.randrange(2**31))
        self._running.set()
        loops = [self._pace(), *(self._keep_streaming() for _ in range(self._plan.streams))]
        self._loops = [asyncio.create_task(each) for each in loops]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in (*self._loops, *self._asking):
            task.cancel()
        await asyncio.gather(*self._loops, *self._asking, return_exceptions=True)
        await self._stack.aclose()

    async def pause(self) -> None:
        """Ask nothing new; returns when every answer has come."""
        self._running.clear()
        while self._asking:
            await asyncio.wait(self._asking)

    async def fill(self, model: str, count: int, beside: int = 32) -> None:
        """Ask `model` so many prompts that no cache has, `beside` each other."""

        async def ask_in_turn(share: int) -> None:
            for _ in range(share):
                await self._start(self._ask(FILLING, None, model))

        await asyncio.gather(*(ask_in_turn(count // beside) for _ in range(beside)))

    def resume(self) -> None:
        """Ask again."""
        self._running.set()

    def failed(self) -> list[BaseException]:
        """Defects of the load itself."""
        ended = [each for each in self._loops if each.done() and not each.cancelled()]
        return [error for each in ended if (error := each.exception())]

    async def _pace(self) -> None:
        """An open loop: a slow answer does not thin out the questions."""
        due = time.monotonic()
        while True:
            if not self._running.is_set():
                await self._running.wait()
                due = time.monotonic()
            is_fresh = self._random.random() < self._plan.fresh
            question = self._random.choice(self._fresh if is_fresh else self._others)
            self._start(self._ask(question, None))
            due += 1 / self._plan.rate
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _keep_streaming(self) -> None:
        while True:
            await self._running.wait()
            leave = self._random.randint(1, 30) if self._random.random() < LEAVING else None
            await asyncio.wait([self._start(self._ask(self._random.choice(self._streams), leave))])

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)
        return task

    async def _ask(self, question: Question, leave: int | None, model: str = "") -> None:
        models = self._plan.models
        outcome = await self._client.ask(
            next(self._endpoints),
            question,
            self._answers[question],
            model=model or self._random.choices(list(models), list(models.values()))[0],
            key=self._random.choice(self.keys.all()),
            leave_after=leave,
        )
        self.counts.add(outcome)
        if outcome.failure is not None:
            print(f"LOST {outcome}", flush=True)
            # A closed loop would turn one fault into thousands of refusals
            await asyncio.sleep(0.5)
