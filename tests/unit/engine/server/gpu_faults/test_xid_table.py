from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvasir_engine.server.gpu_faults.xid_table import (
    DRAIN_XIDS,
    MAX_XIDS,
    OBSERVED_XIDS,
    OWN_XIDS,
    parse_xids,
    xid_clause,
    xid_kind,
)
from kvasir_engine.settings import SettingsError


def test_no_xid_is_of_two_minds() -> None:
    assert not DRAIN_XIDS.keys() & OWN_XIDS.keys()
    assert not DRAIN_XIDS.keys() & OBSERVED_XIDS.keys()
    assert not OWN_XIDS.keys() & OBSERVED_XIDS.keys()


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 63, 92])
def test_what_is_no_fault_of_the_gpu_ends_nothing(xid: int) -> None:
    assert xid not in parse_xids("")


@pytest.mark.parametrize("xid", [48, 64, 74, 79, 94, 95, 119, 120])
def test_a_fault_of_the_gpu_ends_the_engine(xid: int) -> None:
    assert xid in parse_xids(" ")


def test_the_label_has_a_bounded_number_of_values() -> None:
    kinds = {xid_kind(xid) for xid in range(1, 10_000)}
    assert len(kinds) == len(DRAIN_XIDS) + len(OWN_XIDS) + len(OBSERVED_XIDS) + 1
    assert xid_kind(79) == "xid_79"
    assert xid_kind(9876) == "xid_other"


def test_an_unknown_xid_is_told_with_its_number() -> None:
    assert xid_clause(79) == "Xid 79, it has fallen off the bus"
    assert xid_clause(777) == "Xid 777, which is not known here"


def test_a_list_of_xids_takes_the_place_of_the_default() -> None:
    assert parse_xids("48, 79,92") == {48, 79, 92}


@pytest.mark.parametrize(
    "text", ["79,", "seventy", "0", "-1", "10000", "48;79", "\u0661", "9" * 500]
)
def test_a_bad_list_is_refused_with_its_flag(text: str) -> None:
    with pytest.raises(SettingsError, match=r"--gpu-fault-xids takes numbers from 1 to 9999"):
        parse_xids(text)


def test_a_long_list_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"--gpu-fault-xids takes at most 64 Xids, got 65\."):
        parse_xids(",".join("79" for _ in range(MAX_XIDS + 1)))


def test_the_page_has_every_xid_in_its_row() -> None:
    page = Path(__file__).parents[5].joinpath("docs/gpu_faults.md").read_text()
    table, _, _ = page.partition("## What happens then")
    rows = [line.split("|") for line in table.splitlines() if line.startswith("| ")]
    ends = {int(x) for row in rows if "ends" in row[3] for x in re.findall(r"\d+", row[2])}
    told = {int(x) for row in rows if "told" in row[3] for x in re.findall(r"\d+", row[2])}
    assert ends == DRAIN_XIDS.keys()
    assert told == OWN_XIDS.keys() | OBSERVED_XIDS.keys()
