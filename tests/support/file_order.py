"""Order in which processes of pytest-xdist take test files."""

from __future__ import annotations

from collections.abc import Iterable

WAITING = "tests/integration/"
SPREAD = 0.9


def mixed(files: Iterable[str]) -> list[str]:
    """Return `files` with those whose tests mostly wait for other processes spread evenly over
    those that compute: together they keep the cores busy, one kind alone leaves them idle or waits
    for them.

    The long ones that wait begin within the first nine tenths: none is left to run alone at the
    end.
    """
    found = sorted(set(files))
    waiting = [name for name in found if name.startswith(WAITING)]
    others = [name for name in found if not name.startswith(WAITING)]
    places = {name: (at + 0.5) / len(others) for at, name in enumerate(others)}
    places |= {name: SPREAD * (at + 0.5) / len(waiting) for at, name in enumerate(waiting)}
    return sorted(found, key=places.__getitem__)
