"""The fleet of `sim_fleet.py` in one process and in virtual time, for machines with few cores.

Real are the engines' scheduler, KV manager and step times, and the router's policy, indexes, slots
and queue; left out are HTTP, tokenising and processes, for whose delays a few milliseconds
stand. The clock is `virtual_clock.py`'s.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from math import inf
from pathlib import Path
from typing import Any

from sim_fleet import VOCABULARY, Scale, Words, scaled_profile
from stream_load import Call, Load
from virtual_clock import VirtualLoop
from virtual_prompt import BLOCK, FIRST_WORD, Prompt, query_of

from kvasir.wire.kv_events import BlockRemoved, BlockStored, KVEvent
from kvasir_engine.kv.events import EventRecorder
from kvasir_engine.kv.groups import KVGroupSpec
from kvasir_engine.kv.manager import KVManager
from kvasir_engine.request import EngineRequest
from kvasir_engine.sampling_params import SamplingParams
from kvasir_engine.scheduler import step_results
from kvasir_engine.scheduler.scheduler import Scheduler
from kvasir_engine.settings import SchedulerSettings
from kvasir_engine.sim.latency_model import SpeedProfile
from kvasir_engine.sim.sim_runner import SimRunner, SimStep
from kvasir_engine.step_plan import StepPlan
from kvasir_router.admission.request_queue import RequestQueue
from kvasir_router.admission.ticket import Ticket
from kvasir_router.discovery.specs import ModelSpec, ReplicaSpec
from kvasir_router.fleet.model import Model
from kvasir_router.fleet.policy import Policy
from kvasir_router.fleet.replica import Health, Replica
from kvasir_router.fleet.replica_load import LoadReport
from kvasir_router.options.router_settings import QueueLimits
from kvasir_router.wire.http_request import Request
from kvasir_router.wire.upstream_pool import ConnectionPool
from kvasir_router.wire.usage import Usage

HOP = 0.003
"""Seconds from the router to an engine, and back."""
REPORT = 0.02
"""Seconds between two reports of an engine's load."""


class VirtualEngine:
    """The overlapped step of kvasir_engine.core.loop, driven by events."""

    def __init__(self, loop: VirtualLoop, profile: SpeedProfile, scale: Scale) -> None:
        self._loop = loop
        self._recorder = EventRecorder()
        groups = [KVGroupSpec((0,), BLOCK)]
        kv = KVManager(groups, [profile.num_kv_blocks], listeners=self._recorder.listeners(groups))
        budget = max(8192 // scale.tokens, 512)
        settings = SchedulerSettings(max_num_seqs=256, max_num_batched_tokens=budget)
        ids = range(FIRST_WORD, FIRST_WORD + VOCABULARY)
        self.scheduler = Scheduler(settings, kv, max_model_len=32_768, vocab_size=ids.stop)
        self._runner = SimRunner(profile, num_rows=256, vocab_size=ids.stop, ordinary=ids)
        self._steps: deque[tuple[StepPlan, SimStep]] = deque()
        self._handles = count(1)
        self._asked: dict[int, Asked] = {}
        self._runs = False
        self._reported = 0.0
        self.told: Callable[[list[KVEvent]], None] = lambda events: None
        self.reported: Callable[[LoadReport], None] = lambda report: None

    def add(self, asked: Asked) -> None:
        handle = next(self._handles)
        self._asked[handle] = asked
        params = SamplingParams(max_tokens=asked.output, ignore_eos=True)
        self.scheduler.add(EngineRequest(str(handle), handle, asked.prompt.tokens, params))
        if not self._runs:
            self._turn()

    def report(self) -> None:
        """Say how the load is."""
        self._reported, load = self._loop.now, self.scheduler.load()
        said = LoadReport(
            load.running, load.waiting, load.inflight_tokens, load.kv_usage, self._loop.now + HOP
        )
        self._loop.call_later(HOP, self.reported, said)

    def _turn(self) -> None:
        plan = self.scheduler.schedule()
        if plan is not None:
            self._runner.forward(plan)
            self._steps.append((plan, self._runner.sample(plan)))
            self.scheduler.launched(plan)
        self._runs = bool(self._steps) or self.scheduler.has_work
        if not self._runs:
            self.report()
        elif plan is not None and len(self._steps) < 2:
            self._turn()
        elif self._steps:
            self._loop.call_at(self._steps[0][1].due, self._retire)
        else:
            self._loop.call_later(0.001, self._turn)

    def _retire(self) -> None:
        plan, step = self._steps.popleft()
        news = step_results.apply(self.scheduler, plan, step.output)
        for handle, token in zip(news.handles.tolist(), news.tokens.tolist(), strict=True):
            self._asked[handle].add([token])
        for _, delta in news.deltas:
            asked = self._asked[delta.handle]
            if delta.num_cached_tokens is not None:
                asked.cached = delta.num_cached_tokens
            asked.add(delta.token_ids)
            if delta.finish_reason:
                del self._asked[delta.handle]
                self._loop.call_later(HOP, asked.end)
        if events := self._recorder.drain_events():
            self._loop.call_later(HOP, self.told, events)
        if self._loop.now - self._reported >= REPORT:
            self.report()
        self._turn()


class Asked:
    """A request on its way: what the queue knows, and the engine."""

    streams, moving, patience, adapter = True, False, inf, ""

    def __init__(self, router: VirtualRouter, prompt: Prompt, output: int, load: Load) -> None:
        self._router = router
        self.model = router.model
        self.ticket = Ticket(len(prompt.tokens), output)
        self.request = Request()
        self.prompt, self.output = prompt, output
        self.query = query_of(prompt)
        self.cached = 0
        self.ids: list[int] = []
        self._load = load
        self.call = Call(router.loop.now)
        self.done: asyncio.Future[None] = router.loop.create_future()

    @property
    def preferred_has_room(self) -> bool:
        """Waiter.preferred_has_room."""
        return self.model.prefers_room(self.query)

    def fall_back(self, reason: str) -> bool:
        """Waiter.fall_back: there is no other model."""
        return False

    def start(self) -> None:
        """Waiter.start."""
        choice = self.model.choose(self.query)
        if choice is None:
            self._router.queue.join(self)
            return
        self.choice = choice
        choice.replica.acquire()
        choice.replica.load.give(choice.new_tokens)
        self.model.policy.sent(self.query, choice)
        self._router.loop.call_later(HOP, self._router.engine(choice.replica).add, self)
        if self.model.policy.sink is not None:
            self._router.loop.call_later(2 * HOP, self._learned)

    def _learned(self) -> None:
        if (sink := self.model.policy.sink) is not None:
            sink.learned(self.prompt.report)

    def refuse(self, answer: object) -> None:
        """Waiter.refuse: nobody is, since the queue has room and patience."""
        raise AssertionError(f"refused: {answer}")

    def heartbeat(self) -> None:
        """Waiter.heartbeat."""

    def defect(self, error: Exception) -> None:
        """Waiter.defect."""
        raise error

    def add(self, ids: Sequence[int]) -> None:
        """Tokens have come."""
        if not self.ids:
            self.call.first = self._router.loop.now + HOP
            self.choice.replica.load.take_back(self.choice.new_tokens)
        self.ids += ids
        self.call.tokens += len(ids)
        self._load.stage.tokens += len(ids)

    def end(self) -> None:
        """The answer is whole."""
        self.choice.replica.release()
        usage = Usage(len(self.prompt.tokens), len(self.ids), self.cached)
        self.model.policy.ended(self.query, self.choice, usage)
        self._router.queue.settle(self.model, self.ticket, 0, 0)
        self.call.ended = self._router.loop.now
        if not self.done.done():
            self.done.set_result(None)


class VirtualRouter:
    """One model's policy and queue in front of engines."""

    def __init__(
        self,
        loop: VirtualLoop,
        policy: Policy,
        scale: Scale,
        replicas: int,
        kv_tokens: int,
        *,
        hears: bool,
    ) -> None:
        """`hears`: of block events."""
        self.loop = loop
        profile = json.dumps(scaled_profile(scale, kv_tokens))
        speed = SpeedProfile.from_json(profile, Path("profile.json"))
        self.model = Model(ModelSpec("bench"), policy, 0)
        self._engines: dict[Replica, VirtualEngine] = {}
        pool = ConnectionPool("127.0.0.1", 1, connect_timeout=1, idle_timeout=1)
        for number in range(replicas):
            spec = ReplicaSpec(f"r{number}", "127.0.0.1", 1)
            replica = Replica(spec, pool, 2048, self.model.refresh, 4)
            replica.health, replica.load.report_every = Health.READY, 0.2
            replica.load.kv_capacity = kv_tokens // scale.tokens
            engine = self._engines[replica] = VirtualEngine(loop, speed, scale)
            engine.reported = replica.load.reported
            if hears:
                engine.told = partial(self._told, replica)
            self.model.replicas[spec.id, spec.host, number] = replica
        self.model.refresh()
        waiting = QueueLimits(requests=1_000_000, timeout=1e9)
        self.queue = RequestQueue(waiting, loop.time, loop.call_soon)
        self.model.room = lambda: self.queue.room(self.model)

    @property
    def engines(self) -> list[VirtualEngine]:
        return list(self._engines.values())

    def engine(self, replica: Replica) -> VirtualEngine:
        """The one behind the replica."""
        return self._engines[replica]

    async def watch(self) -> None:
        """Serve and expire the queue beside requests, forever."""
        while True:
            for engine in self._engines.values():
                engine.report()
            self.queue.serve_and_expire()
            await asyncio.sleep(0.1)

    def _told(self, replica: Replica, events: list[KVEvent]) -> None:
        sink = self.model.policy.sink
        if sink is None:
            return
        for event in events:
            if isinstance(event, BlockStored):
                sink.stored(replica, event)
            elif isinstance(event, BlockRemoved):
                sink.removed(replica, event)


class VirtualLoad(Load):
    """Load without sockets."""

    def __init__(self, router: VirtualRouter, scale: Scale, words: Words) -> None:
        super().__init__(0, scale)
        self.router = router
        self._words = words.words
        self._ids = {word: at for at, word in enumerate(words.words, FIRST_WORD)}

    async def ask(self, messages: list[dict[str, Any]], real_tokens: int) -> Call:
        """Load.ask."""
        prompt = Prompt(messages, self._ids)
        asked = Asked(self.router, prompt, self.scale.count(real_tokens), self)
        self.stage.calls.append(asked.call)
        if self.router.queue.enter(asked):
            asked.start()
        await asked.done
        asked.call.text = " ".join(self._words[id_ - FIRST_WORD] for id_ in asked.ids)
        return asked.call
