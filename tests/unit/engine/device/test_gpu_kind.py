"""Kinds of GPUs, and the table of the most similar one."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from kvasir_engine.device.gpu_kind import GpuKind, gpu_kind, nearest, parsed

H200 = GpuKind(9, 0, 132, 4920)
H100 = GpuKind(9, 0, 132, 3350)
H100_PCIE = GpuKind(9, 0, 114, 2040)
A100 = GpuKind(8, 0, 108, 2040)


@pytest.fixture
def tables() -> list[Path]:
    return [Path(f"skinny-{kind}.json") for kind in (H200, H100)] + [Path("skinny.json")]


def test_a_name_holds_a_kind() -> None:
    assert str(H200) == "9.0-132sm-4920gbs"
    assert parsed(f"algorithms-{H200}-cublaslt-130100.json") == H200
    assert parsed("nvidia_h200.json") is None


def test_the_most_similar_kind_is_taken(tables: list[Path]) -> None:
    assert nearest(tables, H100) == tables[1]
    assert nearest(tables, H200) == tables[0]
    assert nearest(tables, H100_PCIE) == tables[1]
    # GH200, of 4.0 TB/s: between the two.
    assert nearest(tables, GpuKind(9, 0, 132, 4000)) == tables[1]
    assert nearest(tables, GpuKind(9, 0, 132, 4200)) == tables[0]


def test_cards_of_one_product_are_alike() -> None:
    assert H200.is_like(H200)
    assert H200.is_like(GpuKind(9, 0, 132, 4810))
    assert not H200.is_like(H100)
    assert not H200.is_like(A100)
    assert not H200.is_like(None)


def test_another_capability_says_nothing(tables: list[Path]) -> None:
    assert nearest(tables, A100) is None
    assert nearest([], H200) is None
    assert H200.distance(A100) is None


def test_an_unknown_bandwidth_leaves_the_size() -> None:
    assert GpuKind(9, 0, 132, 0).distance(H200) == 0
    assert GpuKind(9, 0, 132, 0).distance(H100_PCIE) == pytest.approx(math.log(132 / 114))


def test_it_is_read_from_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    told = SimpleNamespace(
        major=9, minor=0, multi_processor_count=132, memory_clock_rate=2_619_000,
        memory_bus_width=5120,
    )  # fmt: skip
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: told)
    assert gpu_kind(torch.device("cuda", 0)) == H100
    del told.memory_clock_rate
    assert gpu_kind(torch.device("cuda", 0)) == GpuKind(9, 0, 132, 0)
