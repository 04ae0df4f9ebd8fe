"""The table of requests that are refused."""

from kvasir_router.fleet.poison_table import MAX_BODIES, PoisonTable


def test_the_same_body_is_refused_for_its_time() -> None:
    now = 0.0
    table = PoisonTable(60.0, lambda: now)
    assert not table.holds(b"a")
    table.add(b"a")
    assert table.holds(b"a")
    assert not table.holds(b"b")
    now = 59.9
    assert table.holds(b"a")
    now = 60.0
    assert not table.holds(b"a")
    assert len(table) == 0


def test_it_is_bounded_and_the_oldest_goes_first() -> None:
    table = PoisonTable()
    for number in range(MAX_BODIES):
        table.add(b"%d" % number)
    table.add(b"0")
    table.add(b"new")
    assert len(table) == MAX_BODIES
    assert table.holds(b"0")
    assert not table.holds(b"1")
    assert table.holds(b"new")


def test_a_long_body_is_known_by_its_length_its_ends_and_samples() -> None:
    table = PoisonTable()
    body = bytearray(b"word " * 400_000)
    table.add(bytes(body))
    assert table.holds(bytes(body))
    assert not table.holds(bytes(body) + b" ")
    for at in (0, 100_000, len(body) - 1, len(body) - 100_000, 128 * 1024):
        changed = body.copy()
        changed[at] ^= 1
        assert not table.holds(bytes(changed)), at
