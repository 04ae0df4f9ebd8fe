"""The queue: order, bounds, patience, departures."""

from collections import Counter

import pytest
from support.waiting_requests import Asking, Room

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


@pytest.mark.parametrize("requests", [2, 300])
def test_a_full_queue_refuses_with_429_and_when_to_retry(make_queue, requests) -> None:
    queue, model = make_queue(requests=requests), Room()
    waiting = [Asking(queue, model).come() for _ in range(requests)]
    late = Asking(queue, model).come()
    assert {each.state for each in waiting} == {"waits"}
    assert late.answer.status == 429
    assert b"Retry-After: 5\r\n" in late.answer.lines


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


def test_bodies_may_fill_the_room_there_is(make_queue) -> None:
    queue, model = make_queue(body_bytes=1000), Room()
    first, second = (Asking(queue, model, size=500).come() for _ in range(2))
    assert (first.state, second.state) == ("waits", "waits")
    assert Asking(queue, model, size=1).come().state == "refused"
    model.free = 1
    queue.serve(model)
    assert Asking(queue, model, size=500).come().state == "waits"


def test_who_waits_is_counted_with_its_tokens(make_queue) -> None:
    queue, model = make_queue(), Room()
    assert (queue.waiting(model), queue.waiting_tokens(model)) == (0, 0)
    first = Asking(queue, model, size=400).come()
    Asking(queue, model, "b", size=100).come()
    assert (queue.waiting(model), queue.waiting_tokens(model)) == (2, 125)
    first.leave()
    assert (queue.waiting(model), queue.waiting_tokens(model)) == (1, 25)


def test_a_defect_ends_its_own_request(make_queue) -> None:
    queue, model, ended = make_queue(), Room(), []
    first, second = Asking(queue, model).come(), Asking(queue, model).come()

    def fail() -> None:
        raise RuntimeError("start")

    first.start, first.defect = fail, ended.append  # type: ignore[attr-defined]
    model.free = 1
    queue.serve(model)
    assert [str(error) for error in ended] == ["start"]
    assert second.state == "runs"


def test_what_a_tenant_was_charged_is_corrected_by_what_it_used(make_queue) -> None:
    queue, model = make_queue(), Room(free=1)
    running = Asking(queue, model, size=400, weight=2.0).come()
    counters = queue._queues[model].counters
    predicted = 100 + 2 * 128
    assert (running.ticket.charged, counters.served("a")) == (predicted, predicted / 2)
    running.end(prompt=90, output=10)
    assert (running.ticket.charged, counters.served("a")) == (0, (90 + 2 * 10) / 2)
    assert counters.predict("a", 0) < 2 * 128
    before = counters.predict("a", 0)
    other = Asking(queue, model).come()
    other.end(output=0)
    assert counters.predict("a", 0) == before, "no answer teaches nothing"


def test_what_finds_no_replica_is_not_charged(make_queue) -> None:
    queue, model = make_queue(), Room()
    asking = Asking(queue, model).come()
    counters = queue._queues[model].counters
    assert (asking.state, asking.ticket.charged, counters.served("a")) == ("waits", 0, 0)


def test_the_refusal_says_how_many_wait(make_queue) -> None:
    queue, model = make_queue(requests=1), Room()
    Asking(queue, model).come()
    late = Asking(queue, model).come()
    assert b"all the requests they may; 1 requests wait." in late.answer.body
    none = make_queue(requests=0)
    assert b"all the requests they may." in Asking(none, model).come().answer.body


@pytest.mark.parametrize("ready", [True, False])
def test_one_with_somewhere_else_to_go_waits_no_longer_than_it_wants(
    make_queue, clock, ready
) -> None:
    queue, model = make_queue(timeout=30, hold=60), Room(ready=ready)
    refused = []
    queue.refused = lambda model, reason: refused.append(reason)
    leaves, stays = Asking(queue, model), Asking(queue, model)
    leaves.patience, leaves.has_fallback = 5.0, True
    for each in (leaves, stays):
        each.come()
    clock.now = 4.9
    queue.serve_and_expire()
    assert leaves.state == "waits"
    clock.now = 5.0
    queue.serve_and_expire()
    assert (leaves.state, leaves.fallback_reason) == ("elsewhere", "queue_time")
    assert stays.state == "waits"
    assert refused == []
    assert queue.waiting(model) == 1


def test_where_no_more_may_wait_one_goes_elsewhere(make_queue) -> None:
    queue, model = make_queue(requests=1), Room()
    Asking(queue, model).come()
    late = Asking(queue, model)
    late.has_fallback = True
    late.come()
    assert (late.state, late.fallback_reason) == ("elsewhere", "queue_full")


def test_a_model_is_wanted_by_those_who_went_elsewhere_for_a_while(make_queue, clock) -> None:
    queue, model = make_queue(), Room()
    assert queue.wanting(model) == 0
    for clock.now in (0.0, 3.0):
        queue.missed(model)
    Asking(queue, model).come()
    assert queue.wanting(model) == 3
    assert queue.waiting(model) == 1
    clock.now = 11.0
    assert queue.wanting(model) == 2
    clock.now = 14.0
    assert queue.wanting(model) == 1
