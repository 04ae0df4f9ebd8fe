from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir.quantity import format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("80GiB", 80 * 2**30),
        ("80Gi", 80 * 2**30),
        ("80 gib", 80 * 2**30),
        ("24G", 24 * 10**9),
        ("1.5GB", 1_500_000_000),
        ("0.5Ki", 512),
        ("1024", 1024),
        (1024, 1024),
    ],
)
def test_amounts(text: str | int, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "GiB", "-1G", "1e9", "1Zi", "1.2.3G", "१G", "nan"])
def test_what_is_no_amount(text: str) -> None:
    with pytest.raises(ValueError, match="is not an amount of memory; write for example 80GiB"):
        parse_bytes(text)


@given(st.integers(0, 2**50))
def test_a_shown_amount_reads_back_within_its_last_digit(count: int) -> None:
    assert parse_bytes(format_bytes(count)) == pytest.approx(count, rel=0.06)
