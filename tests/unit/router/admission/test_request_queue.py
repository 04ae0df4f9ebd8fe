"""The queue: order, bounds, patience, departures."""

from collections import Counter

import pytest
from support.waiting_requests import Asking, Room

from kvasir_router.admission.ticket import Priority
from kvasir_router.discovery.specs import ModelSpec


def test_who_comes_when_there_is_room_goes_at_once(make_queue) -> None:
    queue, model = make_queue(), Room(free=1)
    assert Asking(queue, model).come().state == "runs"
    assert queue.waiting(model) == 0


def test_room_goes_to_the_next(make_queue) -> None:
    queue, model = make_queue(), Room()
    first, second = Asking(queue, model).come(), Asking(queue, model).come()
    assert queue.waiting(model) == 2
    model.free = 1
    queue.serve(model)
    assert (first.state, second.state) == ("runs", "waits")


def test_nobody_overtakes_those_who_wait(make_queue) -> None:
    queue, model = make_queue(), Room()
    first = Asking(queue, model).come()
    model.free = 1  # nobody has told the queue yet
    late = Asking(queue, model)
    assert not queue.enter(late)
    queue.serve(model)
    assert first.state == "runs"
    assert queue.waiting(model) == 1


def test_who_prefers_the_replica_with_room_goes_before_others_up_to_a_bound(make_queue) -> None:
    queue, model = make_queue(), Room()
    first, *others = [Asking(queue, model).come() for _ in range(100)]
    first.preferred_has_room = False
    overtaken = 0
    while first.state == "waits":
        model.free = 1
        queue.serve(model)
        overtaken += 1
    assert [each.state for each in others[:overtaken]] == ["runs"] * 64 + ["waits"]


def test_a_stream_that_moves_is_not_overtaken(make_queue) -> None:
    queue, model = make_queue(), Room()
    moving, other = Asking(queue, model).come(), Asking(queue, model).come()
    moving.moving, moving.preferred_has_room = True, False
    model.free = 1
    queue.serve(model)
    assert (moving.state, other.state) == ("runs", "waits")


def test_nobody_at_home_means_the_first(make_queue) -> None:
    queue, model = make_queue(), Room()
    first, second = Asking(queue, model).come(), Asking(queue, model).come()
    first.preferred_has_room = second.preferred_has_room = False
    model.free = 1
    queue.serve(model)
    assert (first.state, second.state) == ("runs", "waits")


def test_room_is_counted_only_where_several_tenants_want_it(make_queue) -> None:
    queue, model = make_queue(), Room(capacity=20)
    waiting = [Asking(queue, model, "a").come() for _ in range(3)]
    model.free = 1
    queue.serve(model)
    assert waiting[0].state == "runs"
    assert model.looks == 0
    Asking(queue, model, "b").come()
    model.free = 10
    queue.serve(model)
    assert model.looks > 0


def test_classes_are_served_in_order(make_queue) -> None:
    queue, model = make_queue(), Room()
    asking = {
        priority: Asking(queue, model, priority=priority).come() for priority in reversed(Priority)
    }
    for priority in Priority:
        model.free = 1
        queue.serve(model)
        assert asking[priority].state == "runs"


def test_a_tenant_with_much_service_waits_for_one_with_little(make_queue) -> None:
    queue, model = make_queue(), Room(free=20)
    for _ in range(20):
        Asking(queue, model, "hog").come()
    waiting = [Asking(queue, model, "hog").come() for _ in range(50)]
    light = Asking(queue, model, "light").come()
    model.free = 1
    queue.serve(model)
    assert light.state == "runs"
    assert all(each.state == "waits" for each in waiting)


@pytest.mark.parametrize(("weight", "share"), [(1.0, 0.5), (3.0, 0.75)])
def test_service_is_shared_by_weight(make_queue, weight, share) -> None:
    queue, model = make_queue(), Room()
    requests = [
        Asking(queue, model, tenant, weight=each).come()
        for _ in range(200)
        for tenant, each in (("a", weight), ("b", 1.0))
    ]
    for _ in range(200):
        model.free = 1
        queue.serve(model)
    served = Counter(each.ticket.tenant for each in requests if each.state == "runs")
    assert abs(served["a"] / 200 - share) < 0.02


def test_long_answers_count_as_more_service_than_short_ones(make_queue) -> None:
    queue, model = make_queue(), Room(free=2)
    running = [Asking(queue, model, tenant).come() for tenant in ("long", "short")]
    requests = [
        Asking(queue, model, tenant).come() for _ in range(300) for tenant in ("long", "short")
    ]
    for _ in range(100):
        for each in list(running):
            running.remove(each)
            each.end(output=900 if each.ticket.tenant == "long" else 100)
        running += [each for each in requests if each.state == "runs" and each not in running]
    ended = Counter(each.ticket.tenant for each in requests if each.state != "waits")
    assert ended["short"] > 5 * ended["long"]


def test_a_full_queue_refuses_with_429_and_when_to_retry(make_queue) -> None:
    queue, model = make_queue(requests=2), Room()
    waiting = [Asking(queue, model).come() for _ in range(2)]
    late = Asking(queue, model).come()
    assert [each.state for each in waiting] == ["waits", "waits"]
    assert late.answer.status == 429
    assert b"Retry-After: 5\r\n" in late.answer.lines


def test_a_full_queue_drops_the_newest_of_the_longest_for_another_tenant(make_queue) -> None:
    queue, model = make_queue(requests=4), Room()
    hog = [Asking(queue, model, "hog").come() for _ in range(4)]
    light = Asking(queue, model, "light").come()
    assert light.state == "waits"
    assert [each.state for each in hog] == ["waits", "waits", "waits", "refused"]
    Asking(queue, model, "light").come()
    assert Asking(queue, model, "light").come().state == "refused"


def test_a_full_queue_drops_the_last_class_first(make_queue) -> None:
    queue, model = make_queue(requests=1), Room()
    bulk = Asking(queue, model, priority=Priority.BULK).come()
    default = Asking(queue, model).come()
    assert (bulk.state, default.state) == ("refused", "waits")
    assert Asking(queue, model, "b", priority=Priority.BULK).come().state == "refused"


def test_bodies_are_bounded_together(make_queue) -> None:
    queue = make_queue(body_bytes=1000)
    one, other = Room(), Room()
    first = Asking(queue, one, size=600).come()
    assert Asking(queue, other, size=600).come().state == "refused"
    first.leave()
    assert Asking(queue, other, size=600).come().state == "waits"


@pytest.mark.parametrize(("ready", "seconds", "status"), [(True, 30, 429), (False, 60, 503)])
def test_patience_ends(make_queue, clock, ready, seconds, status) -> None:
    queue, model = make_queue(), Room(ready=ready)
    asking = Asking(queue, model).come()
    clock.now = seconds - 0.1
    queue.serve_and_expire()
    assert asking.state == "waits"
    clock.now = seconds
    queue.serve_and_expire()
    assert asking.answer.status == status
    assert b"Retry-After" in asking.answer.lines
    assert queue.waiting(model) == 0


def test_without_a_queue_the_answer_comes_at_once(make_queue) -> None:
    queue = make_queue(requests=0)
    assert Asking(queue, Room()).come().answer.status == 429
    assert Asking(queue, Room(ready=False)).come().answer.status == 503


def test_streams_get_heartbeats_and_others_none(make_queue, clock) -> None:
    queue, model = make_queue(heartbeat=5.0), Room()
    stream, unary = Asking(queue, model, streams=True).come(), Asking(queue, model).come()
    for clock.now in (4, 5, 6, 10, 11):
        queue.serve_and_expire()
    assert (stream.beats, unary.beats) == (2, 0)


def test_who_waits_for_a_model_to_start_hears_so_every_two_seconds(make_queue, clock) -> None:
    queue, model = make_queue(), Room(ready=False)
    stream = Asking(queue, model, streams=True).come()
    beats = {}
    for clock.now in (1.9, 2, 3.9, 4, 30):
        queue.serve_and_expire()
        beats[clock.now] = stream.beats
    assert beats == {1.9: 0, 2: 1, 3.9: 1, 4: 2, 30: 3}
    model.ready = True  # from now on it waits for room, as often as others do
    for clock.now in (32, 41.9, 42):
        queue.serve_and_expire()
        beats[clock.now] = stream.beats
    assert (beats[32], beats[41.9], beats[42]) == (4, 4, 5)


@pytest.mark.parametrize(("hold", "ends"), [(None, 60), (7.0, 30), (90.0, 90)])
def test_who_waits_while_the_last_replica_goes_is_held(make_queue, clock, hold, ends) -> None:
    """But not shorter than it was promised."""
    queue, model = make_queue(), Room()
    model.spec = ModelSpec("m", hold=hold)
    asking = Asking(queue, model).come()
    clock.now = 10
    model.ready = False
    queue.serve_and_expire()
    clock.now = ends - 0.1
    queue.serve_and_expire()
    assert asking.state == "waits"
    clock.now = ends
    queue.serve_and_expire()
    assert asking.answer.status == 503


def test_a_client_that_leaves_is_forgotten(make_queue) -> None:
    queue, model = make_queue(), Room()
    first, second = Asking(queue, model).come(), Asking(queue, model).come()
    first.leave()
    model.free = 1
    queue.serve(model)
    assert (first.state, second.state) == ("left", "runs")
    second.leave()  # it does not wait: nothing happens
    assert queue.waiting(model) == 0


def test_a_start_without_room_keeps_its_place(make_queue) -> None:
    """The room may be gone again when a request looks at it."""
    queue, model = make_queue(), Room()
    first, second = Asking(queue, model).come(), Asking(queue, model).come()

    def nothing_there() -> None:
        model.free = 0
        Asking.start(first)

    first.start = nothing_there
    model.free = 1
    queue.serve(model)
    assert (first.state, second.state) == ("waits", "waits")
    del first.start
    model.free = 1
    queue.serve(model)
    assert (first.state, second.state) == ("runs", "waits")


def test_retry_after_is_the_wait_at_the_rate_of_service(make_queue, clock) -> None:
    queue, model = make_queue(requests=40), Room()
    for _ in range(40):
        Asking(queue, model).come()
    for clock.now in range(10):
        model.free = 1
        queue.serve(model)
        Asking(queue, model).come()
    late = Asking(queue, model).come()
    assert b"Retry-After: 36\r\n" in late.answer.lines


def test_a_model_that_is_gone_ends_its_requests(make_queue) -> None:
    queue, model = make_queue(), Room(ready=False)
    asking = Asking(queue, model).come()
    queue.keep_models(())
    assert asking.answer.status == 503


def test_a_tenant_over_its_share_leaves_some_room_to_the_others(make_queue) -> None:
    queue, model = make_queue(headroom=0.2), Room(free=10, capacity=10)
    light = Asking(queue, model, "light").come()
    hog = [Asking(queue, model, "hog").come() for _ in range(20)]
    assert Counter(each.state for each in hog) == {"runs": 7, "waits": 13}
    assert Asking(queue, model, "light").come().state == "waits"  # behind: it is served at once
    queue.serve(model)
    assert model.free == 1
    light.end()
    assert Counter(each.state for each in hog)["runs"] == 7


def test_who_is_alone_has_it_all(make_queue) -> None:
    queue, model = make_queue(headroom=0.2), Room(free=10, capacity=10)
    hog = [Asking(queue, model, "hog").come() for _ in range(20)]
    assert Counter(each.state for each in hog) == {"runs": 10, "waits": 10}


def test_others_that_have_not_come_for_long_need_no_room(make_queue, clock) -> None:
    queue, model = make_queue(headroom=0.2), Room(free=10, capacity=10)
    Asking(queue, model, "light").come().end()
    clock.now = 20
    hog = [Asking(queue, model, "hog").come() for _ in range(20)]
    assert Counter(each.state for each in hog) == {"runs": 10, "waits": 10}


def test_without_keys_nothing_is_counted(make_queue) -> None:
    queue, model = make_queue(), Room(free=1)
    running, waiting = Asking(queue, model, "").come(), Asking(queue, model, "").come()
    running.end()
    assert (running.ticket.charged, waiting.state) == (0.0, "runs")


def test_refusals_are_told_with_their_reason(make_queue, clock) -> None:
    queue, model = make_queue(requests=1), Room()
    told = []
    queue.refused = lambda model, reason: told.append(reason)
    Asking(queue, model).come()
    Asking(queue, model).come()
    clock.now = 30
    queue.serve_and_expire()
    assert told == ["full", "timeout"]
