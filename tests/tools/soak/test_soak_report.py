"""Whatever did not hold makes the soak fail, and says so in words."""

from __future__ import annotations

import json

from soaking.client import Outcome
from soaking.load import Counts
from soaking.report import (
    Fault,
    Findings,
    crashes,
    fault_table,
    gauge_trends,
    not_judged,
    problems,
    requests,
    short_lives,
    trends,
)
from soaking.sampling import Life, Sample

STEADY = Life("router", "a" * 36, "c" * 64, 10, 1)
LEAKING = Life("engine core", "b" * 36, "d" * 64, 11, 1)
SHORT = Life("engine core", "e" * 36, "f" * 64, 12, 1)


def samples(leak: float, seconds: int = 3600) -> list[Sample]:
    """A sample each 5 s, with a descriptor more each `1 / leak` seconds."""
    times = range(0, seconds, 5)
    return [Sample(1000.0 + at, 80.0, 50.0, 40.0 + int(at * leak), 7.0) for at in times]


BY_LIFE = {STEADY: samples(0), LEAKING: samples(1 / 300), SHORT: samples(0, 60)}


def outcome(failure: str | None = None, retries: int = 0, left: bool = False) -> Outcome:
    return Outcome("chat", "busy", 1.0, 3.5, retries, left, failure)


def findings(*outcomes: Outcome) -> Findings:
    counts = Counts()
    for each in outcomes:
        counts.add(each)
    return Findings(counts)


def test_a_soak_without_problems_has_none() -> None:
    good = findings(outcome(), outcome(retries=1), outcome(left=True))
    good.faults.append(Fault("x", 1.0, 2.0))
    good.idle.append({"at": 600, "left": []})
    assert problems(good, [trends({STEADY: BY_LIFE[STEADY]}, 1000.0)]) == []
    told = requests(good.counts)
    assert (told["all"], told["left_by_their_client"]) == (2, 1)
    assert told["sent_again_after_a_router_was_killed"] == 1
    assert told["longest_seconds"] == {"chat": 2.5}


def test_each_problem_is_told() -> None:
    bad = findings(outcome(), outcome("status 503: busy"), outcome("status 503: busy"))
    bad.faults.append(Fault("node drained", 1.0, 2.0, "could not be injected"))
    bad.idle.append({"at": 600, "left": ["router-1: body_bytes 5"]})
    bad.defects.append("busy is not Ready at the end")
    assert problems(bad, []) == [
        "lost 2: chat: status 503: busy",
        "at rest: router-1: body_bytes 5",
        "node drained: could not be injected",
        "busy is not Ready at the end",
    ]


def test_a_process_that_leaks_is_named() -> None:
    found = trends(BY_LIFE, 1000.0)
    [line] = problems(findings(), [found])
    assert line.startswith(f"engine core {'b' * 8}/11: fds grows by +1")
    assert set(found) == {f"router {'a' * 8}/10", f"engine core {'b' * 8}/11"}
    assert len(found[f"router {'a' * 8}/10"]["rss_mib"]["by_minute"].split()) == 60
    json.dumps(found)


def test_of_short_lives_the_largest_figures_are_told() -> None:
    found = short_lives(BY_LIFE)
    assert found["engine core"]["lives"] == 2
    assert found["engine core"]["longest_seconds"] == 3595
    assert found["engine core"]["largest_fds"] == 51
    assert found["router"]["largest_threads"] == 7


def test_gauges_that_may_grow_are_told_but_not_judged() -> None:
    growing = [(float(s), float(s)) for s in range(0, 3600, 15)]
    names = ("kvasir_router_index_blocks", "kvasir_router_client_connections")
    found = gauge_trends({("router", name): growing for name in names})
    [line] = problems(findings(), [found])
    assert "client_connections grows by +3.6e+03 an hour" in line
    assert set(found["router"]) == set(names)


def test_faults_are_counted_by_kind() -> None:
    found = fault_table([Fault("b", 1.0, 3.0), Fault("a", 0.0, 0.5), Fault("b", 9.0, 10.0)])
    assert found == {
        "a": {"times": 1, "longest_seconds": 0.5},
        "b": {"times": 2, "longest_seconds": 2.0},
    }


def test_what_could_not_be_judged_is_told() -> None:
    found = trends(BY_LIFE, 1000.0)
    assert not_judged(found, ("router", "engine core")) == []
    assert not_judged(found, ("router", "operator")) == [
        "no life of the operator was long enough to judge"
    ]


def test_a_crash_is_told_and_a_kill_is_not() -> None:
    def pod(code: int) -> dict[str, object]:
        ended = {"terminated": {"exitCode": code, "finishedAt": "12:00"}}
        status = {"state": {"running": {}}, "lastState": ended}
        return {"metadata": {"name": f"a{code}"}, "status": {"containerStatuses": [status]}}

    pods = [pod(137), pod(139), pod(0), pod(134), {"metadata": {"name": "b"}, "status": {}}]
    assert crashes(pods) == ["a139 ended with 139 at 12:00", "a134 ended with 134 at 12:00"]
