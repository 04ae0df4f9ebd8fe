"""The queue: order, bounds, patience, departures."""

from collections import Counter
from math import ceil
from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvasir_router.admission.request_queue import RequestQueue
from kvasir_router.admission.ticket import Priority, Ticket
from kvasir_router.discovery.specs import ModelSpec
from kvasir_router.options.router_settings import QueueLimits
from kvasir_router.wire.http_request import Request


class Room:
    """A model with so many free places."""

    def __init__(self, free: int = 0, ready: bool = True, capacity: int = 0) -> None:
        self.name = "m"
        self.spec = ModelSpec("m")
        self.free = free
        self.capacity = capacity
        self.looks = 0
        self.ready = ready

    @property
    def has_room(self) -> bool:
        return self.free > 0

    def has_only(self, part: float) -> bool:
        self.looks += 1
        return self.free <= ceil(part * self.capacity)


class Asking:
    """A request as the line sees it."""

    def __init__(self, line, model, tenant="a", *, size=100, streams=False, **ticket) -> None:
        self.line = line
        self.model = model
        self.ticket = Ticket(size // 4, 100, tenant=tenant, **ticket)
        self.request = Request()
        self.request.body = b"x" * size
        self.streams = streams
        self.moving = False
        self.preferred_has_room = True
        self.state = "new"
        self.answer: Any = None
        self.beats = 0

    def come(self) -> "Asking":
        if self.line.enter(self):
            self.start()
        elif self.state == "new":
            self.state = "waits"
        return self

    def start(self) -> None:
        assert self.state in ("new", "waits")
        if self.model.has_room:
            self.model.free -= 1
            self.state = "runs"
        else:
            self.state = "waits"
            self.line.join(self)

    def refuse(self, answer) -> None:
        self.state = "refused"
        self.answer = answer

    def heartbeat(self) -> None:
        self.beats += 1

    def leave(self) -> None:
        self.state = "left"
        self.line.leave(self)

    def end(self, prompt: int = 25, output: int = 100) -> None:
        self.state = "ended"
        self.model.free += 1
        self.line.settle(self.model, self.ticket, prompt, output)
        self.line.serve(self.model)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make_line(clock):
    return lambda **settings: RequestQueue(QueueLimits(**settings), clock, lambda callback: None)


def test_who_comes_when_there_is_room_goes_at_once(make_line) -> None:
    line, model = make_line(), Room(free=1)
    assert Asking(line, model).come().state == "runs"
    assert line.waiting(model) == 0


def test_room_goes_to_the_next(make_line) -> None:
    line, model = make_line(), Room()
    first, second = Asking(line, model).come(), Asking(line, model).come()
    assert line.waiting(model) == 2
    model.free = 1
    line.serve(model)
    assert (first.state, second.state) == ("runs", "waits")


def test_nobody_overtakes_those_who_wait(make_line) -> None:
    line, model = make_line(), Room()
    first = Asking(line, model).come()
    model.free = 1  # nobody has told the line yet
    late = Asking(line, model)
    assert not line.enter(late)
    line.serve(model)
    assert first.state == "runs"
    assert line.waiting(model) == 1


def test_who_prefers_the_replica_with_room_goes_before_others_up_to_a_bound(make_line) -> None:
    line, model = make_line(), Room()
    first, *others = [Asking(line, model).come() for _ in range(100)]
    first.preferred_has_room = False
    overtaken = 0
    while first.state == "waits":
        model.free = 1
        line.serve(model)
        overtaken += 1
    assert [each.state for each in others[:overtaken]] == ["runs"] * 64 + ["waits"]


def test_a_stream_that_moves_is_not_overtaken(make_line) -> None:
    line, model = make_line(), Room()
    moving, other = Asking(line, model).come(), Asking(line, model).come()
    moving.moving, moving.preferred_has_room = True, False
    model.free = 1
    line.serve(model)
    assert (moving.state, other.state) == ("runs", "waits")


def test_nobody_at_home_means_the_first(make_line) -> None:
    line, model = make_line(), Room()
    first, second = Asking(line, model).come(), Asking(line, model).come()
    first.preferred_has_room = second.preferred_has_room = False
    model.free = 1
    line.serve(model)
    assert (first.state, second.state) == ("runs", "waits")


def test_room_is_counted_only_where_several_tenants_want_it(make_line) -> None:
    line, model = make_line(), Room(capacity=20)
    waiting = [Asking(line, model, "a").come() for _ in range(3)]
    model.free = 1
    line.serve(model)
    assert waiting[0].state == "runs"
    assert model.looks == 0
    Asking(line, model, "b").come()
    model.free = 10
    line.serve(model)
    assert model.looks > 0


def test_classes_are_served_in_order(make_line) -> None:
    line, model = make_line(), Room()
    asking = {
        priority: Asking(line, model, priority=priority).come() for priority in reversed(Priority)
    }
    for priority in Priority:
        model.free = 1
        line.serve(model)
        assert asking[priority].state == "runs"


def test_a_tenant_with_much_service_waits_for_one_with_little(make_line) -> None:
    line, model = make_line(), Room(free=20)
    for _ in range(20):
        Asking(line, model, "hog").come()
    waiting = [Asking(line, model, "hog").come() for _ in range(50)]
    light = Asking(line, model, "light").come()
    model.free = 1
    line.serve(model)
    assert light.state == "runs"
    assert all(each.state == "waits" for each in waiting)


@pytest.mark.parametrize(("weight", "share"), [(1.0, 0.5), (3.0, 0.75)])
def test_service_is_shared_by_weight(make_line, weight, share) -> None:
    line, model = make_line(), Room()
    requests = [
        Asking(line, model, tenant, weight=each).come()
        for _ in range(200)
        for tenant, each in (("a", weight), ("b", 1.0))
    ]
    for _ in range(200):
        model.free = 1
        line.serve(model)
    served = Counter(each.ticket.tenant for each in requests if each.state == "runs")
    assert abs(served["a"] / 200 - share) < 0.02


def test_long_answers_count_as_more_service_than_short_ones(make_line) -> None:
    line, model = make_line(), Room(free=2)
    running = [Asking(line, model, tenant).come() for tenant in ("long", "short")]
    requests = [
        Asking(line, model, tenant).come() for _ in range(300) for tenant in ("long", "short")
    ]
    for _ in range(100):
        for each in list(running):
            running.remove(each)
            each.end(output=900 if each.ticket.tenant == "long" else 100)
        running += [each for each in requests if each.state == "runs" and each not in running]
    ended = Counter(each.ticket.tenant for each in requests if each.state != "waits")
    assert ended["short"] > 5 * ended["long"]


def test_a_full_line_refuses_with_429_and_when_to_retry(make_line) -> None:
    line, model = make_line(requests=2), Room()
    waiting = [Asking(line, model).come() for _ in range(2)]
    late = Asking(line, model).come()
    assert [each.state for each in waiting] == ["waits", "waits"]
    assert late.answer.status == 429
    assert b"Retry-After: 5\r\n" in late.answer.lines


def test_a_full_line_drops_the_newest_of_the_longest_for_another_tenant(make_line) -> None:
    line, model = make_line(requests=4), Room()
    hog = [Asking(line, model, "hog").come() for _ in range(4)]
    light = Asking(line, model, "light").come()
    assert light.state == "waits"
    assert [each.state for each in hog] == ["waits", "waits", "waits", "refused"]
    Asking(line, model, "light").come()
    assert Asking(line, model, "light").come().state == "refused"


def test_a_full_line_drops_the_last_class_first(make_line) -> None:
    line, model = make_line(requests=1), Room()
    bulk = Asking(line, model, priority=Priority.BULK).come()
    default = Asking(line, model).come()
    assert (bulk.state, default.state) == ("refused", "waits")
    assert Asking(line, model, "b", priority=Priority.BULK).come().state == "refused"


def test_bodies_are_bounded_together(make_line) -> None:
    line = make_line(body_bytes=1000)
    one, other = Room(), Room()
    first = Asking(line, one, size=600).come()
    assert Asking(line, other, size=600).come().state == "refused"
    first.leave()
    assert Asking(line, other, size=600).come().state == "waits"


@pytest.mark.parametrize(("ready", "seconds", "status"), [(True, 30, 429), (False, 60, 503)])
def test_patience_ends(make_line, clock, ready, seconds, status) -> None:
    line, model = make_line(), Room(ready=ready)
    asking = Asking(line, model).come()
    clock.now = seconds - 0.1
    line.serve_and_expire()
    assert asking.state == "waits"
    clock.now = seconds
    line.serve_and_expire()
    assert asking.answer.status == status
    assert b"Retry-After" in asking.answer.lines
    assert line.waiting(model) == 0


def test_without_a_line_the_answer_comes_at_once(make_line) -> None:
    line = make_line(requests=0)
    assert Asking(line, Room()).come().answer.status == 429
    assert Asking(line, Room(ready=False)).come().answer.status == 503


def test_streams_get_heartbeats_and_others_none(make_line, clock) -> None:
    line, model = make_line(heartbeat=5.0), Room()
    stream, unary = Asking(line, model, streams=True).come(), Asking(line, model).come()
    for clock.now in (4, 5, 6, 10, 11):
        line.serve_and_expire()
    assert (stream.beats, unary.beats) == (2, 0)


def test_who_waits_for_a_model_to_start_hears_so_every_two_seconds(make_line, clock) -> None:
    line, model = make_line(), Room(ready=False)
    stream = Asking(line, model, streams=True).come()
    beats = {}
    for clock.now in (1.9, 2, 3.9, 4, 30):
        line.serve_and_expire()
        beats[clock.now] = stream.beats
    assert beats == {1.9: 0, 2: 1, 3.9: 1, 4: 2, 30: 3}
    model.ready = True  # from now on it waits for room, as often as others do
    for clock.now in (32, 41.9, 42):
        line.serve_and_expire()
        beats[clock.now] = stream.beats
    assert (beats[32], beats[41.9], beats[42]) == (4, 4, 5)


@pytest.mark.parametrize(("hold", "ends"), [(None, 60), (7.0, 30), (90.0, 90)])
def test_who_waits_while_the_last_replica_goes_is_held(make_line, clock, hold, ends) -> None:
    """But not shorter than it was promised."""
    line, model = make_line(), Room()
    model.spec = ModelSpec("m", hold=hold)
    asking = Asking(line, model).come()
    clock.now = 10
    model.ready = False
    line.serve_and_expire()
    clock.now = ends - 0.1
    line.serve_and_expire()
    assert asking.state == "waits"
    clock.now = ends
    line.serve_and_expire()
    assert asking.answer.status == 503


def test_a_client_that_leaves_is_forgotten(make_line) -> None:
    line, model = make_line(), Room()
    first, second = Asking(line, model).come(), Asking(line, model).come()
    first.leave()
    model.free = 1
    line.serve(model)
    assert (first.state, second.state) == ("left", "runs")
    second.leave()  # it does not wait: nothing happens
    assert line.waiting(model) == 0


def test_a_start_without_room_keeps_its_place(make_line) -> None:
    """The room may be gone again when a request looks at it."""
    line, model = make_line(), Room()
    first, second = Asking(line, model).come(), Asking(line, model).come()

    def nothing_there() -> None:
        model.free = 0
        Asking.start(first)

    first.start = nothing_there
    model.free = 1
    line.serve(model)
    assert (first.state, second.state) == ("waits", "waits")
    del first.start
    model.free = 1
    line.serve(model)
    assert (first.state, second.state) == ("runs", "waits")


def test_retry_after_is_the_wait_at_the_rate_of_service(make_line, clock) -> None:
    line, model = make_line(requests=40), Room()
    for _ in range(40):
        Asking(line, model).come()
    for clock.now in range(10):
        model.free = 1
        line.serve(model)
        Asking(line, model).come()
    late = Asking(line, model).come()
    assert b"Retry-After: 36\r\n" in late.answer.lines


def test_a_model_that_is_gone_ends_its_requests(make_line) -> None:
    line, model = make_line(), Room(ready=False)
    asking = Asking(line, model).come()
    line.keep_models(())
    assert asking.answer.status == 503


def test_a_tenant_over_its_share_leaves_some_room_to_the_others(make_line) -> None:
    line, model = make_line(headroom=0.2), Room(free=10, capacity=10)
    light = Asking(line, model, "light").come()
    hog = [Asking(line, model, "hog").come() for _ in range(20)]
    assert Counter(each.state for each in hog) == {"runs": 7, "waits": 13}
    assert Asking(line, model, "light").come().state == "waits"  # behind: it is served at once
    line.serve(model)
    assert model.free == 1
    light.end()
    assert Counter(each.state for each in hog)["runs"] == 7


def test_who_is_alone_has_it_all(make_line) -> None:
    line, model = make_line(headroom=0.2), Room(free=10, capacity=10)
    hog = [Asking(line, model, "hog").come() for _ in range(20)]
    assert Counter(each.state for each in hog) == {"runs": 10, "waits": 10}


def test_others_that_have_not_come_for_long_need_no_room(make_line, clock) -> None:
    line, model = make_line(headroom=0.2), Room(free=10, capacity=10)
    Asking(line, model, "light").come().end()
    clock.now = 20
    hog = [Asking(line, model, "hog").come() for _ in range(20)]
    assert Counter(each.state for each in hog) == {"runs": 10, "waits": 10}


def test_without_keys_nothing_is_counted(make_line) -> None:
    line, model = make_line(), Room(free=1)
    running, waiting = Asking(line, model, "").come(), Asking(line, model, "").come()
    running.end()
    assert (running.ticket.charged, waiting.state) == (0.0, "runs")


def test_refusals_are_told_with_their_reason(make_line, clock) -> None:
    line, model = make_line(requests=1), Room()
    told = []
    line.refused = lambda model, reason: told.append(reason)
    Asking(line, model).come()
    Asking(line, model).come()
    clock.now = 30
    line.serve_and_expire()
    assert told == ["full", "timeout"]


class Moving(Asking):
    """A stream that broke: only some replicas will do, and these have no room for now."""

    def __init__(self, line, model, **ticket) -> None:
        super().__init__(line, model, **ticket)
        self.moving = True
        self.suits = False

    def start(self) -> None:
        if self.suits:
            super().start()
        else:
            self.state = "waits"
            self.line.join(self)


def test_a_stream_that_moves_goes_first_and_holds_nobody_up(make_line) -> None:
    line, model = make_line(), Room()
    others = [Asking(line, model).come() for _ in range(2)]
    moving = Moving(line, model)
    moving.state = "waits"
    line.join(moving)
    model.free = 1
    line.serve(model)
    assert [each.state for each in (moving, *others)] == ["waits", "runs", "waits"]
    moving.suits = True
    model.free = 1
    line.serve(model)
    assert [each.state for each in (moving, *others)] == ["runs", "runs", "waits"]
    assert line.waiting(model) == 1


def test_a_stream_that_moves_does_not_wait_forever(make_line, clock) -> None:
    line = make_line()
    moving = Moving(line, Room(free=3))
    moving.state = "waits"
    line.join(moving)
    for clock.now in (10, 29, 31):
        line.serve_and_expire()
    assert moving.state == "refused"
    assert line.waiting(moving.model) == 0


class LineMachine(RuleBasedStateMachine):
    """Whatever happens, every request is in exactly one state, and the line agrees."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.line = RequestQueue(
            QueueLimits(requests=5, body_bytes=2000), self.clock, lambda callback: None
        )
        self.model = Room(free=2)
        self.asked: list[Asking] = []

    def _in(self, state: str) -> list[Asking]:
        return [each for each in self.asked if each.state == state]

    @rule(
        tenant=st.sampled_from("abc"),
        priority=st.sampled_from(Priority),
        size=st.integers(0, 900),
        weight=st.sampled_from([0.5, 1.0, 4.0]),
    )
    def ask(self, tenant: str, priority: Priority, size: int, weight: float) -> None:
        asking = Asking(self.line, self.model, tenant, size=size, priority=priority, weight=weight)
        self.asked.append(asking.come())

    @precondition(lambda self: self._in("runs"))
    @rule(data=st.data(), output=st.integers(0, 500))
    def end(self, data: st.DataObject, output: int) -> None:
        data.draw(st.sampled_from(self._in("runs"))).end(output=output)

    @precondition(lambda self: self._in("waits"))
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self._in("waits"))).leave()

    @rule(seconds=st.floats(0, 20))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds
        self.line.serve_and_expire()

    @invariant()
    def the_line_holds_exactly_those_who_wait(self) -> None:
        waits = self._in("waits")
        assert self.line.waiting(self.model) == len(waits) <= 5
        assert self.line.waiting_tokens(self.model) == sum(
            each.ticket.prompt_tokens for each in waits
        )

    @invariant()
    def nobody_waits_beside_room(self) -> None:
        assert not (self._in("waits") and self.model.has_room)

    @invariant()
    def only_those_who_run_are_charged(self) -> None:
        for each in self.asked:
            assert (each.ticket.charged > 0) == (each.state == "runs")


TestLine = LineMachine.TestCase
TestLine.settings = hypothesis_settings(max_examples=60, stateful_step_count=40, deadline=None)
