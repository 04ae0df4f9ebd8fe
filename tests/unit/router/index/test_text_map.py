"""What is known of texts, and for how long."""

from kvasir.wire.block_hash import HASH_BYTES
from kvasir_router.index.block_sink import PromptReport
from kvasir_router.index.text_map import TextMap


def report(texts: list[int], first: int = 1) -> PromptReport:
    counts = list(range(first, first + len(texts)))
    return PromptReport(
        texts, counts, b"".join(count.to_bytes(HASH_BYTES, "little") for count in counts)
    )


def test_what_is_reported_is_known() -> None:
    texts = TextMap()
    texts.learn(report([11, 12, 13]))
    texts.learn(report([24, 25], first=4))
    assert [texts.at(text) for text in (11, 13, 24, 99)] == [(1, 1), (3, 3), (4, 4), (0, 0)]
    assert texts.known([11, 12, 13, 24, 25]) == 5
    assert texts.known([11, 12, 77]) == 2
    assert texts.known([77]) == 0
    assert texts.known([]) == 0
    texts.learn(report([11], first=9))
    assert texts.at(11) == (9, 9)


def test_a_text_block_may_determine_nothing() -> None:
    texts = TextMap()
    texts.learn(PromptReport([5, 6], [0, 2], bytes(HASH_BYTES) + b"\x07" + bytes(15)))
    assert texts.known([5, 6]) == 2
    assert texts.at(5) == (0, 0)
    assert texts.at(6) == (2, 7)


def test_a_report_whose_parts_do_not_fit_is_left_out() -> None:
    texts = TextMap()
    texts.learn(PromptReport([5, 6], [1, 2], bytes(HASH_BYTES)))
    assert len(texts) == 0


def test_the_end_of_a_chain_is_found_though_its_start_is_forgotten() -> None:
    texts = TextMap()
    texts.learn(report([13, 14], first=3))
    assert texts.known([11, 12, 13, 14, 15]) == 4


def test_it_is_bounded_and_keeps_what_is_used() -> None:
    texts = TextMap(max_blocks=1000)
    used = list(range(1, 101))
    texts.learn(report(used))
    for start in range(1000, 20_000, 100):
        texts.learn(report(list(range(start, start + 100))))
        texts.used([*used, 5])
        assert len(texts) <= 1100
    assert texts.known(used) == 100
    assert texts.known(list(range(1000, 1100))) == 0
    assert texts.known(list(range(19_900, 20_000))) == 100
