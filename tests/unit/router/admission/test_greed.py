"""What a greedy tenant costs the others, in simulated time: the queue and the slots as they are, in
front of engines that serve in order of arrival."""

import heapq
from collections import deque
from itertools import count
from math import inf
from random import Random
from statistics import quantiles

import pytest

from kvasir_router.admission.request_queue import RequestQueue
from kvasir_router.admission.ticket import Ticket
from kvasir_router.fleet.engine_slots import EngineSlots
from kvasir_router.fleet.model import reserved_slots
from kvasir_router.options.router_settings import QueueLimits
from kvasir_router.wire.http_request import Request

SEQUENCES, ENGINES = 16, 2
REPORT, PREFILL, DECODE = 0.02, 0.05, 1.6
TENANTS = "gabcd"
SECONDS = 240


class Engine:
    """`SEQUENCES` run, the others wait."""

    def __init__(self, world) -> None:
        self.world = world
        self.slots = EngineSlots(spare=4)
        self.running = 0
        self.queue = deque()

    def send(self, request) -> None:
        self.queue.append(request)
        self.start()

    def start(self) -> None:
        while self.queue and self.running < SEQUENCES:
            request = self.queue.popleft()
            self.running += 1
            first = self.world.now + PREFILL
            self.world.first[request.ticket.tenant].append(first - request.arrived)
            self.world.at(first + self.world.random.uniform(0.5, 1.5) * DECODE, self.end, request)

    def end(self, request) -> None:
        self.running -= 1
        self.start()
        self.world.queue.settle(self.world.model, request.ticket, 100, 100)

    @property
    def in_flight(self) -> int:
        return self.running + len(self.queue)

    @property
    def full(self) -> bool:
        return self.in_flight >= self.slots.bound

    def report(self) -> None:
        self.slots.reported(self.running, len(self.queue), self.in_flight)
        self.world.at(self.world.now + REPORT, self.report)


class Model:
    name, ready = "m", True

    def __init__(self, engines) -> None:
        self.engines = engines

    @property
    def has_room(self) -> bool:
        return not all(engine.full for engine in self.engines)

    @property
    def capacity(self) -> int:
        return sum(engine.slots.count or 2048 for engine in self.engines)

    def has_room_for(self, adapter: str) -> bool:
        return self.has_room

    def has_only(self, part: float) -> bool:
        free = sum(max((e.slots.count or 2048) - e.in_flight, 0) for e in self.engines)
        return free <= reserved_slots(part, self.capacity)


class Asking:
    streams, moving, preferred_has_room, patience, adapter = True, False, True, inf, ""

    def __init__(self, world, tenant) -> None:
        self.world, self.model, self.arrived = world, world.model, world.now
        self.ticket = Ticket(100, 100, tenant=tenant)
        self.request = Request()

    def start(self) -> None:
        usable = [each for each in self.model.engines if not each.full]
        if usable:
            min(usable, key=lambda engine: engine.in_flight).send(self)
        else:
            self.world.queue.join(self)

    def fall_back(self, reason) -> bool:
        return False

    def refuse(self, answer) -> None:
        self.world.refused[self.ticket.tenant] += 1

    def heartbeat(self) -> None:
        pass


class World:
    """Events in order of their time."""

    def __init__(self, rates: dict[str, float], seconds: float) -> None:
        self.now, self.random, self._events, self._order = 0.0, Random(1), [], count()
        self.queue = RequestQueue(
            QueueLimits(), lambda: self.now, lambda callback: self.at(self.now, callback)
        )
        engines = [Engine(self) for _ in range(ENGINES)]
        self.model = Model(engines)
        self.first = {tenant: [] for tenant in TENANTS}
        self.refused = dict.fromkeys(TENANTS, 0)
        for engine in engines:
            engine.report()
        for tenant, rate in rates.items():
            source, due = Random(f"{tenant}"), 0.0
            while (due := due + source.expovariate(rate)) < seconds:
                self.at(due, self.arrive, tenant)
        self.look()
        while self._events and self.now < seconds:
            self.now, _, call, args = heapq.heappop(self._events)
            call(*args)

    def at(self, time: float, call, *args) -> None:
        heapq.heappush(self._events, (time, next(self._order), call, args))

    def arrive(self, tenant: str) -> None:
        asking = Asking(self, tenant)
        if self.queue.enter(asking):
            asking.start()

    def look(self) -> None:
        self.queue.serve_and_expire()
        self.at(self.now + 0.05, self.look)

    def p95(self) -> float:
        """Of the others, once the engines are known."""
        return quantiles([t for name in "abcd" for t in self.first[name][20:]], n=20)[-1]


@pytest.mark.slow
def test_a_tenant_at_twenty_times_its_share_slows_the_others_by_a_tenth_at_most() -> None:
    share = ENGINES * SEQUENCES / (DECODE + PREFILL) / len(TENANTS)
    rates = dict.fromkeys(TENANTS, 0.6 * share)
    even = World(rates, SECONDS)
    beside = World(rates | {"g": 20 * share}, SECONDS)
    assert beside.p95() <= 1.1 * even.p95()
    assert not any(beside.refused[name] for name in "abcd")
    # What the others leave is not wasted: at most the headroom stays free.
    served = sum(map(len, beside.first.values())) / SECONDS
    assert served > 0.8 * share * len(TENANTS)


@pytest.mark.slow
def test_alone_a_tenant_gets_all() -> None:
    share = ENGINES * SEQUENCES / (DECODE + PREFILL)
    world = World({"g": 20 * share}, 40)
    assert len(world.first["g"]) / 40 > 0.97 * share
