"""The search for how far each replica has a chain."""

from hypothesis import given
from hypothesis import strategies as st

from kvasir_router.index.prefix_search import prefix_depths

REPLICAS = 80


def found(held: list[list[bool]], length: int, back_scan: int = 0) -> dict[int, int]:
    masks = [sum(1 << i for i, blocks in enumerate(held) if blocks[at]) for at in range(length)]
    everyone = (1 << len(held)) - 1
    depths = {}
    for bits, depth in prefix_depths(masks.__getitem__, 0, length, everyone, back_scan=back_scan):
        for i in range(len(held)):
            if bits >> i & 1:
                assert i not in depths, "told twice"
                depths[i] = depth
    return depths


@given(st.data(), st.integers(1, 40))
def test_each_replica_is_found_at_its_depth(data: st.DataObject, length: int) -> None:
    wanted = data.draw(st.lists(st.integers(0, length), min_size=1, max_size=REPLICAS))
    held = [[at < depth for at in range(length)] for depth in wanted]
    expected = {i: depth for i, depth in enumerate(wanted) if depth}
    assert found(held, length) == expected
    assert found(held, length, back_scan=4) == expected


@given(st.lists(st.lists(st.booleans(), min_size=12, max_size=12), min_size=1, max_size=8))
def test_holes_never_make_it_claim_what_is_not_held(held: list[list[bool]]) -> None:
    """With holes the end may be any, but its own block and the ones before it are held."""
    for i, depth in found(held, 12, back_scan=4).items():
        assert all(held[i][max(0, depth - 5) : depth])


def test_a_hole_near_the_end_is_seen_by_looking_back() -> None:
    held = [[True] * 6 + [False] + [True] * 2 + [False] * 3]
    assert found(held, 12) == {0: 9}
    assert found(held, 12, back_scan=4) == {0: 6}
