"""The queue: streams that move, and any order of events."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support.waiting_requests import Asking, Clock, Room

from kvasir_router.admission.request_queue import RequestQueue
from kvasir_router.admission.ticket import Priority
from kvasir_router.options.router_settings import QueueLimits


class Moving(Asking):
    """A stream that broke: only some replicas will do, and these have no room for now."""

    def __init__(self, queue, model, **ticket) -> None:
        super().__init__(queue, model, **ticket)
        self.moving = True
        self.suits = False

    def start(self) -> None:
        if self.suits:
            super().start()
        else:
            self.state = "waits"
            self.queue.join(self)


def test_a_stream_that_moves_goes_first_and_holds_nobody_up(make_queue) -> None:
    queue, model = make_queue(), Room()
    others = [Asking(queue, model).come() for _ in range(2)]
    moving = Moving(queue, model)
    moving.state = "waits"
    queue.join(moving)
    model.free = 1
    queue.serve(model)
    assert [each.state for each in (moving, *others)] == ["waits", "runs", "waits"]
    moving.suits = True
    model.free = 1
    queue.serve(model)
    assert [each.state for each in (moving, *others)] == ["runs", "runs", "waits"]
    assert queue.waiting(model) == 1


def test_a_stream_that_moves_does_not_wait_forever(make_queue, clock) -> None:
    queue = make_queue()
    moving = Moving(queue, Room(free=3))
    moving.state = "waits"
    queue.join(moving)
    for clock.now in (10, 29, 31):
        queue.serve_and_expire()
    assert moving.state == "refused"
    assert queue.waiting(moving.model) == 0


class QueueMachine(RuleBasedStateMachine):
    """Whatever happens, every request is in exactly one state, and the queue agrees."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.queue = RequestQueue(
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
        adapter=st.sampled_from(["", "", "sql", "chat"]),
    )
    def ask(self, tenant: str, priority: Priority, size: int, weight: float, adapter: str) -> None:
        ticket = {"priority": priority, "weight": weight}
        asking = Asking(self.queue, self.model, tenant, size=size, adapter=adapter, **ticket)
        self.asked.append(asking.come())
        self.queue.serve(self.model)  # as a loop would, soon

    @rule(full=st.sets(st.sampled_from(["sql", "chat"])))
    def hold(self, full: set[str]) -> None:
        """The replicas that hold these adapters have no room from now on."""
        self.model.full = full
        self.queue.serve(self.model)

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
        self.queue.serve_and_expire()

    @invariant()
    def the_queue_holds_exactly_those_who_wait(self) -> None:
        waits = self._in("waits")
        assert self.queue.waiting(self.model) == len(waits) <= 5
        assert self.queue.waiting_tokens(self.model) == sum(
            each.ticket.prompt_tokens for each in waits
        )

    @invariant()
    def nobody_waits_beside_room(self) -> None:
        assert not any(self.model.has_room_for(each.adapter) for each in self._in("waits"))

    @invariant()
    def only_those_who_run_are_charged(self) -> None:
        for each in self.asked:
            assert (each.ticket.charged > 0) == (each.state == "runs")


TestQueue = QueueMachine.TestCase
