"""One model's queue: who is next, who goes when it is full, and how long one waits."""

import pytest
from support.waiting_requests import Asking, Room

from kvasir_router.admission.model_queue import ModelQueue, QueueEntry
from kvasir_router.admission.ticket import Priority


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


@pytest.mark.parametrize(
    ("waiting", "served_at", "now", "seconds"),
    [
        (0, [], 100, 5),
        (2, [0], 0, 2),
        (2, [0], 0.5, 2),
        (4, [0, 0], 10, 20),
        (5, [0, 5], 10, 25),
        (3, [0, 5, 6, 7], 10, 8),
        (9, [0], 30, 60),
        (2, [0], 31, 5),
        (2, [0, 5], 31, 52),
        (3, [0] * 40, 1, 1),
        (2, [*range(100)], 100, 2),
        (13, [0] * 50 + [10] * 50, 10, 3),
        (32, [0] * 50 + [10] * 50, 10, 5),
    ],
)
def test_when_to_retry(waiting, served_at, now, seconds) -> None:
    queue = ModelQueue(Room())
    for _ in range(waiting):
        queue.add(QueueEntry(Asking(None, Room()), 0.0, 0.0, 1))
    for at in served_at:
        queue.served(at)
    assert queue.retry_after(now) == seconds


def test_a_queue_counts_places_and_bytes() -> None:
    queue = ModelQueue(Room())
    one, two = (QueueEntry(Asking(None, Room(), tenant), 0.0, 0.0, 7) for tenant in "ab")
    queue.add(one)
    queue.add(two)
    assert (queue.count, queue.size, list(queue)) == (2, 14, [one, two])
    queue.remove(one)
    assert (queue.count, queue.size, list(queue)) == (1, 7, [two])
    again = QueueEntry(Asking(None, Room(), "b"), 0.0, 0.0, 1)
    queue.add(again, first=True)
    assert list(queue) == [again, two]


@pytest.mark.parametrize("distance", [31, 32])
def test_so_many_of_a_tenants_requests_are_looked_at(make_queue, distance) -> None:
    queue, model = make_queue(), Room()
    asking = [Asking(queue, model).come() for _ in range(40)]
    for each in asking:
        each.preferred_has_room = False
    asking[distance].preferred_has_room = True
    model.free = 1
    queue.serve(model)
    assert asking[distance if distance < 32 else 0].state == "runs"


def test_the_longest_queue_is_by_weight(make_queue) -> None:
    queue, model = make_queue(requests=5), Room()
    heavy = [Asking(queue, model, "heavy", weight=4.0).come() for _ in range(3)]
    light = [Asking(queue, model, "light").come() for _ in range(2)]
    assert Asking(queue, model, "heavy", weight=4.0).come().state == "waits"
    assert [each.state for each in heavy] == ["waits"] * 3
    assert [each.state for each in light] == ["waits", "refused"]


@pytest.mark.parametrize("waiting", [1, 31, 64, 500])
@pytest.mark.parametrize("tenant", ["a", "b"])
def test_who_waits_for_a_full_adapter_holds_up_nobody(make_queue, waiting, tenant) -> None:
    queue, model = make_queue(requests=2000), Room()
    model.full = {"sql", "chat"}
    held = [
        Asking(queue, model, adapter=adapter).come()
        for _ in range(waiting)
        for adapter in ("sql", "chat")
    ]
    base = [Asking(queue, model, tenant).come() for _ in range(3)]
    model.free = 2
    queue.serve(model)
    assert [each.state for each in base] == ["runs", "runs", "waits"]
    assert {each.state for each in held} == {"waits"}
    model.full.remove("chat")
    model.free = 1
    queue.serve(model)
    assert [each.state for each in held[:2]] == ["waits", "runs"], "the first of those that may"
    base[2].leave()
    model.full.clear()
    model.free = 2
    queue.serve(model)
    assert [each.state for each in held[:4]] == ["runs", "runs", "runs", "waits"][: 2 * waiting]


def test_a_tenant_whose_adapter_is_full_does_not_take_the_turn_of_others(make_queue) -> None:
    queue, model = make_queue(), Room(free=5)
    for _ in range(5):
        Asking(queue, model, "much").come()
    model.full = {"sql"}
    little = Asking(queue, model, "little", adapter="sql", priority=Priority.INTERACTIVE).come()
    waits = Asking(queue, model, "much", priority=Priority.BULK).come()
    model.free = 1
    queue.serve(model)
    assert (little.state, waits.state) == ("waits", "runs")
    later = Asking(queue, model, "much").come()
    model.full.clear()
    model.free = 1
    queue.serve(model)
    assert (little.state, later.state) == ("runs", "waits")


def test_the_newest_of_a_tenant_is_dropped_whatever_adapter_it_is_for(make_queue) -> None:
    queue, model = make_queue(requests=3), Room()
    first, second, newest = (
        Asking(queue, model, "hog", adapter=adapter).come() for adapter in ("sql", "", "sql")
    )
    Asking(queue, model, "light").come()
    assert [each.state for each in (first, second, newest)] == ["waits", "waits", "refused"]
