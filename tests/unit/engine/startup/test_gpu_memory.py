"""One GPU's memory and its owners. The driver is a stand-in: it says how much is free."""

from __future__ import annotations

import pytest
import torch

from kvasir_engine.startup.gpu_memory import GRAPH_OVERHEAD, GpuMemory

GIB = 1 << 30


class Driver:
    """A GPU of 80 GiB, of which a GiB is taken."""

    free = 79 * GIB

    def take(self, amount: float) -> None:
        self.free -= int(amount * GIB)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    driver = Driver()
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (driver.free, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    return driver


@pytest.fixture
def memory(driver: Driver) -> GpuMemory:
    memory = GpuMemory(torch.device("cuda"), 0.75)
    driver.take(16)
    memory.took("weights")
    driver.take(0.5)
    memory.took("rows")
    return memory


def test_every_owner_has_what_went_while_it_took(memory: GpuMemory) -> None:
    taken = {name: size / GIB for name, size in memory.owners.items()}
    assert taken == {"other processes, CUDA context": 1.0, "weights": 16.0, "rows": 0.5}
    assert (memory.allowed, memory.beyond) == (60 * GIB, 20 * GIB)


@pytest.mark.parametrize(("graphs", "left"), [(False, 40.5), (True, 40.5 - 2.5)])
def test_step_and_graphs_come_before_the_cache(
    memory: GpuMemory, graphs: bool, left: float
) -> None:
    memory.expect(2 * GIB, graphs=graphs)
    assert memory.graphs == (2 * GIB + GRAPH_OVERHEAD if graphs else 0)
    assert memory.left_for_kv() == left * GIB


def test_too_much_leaves_less_than_nothing_and_is_told_by_part(memory: GpuMemory) -> None:
    memory.expect(22 * GIB, graphs=True)
    assert memory.left_for_kv() == -2 * GIB
    assert memory.taken() == {
        "weights and buffers": 17.5 * GIB,
        "the largest step": 22 * GIB,
        "CUDA graphs": 22.5 * GIB,
    }
    memory.expect(22 * GIB, graphs=False)
    assert "CUDA graphs" not in memory.taken()
    assert (memory.free(), memory.free_for_kv()) == (62.5 * GIB, 40.5 * GIB)


def test_the_table_adds_up_to_the_share(memory: GpuMemory, driver: Driver) -> None:
    memory.expect(2 * GIB, graphs=True)
    driver.take(37.5)
    memory.took("KV cache")
    driver.take(1.25)
    memory.took("CUDA graphs")
    title, *rows = memory.table().splitlines()
    assert title == "GPU memory, 60.0 GiB of 80.0 GiB (--gpu-memory-utilization 0.75):"
    sizes = {name.strip(): float(size) for name, size in (r[:-4].rsplit(None, 1) for r in rows)}
    assert sizes["CUDA graphs"] == 1.25
    assert sizes["not used"] == 1.75
    assert sum(sizes.values()) == pytest.approx(60, abs=0.05)
