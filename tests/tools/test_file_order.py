"""Order in which processes of pytest-xdist take test files."""

from itertools import pairwise

from support.file_order import mixed

WAITING = [f"tests/integration/test_{at}.py" for at in range(10)]
OTHERS = [f"tests/unit/test_{at:03}.py" for at in range(100)]


def test_files_that_wait_are_spread_over_the_others_and_none_is_last() -> None:
    order = mixed([*OTHERS, *WAITING, *WAITING])
    assert sorted(order) == [*WAITING, *OTHERS]
    places = [order.index(name) for name in WAITING]
    assert all(9 <= later - earlier <= 11 for earlier, later in pairwise(places))
    assert places[0] < 6
    assert places[-1] < len(order) - 10


def test_files_of_one_kind_keep_their_order() -> None:
    assert mixed(OTHERS) == OTHERS
    assert mixed(WAITING[::-1]) == WAITING
    assert mixed([]) == []
