"""Virtual token counters."""

from kvasir_router.admission.fairness import ServiceCounters


def test_the_tenant_with_the_least_weighted_service_is_next() -> None:
    counters = ServiceCounters()
    counters.charge("a", 100, weight=1)
    counters.charge("b", 300, weight=4)
    assert counters.least({"a": 0, "b": 0}) == "b"


def test_a_tenant_that_comes_back_is_lifted_to_the_least_that_waits() -> None:
    counters = ServiceCounters()
    counters.charge("a", 500, 1)
    counters.charge("b", 900, 1)
    counters.came("idle", {"a": 0, "b": 0})
    assert counters.served("idle") == 500


def test_among_equals_who_came_last_is_next() -> None:
    counters = ServiceCounters()
    counters.charge("hog", 500, 1)
    counters.came("light", {"hog": 0})
    assert counters.least({"hog": 0, "light": 0}) == "light"


def test_without_anyone_waiting_the_last_that_left_is_the_measure() -> None:
    counters = ServiceCounters()
    counters.charge("a", 700, 1)
    counters.left("a")
    counters.came("idle", {})
    assert counters.served("idle") == 700


def test_being_lifted_never_lowers() -> None:
    counters = ServiceCounters()
    counters.charge("a", 10, 1)
    counters.charge("b", 700, 1)
    counters.came("b", {"a": 0})
    assert counters.served("b") == 700


def test_a_prediction_follows_the_tenants_answers() -> None:
    counters = ServiceCounters()
    before = counters.predict("a", 100)
    for _ in range(50):
        counters.learn("a", 1000)
    assert before < counters.predict("a", 100)
    assert abs(counters.predict("a", 100) - 2100) < 10
    assert counters.predict("b", 100) == before


def test_a_prediction_begins_at_128_tokens_and_takes_a_fifth_of_each_answer() -> None:
    counters = ServiceCounters()
    assert counters.predict("a", 100) == 100 + 2 * 128
    counters.learn("a", 28)
    assert counters.predict("a", 1) == 1 + 2 * 108
    counters.learn("a", 208)
    assert counters.predict("a", 0) == 2 * 128


def test_service_is_counted_by_weight_and_can_be_taken_back() -> None:
    counters = ServiceCounters()
    assert counters.served("a") == 0
    counters.charge("a", 100, weight=4)
    counters.charge("a", 20, weight=0.5)
    assert counters.served("a") == 65
    counters.charge("a", -60, weight=4)
    assert counters.served("a") == 50
