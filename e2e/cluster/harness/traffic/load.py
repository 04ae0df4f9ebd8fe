"""Run a plan until it is stopped, and count by step."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Coroutine, Mapping
from types import TracebackType
from typing import Any, Self

import aiohttp

from harness.traffic.client import Client
from harness.traffic.outcomes import Kind, Outcome, Step
from harness.traffic.plan import PROMPTS, Plan, Question


class Load:
    """`async with Load(plan, expected) as load:` keeps the load up; `load.step(name)` begins a
    step; `await load.finish()` stops asking and waits for what runs."""

    def __init__(self, plan: Plan, expected: Mapping[Question, str], seed: int = 0) -> None:
        self.plan = plan
        self.steps: list[Step] = []
        self._expected = expected
        self._random = random.Random(seed)
        self._endpoints = itertools.cycle(plan.endpoints)
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60)
        self._session = aiohttp.ClientSession(
            connector=connector, timeout=aiohttp.ClientTimeout(total=None, sock_connect=10)
        )
        self._client = Client(
            *(self._session, self.plan.model, self.plan.key, self.plan.timeout),
            lambda seconds: self.steps[-1].silence(seconds),
        )
        self.step("start")
        self._start(self._unary_pace())
        for number in range(self.plan.streams):
            self._start(self._streams(number))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        assert self._session is not None
        await self._session.close()
        self.steps[-1].ended = time.monotonic()

    def step(self, name: str) -> None:
        """Begin the step `name`: what ends from now on belongs to it."""
        now = time.monotonic()
        if self.steps:
            self.steps[-1].ended = now
        self.steps.append(Step(name, now))

    async def finish(self) -> None:
        """Ask nothing new; returns when every answer has come."""
        self.step("finish")
        self._stopping = True
        while self._tasks:
            await asyncio.wait(self._tasks)

    def failures(self) -> list[Outcome]:
        """Every failure until now."""
        return [outcome for step in self.steps for outcome in step.failures()]

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _unary_pace(self) -> None:
        """An open loop: a slow answer does not thin out the questions."""
        due = time.monotonic()
        while not self._stopping:
            question = Question(self._random.choice(PROMPTS), self.plan.unary_tokens)
            self._start(self._ask(question, "unary"))
            due += 1 / self.plan.unary_rate
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _streams(self, number: int) -> None:
        # Not all in the same second.
        await asyncio.sleep(number * 0.05)
        while not self._stopping:
            length = self._random.choice(self.plan.stream_tokens)
            await self._ask(Question(self._random.choice(PROMPTS), length), "stream")

    async def _ask(self, question: Question, kind: Kind) -> None:
        endpoint = next(self._endpoints)
        expected = self._expected[question]
        outcome = await self._client.ask(endpoint, question, kind, expected)
        self.steps[-1].outcomes.append(outcome)
        if outcome.failure is not None:
            # A closed loop would turn one fault into thousands of refusals.
            await asyncio.sleep(0.5)
