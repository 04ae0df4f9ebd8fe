"""Silence is counted from what was heard, and only while somebody listened."""

from kvasir_router.feeds.silence import SilenceWatch


def make() -> SilenceWatch[str]:
    return SilenceWatch(limit=0.5, tick=0.05)


def look(watch: SilenceWatch[str], start: float, end: float) -> list[tuple[float, str]]:
    """What is found from `start` to `end`, looking at every tick."""
    found = []
    steps = round((end - start) / 0.05)
    for step in range(1, steps + 1):
        now = round(start + step * 0.05, 2)
        found += [(now, name) for name in watch.expired(now)]
    return found


def test_silence_is_told_once() -> None:
    watch = make()
    watch.heard("a", 0.0)
    assert look(watch, 0.0, 2.0) == [(0.55, "a")]


def test_who_speaks_is_not_silent_and_who_never_spoke_neither() -> None:
    watch = make()
    watch.expired(0.0)
    for tenth in range(20):
        watch.heard("a", tenth / 10)
        assert look(watch, tenth / 10, tenth / 10 + 0.1) == []


def test_who_speaks_again_is_watched_again() -> None:
    watch = make()
    watch.heard("a", 0.0)
    assert look(watch, 0.0, 1.0) == [(0.55, "a")]
    watch.heard("a", 1.0)
    assert look(watch, 1.0, 2.0) == [(1.55, "a")]


def test_who_is_forgotten_is_not_missed() -> None:
    watch = make()
    watch.heard("a", 0.0)
    watch.forget_source("a")
    watch.forget_source("b")
    assert look(watch, 0.0, 2.0) == []


def test_nobody_is_blamed_for_the_listeners_own_pause() -> None:
    watch = make()
    watch.heard("a", 0.0)
    assert look(watch, 0.0, 0.3) == []
    assert watch.expired(5.0) == [], "the loop stood still: what they said was not read"
    assert look(watch, 5.0, 5.5) == []
    assert look(watch, 5.5, 5.7) == [(5.55, "a")]
