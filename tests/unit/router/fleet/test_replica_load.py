"""Reports and credit: no herd between two reports, nothing counted twice for long."""

import time

from kvasir_router.fleet.replica_load import LoadReport, ReplicaLoad


def report(inflight: int, age: float = 0.0) -> LoadReport:
    return LoadReport(1, 0, inflight, 0.1, time.monotonic() - age)


def test_credit_counts_at_once_and_goes_with_the_request() -> None:
    load = ReplicaLoad()
    load.give(100)
    load.give(50)
    assert load.prefill_tokens == 150
    load.take_back(100)
    assert load.prefill_tokens == 50


def test_a_report_holds_what_came_before_it() -> None:
    load = ReplicaLoad()
    load.report_every = 0.2
    load.give(100)
    load.reported(report(400))
    assert load.prefill_tokens == 400
    load.give(30)
    assert load.prefill_tokens == 430


def test_what_this_router_knows_of_is_never_less() -> None:
    load = ReplicaLoad()
    load.report_every = 0.2
    load.give(100)
    load.reported(report(0))
    assert load.prefill_tokens == 100
    load.take_back(100)
    assert load.prefill_tokens == 0


def test_an_end_before_the_next_report_is_not_counted_below_zero() -> None:
    load = ReplicaLoad()
    load.report_every = 0.2
    load.give(100)
    load.reported(report(100))
    load.give(10)
    load.take_back(100)
    load.take_back(10)
    assert load.prefill_tokens == 100


def test_silence_makes_a_report_stale_and_credit_all_there_is() -> None:
    load = ReplicaLoad()
    assert not load.stale, "without a source nothing is late"
    load.report_every = 0.2
    assert load.stale, "a source that has said nothing yet"
    load.reported(report(400))
    assert not load.stale
    load.reported(report(400, age=0.6))
    load.give(7)
    assert load.stale
    assert load.prefill_tokens == 7


def test_silence_while_this_process_stood_still_makes_nothing_stale() -> None:
    load = ReplicaLoad()
    load.report_every = 0.2
    load.awake_since = lambda: time.monotonic() - 0.3
    load.reported(report(400, age=9))
    assert not load.stale
    assert load.prefill_tokens == 400
    load.awake_since = lambda: time.monotonic() - 0.6
    assert load.stale


def test_what_a_process_said_goes_with_it() -> None:
    load = ReplicaLoad()
    load.report_every = 0.2
    load.reported(report(400, age=9))
    load.give(7)
    load.lost()
    assert not load.stale
    assert load.prefill_tokens == 7
