"""Which predictions are believed."""

from kvasir_router.index.hit_check import (
    COOLDOWN_SECONDS,
    HITS_PER_VERDICT,
    Hit,
    HitCheck,
    HitSource,
)

LIE, TRUTH = HitSource.EXACT, HitSource.APPROXIMATE


def observe(check: HitCheck, replica, source: HitSource, cached: int, times: int) -> None:
    for _ in range(times):
        check.observed(replica, Hit(4, 1000.0, source), cached)


def test_a_source_that_lies_is_turned_off_for_its_replica_and_tried_again(
    make_replica, clock
) -> None:
    check, liar, other = HitCheck(clock), make_replica("liar"), make_replica("other")
    observe(check, liar, LIE, 499, HITS_PER_VERDICT - 1)
    assert check.believes(liar, LIE)
    observe(check, liar, LIE, 499, 1)
    assert not check.believes(liar, LIE)
    assert check.believes(liar, TRUTH)
    assert check.believes(other, LIE)
    assert check.turned_off == {(liar, LIE): 1}
    clock.now += COOLDOWN_SECONDS - 1
    assert not check.believes(liar, LIE)
    clock.now += 2
    assert check.believes(liar, LIE)
    observe(check, liar, LIE, 0, HITS_PER_VERDICT)
    assert not check.believes(liar, LIE)
    assert check.turned_off == {(liar, LIE): 2}


def test_a_source_that_is_mostly_right_stays(make_replica, clock) -> None:
    check, replica = HitCheck(clock), make_replica("r")
    for _ in range(10):
        observe(check, replica, LIE, 0, HITS_PER_VERDICT // 2 - 1)
        observe(check, replica, LIE, 5000, HITS_PER_VERDICT // 2 + 1)
    assert check.believes(replica, LIE)
    assert check.predicted[replica, LIE] == 1000 * 10 * HITS_PER_VERDICT
    # More than was predicted is not counted for it
    assert check.confirmed[replica, LIE] == 1000 * 10 * (HITS_PER_VERDICT // 2 + 1)


def test_more_than_predicted_is_only_counted(make_replica, clock) -> None:
    check, replica = HitCheck(clock), make_replica("r")
    for _ in range(200):
        check.observed(replica, None, 5000)
    check.observed(replica, None, 0)
    assert check.surprises[replica] == 200
    assert all(check.believes(replica, source) for source in HitSource)


def test_a_replica_that_starts_anew_is_believed(make_replica, clock) -> None:
    check, replica = HitCheck(clock), make_replica("r")
    observe(check, replica, LIE, 0, HITS_PER_VERDICT + 10)
    check.forget_replica(replica)
    assert check.believes(replica, LIE)
    assert not check.predicted
    observe(check, replica, LIE, 0, HITS_PER_VERDICT - 1)
    assert check.believes(replica, LIE)
