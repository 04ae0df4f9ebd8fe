from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvasir_engine.text.stop_strings import StopStrings

ALPHABET = "ab<"


def one_shot(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """The definition: cut at the match that ends first, of those the longest."""
    ends = [
        (text.find(stop) + len(stop), -len(stop), stop) for stop in stops if text.find(stop) >= 0
    ]
    if not ends:
        return text, None
    end, _, stop = min(ends)
    return text[: end if include else end - len(stop)], stop


@given(
    chunks=st.lists(st.text(ALPHABET, max_size=6), max_size=20),
    stops=st.lists(st.text(ALPHABET, min_size=1, max_size=5), min_size=1, max_size=4),
    include=st.booleans(),
)
def test_streamed_text_equals_the_one_shot_cut(chunks, stops, include):
    finder = StopStrings(stops, include_in_output=include)
    streamed = "".join(finder.push(chunk) for chunk in chunks) + finder.flush()
    assert (streamed, finder.matched) == one_shot("".join(chunks), stops, include)


@given(
    text=st.text(ALPHABET, max_size=40),
    stops=st.lists(st.text(ALPHABET, min_size=1, max_size=5), min_size=1, max_size=3),
)
def test_exactly_what_may_become_a_stop_string_is_held_back(text, stops):
    finder = StopStrings(stops)
    sent = "".join(finder.push(char) for char in text)
    if finder.matched is None:
        starts = [stop[:length] for stop in stops for length in range(1, len(stop))]
        held = max((len(start) for start in starts if text.endswith(start)), default=0)
        assert sent == text[: len(text) - held]


def test_unarmed_text_may_begin_a_match_but_not_end_one():
    finder = StopStrings(["END"])
    assert finder.push("END EN", armed=False) == "END "
    assert finder.push("D!") == ""
    assert finder.matched == "END"


def test_of_two_matches_that_end_together_the_longer_wins():
    finder = StopStrings(["c", "abc"])
    assert finder.push("xabc") == "x"
    assert finder.matched == "abc"


def test_nothing_comes_out_after_a_match():
    finder = StopStrings(["#"])
    assert finder.push("a#b") == "a"
    assert finder.push("c") == finder.flush() == ""
