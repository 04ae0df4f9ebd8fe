"""What the communicator asks of which library. GPUs do the rest: stand-ins note the calls."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch

from kvasir_engine.device.communicators.one_shot_kernel import OneShotSum
from kvasir_engine.device.communicators.symmetric_memory import (
    SymmetricMemoryCommunicator,
    symmetric_memory_or_nccl,
)

LIBRARY = "torch.distributed._symmetric_memory"
CPU = torch.device("cpu")


class Nccl:
    """One of two ranks; the other has the same numbers."""

    name = "NCCL"
    rank, size, device = 1, 2, CPU

    def __init__(self) -> None:
        self.group = type("Group", (), {"group_name": "world"})()
        self.calls: list[str] = []

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.append("all_reduce")
        return x.mul_(2)

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.append("all_gather")
        return torch.stack([x, x])

    def all_reduce_min(self, numbers: list[int]) -> list[int]:
        return numbers

    def close(self, *, failed: bool = False) -> None:
        self.calls.append("leave" if failed else "close")


class Mapped:
    """Memory of which every rank sees its own."""

    def __init__(self, memory: torch.Tensor) -> None:
        self._memory = memory

    def get_buffer(self, rank: int, sizes: tuple[int], dtype: torch.dtype) -> torch.Tensor:
        assert rank in (0, 1)
        assert (sizes, dtype) == (self._memory.shape, self._memory.dtype)
        return self._memory


@pytest.fixture
def ops(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the operations called: they double what lies in the buffer."""
    called: list[str] = []

    def stand_in(name: str) -> Any:
        def op(buffer: torch.Tensor, reduce: str, group: str, out: torch.Tensor) -> torch.Tensor:
            assert (reduce, group) == ("sum", "world")
            called.append(name)
            return out.copy_(2 * buffer)

        return op

    monkeypatch.setattr(f"{LIBRARY}.empty", torch.empty)
    monkeypatch.setattr(f"{LIBRARY}.rendezvous", lambda memory, _: Mapped(memory))
    name = "two_shot_all_reduce_out"
    monkeypatch.setattr(torch.ops.symm_mem, name, stand_in(name), raising=False)

    def one_shot(_: OneShotSum, x: torch.Tensor) -> torch.Tensor:
        called.append("one shot")
        return 2 * x

    monkeypatch.setattr(OneShotSum, "__call__", one_shot)
    return called


@pytest.mark.parametrize(
    ("rows", "dtype", "called"),
    [
        (1, torch.bfloat16, "one shot"),
        (1024, torch.bfloat16, "two_shot_all_reduce_out"),
        (1, torch.float16, None),
        (4096, torch.float32, None),
    ],
)
def test_tensors_are_summed_by_what_suits_them(ops, rows: int, dtype, called: str | None) -> None:
    nccl = Nccl()
    made: Any = SymmetricMemoryCommunicator(nccl, step_bytes=4 << 20)  # type: ignore[arg-type]
    x = torch.ones(rows, 1024, dtype=dtype)
    assert torch.equal(made.all_reduce(x), torch.full((rows, 1024), 2.0, dtype=dtype))
    assert ops == ([called] if called else [])
    assert nccl.calls == ([] if called else ["all_reduce"])


def test_a_tensor_that_is_not_contiguous_is_summed_as_well(ops) -> None:
    made: Any = SymmetricMemoryCommunicator(Nccl(), step_bytes=0)  # type: ignore[arg-type]
    x = torch.arange(64.0).view(8, 8)
    want = 2 * x.T
    assert torch.equal(made.all_reduce(x.T), want)
    assert ops == ["one shot"]


def test_small_sums_are_left_to_kernels_that_do_more(ops) -> None:
    nccl = Nccl()
    made: Any = SymmetricMemoryCommunicator(nccl, step_bytes=4 << 20)  # type: ignore[arg-type]
    assert made.one_shot_sum(1 << 20, torch.bfloat16) is made.one_shot
    assert made.one_shot_sum((1 << 20) + 4, torch.bfloat16) is None
    assert made.one_shot_sum(64, torch.float16) is None


def test_few_bytes_are_gathered_as_a_sum(ops) -> None:
    nccl = Nccl()
    made: Any = SymmetricMemoryCommunicator(nccl, step_bytes=0)  # type: ignore[arg-type]
    gathered = made.all_gather(torch.tensor([3.0, 4.0]))
    assert gathered.tolist() == [[0.0, 0.0], [6.0, 8.0]]
    assert ops == ["one shot"]
    assert made.all_gather(torch.arange(4)).shape == (2, 4)
    assert made.all_gather(torch.ones(1 << 20)).shape == (2, 1 << 20)
    assert nccl.calls == ["all_gather"] * 2


@pytest.mark.parametrize(("failed", "called"), [(True, "leave"), (False, "close")])
def test_nothing_is_freed(ops, failed: bool, called: str) -> None:
    """Whoever frees memory waits for what was launched, and that for a rank that may be gone."""
    nccl = Nccl()
    made: Any = SymmetricMemoryCommunicator(nccl, step_bytes=0)  # type: ignore[arg-type]
    freed = weakref.ref(made)
    made.close(failed=failed)
    del made
    assert freed() is not None
    assert nccl.calls == [called]


def test_gpus_without_access_to_each_other_are_nccls(monkeypatch, caplog) -> None:
    nccl: Any = Nccl()
    nccl.rank = 0
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda *_: False)
    assert symmetric_memory_or_nccl(nccl, 0) is nccl
    assert "cannot read each other's memory" in caplog.text


def test_a_second_group_of_a_process_is_nccls(monkeypatch, caplog) -> None:
    """torch would look for its ranks in the first one's store."""
    nccl: Any = Nccl()
    nccl.rank = 0
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda *_: True)
    monkeypatch.setattr(f"{LIBRARY}.is_symm_mem_enabled_for_group", lambda name: name == "world")
    assert symmetric_memory_or_nccl(nccl, 0) is nccl
    assert "had another group" in caplog.text


def test_a_library_that_fails_or_sums_wrongly_is_not_used(ops, monkeypatch, caplog) -> None:
    nccl: Any = Nccl()
    nccl.rank = 0
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda *_: True)
    # Twice 1 is not 1 + 2.
    assert symmetric_memory_or_nccl(nccl, 0) is nccl
    assert ops
    assert "sums are wrong" in caplog.text

    def fails(*_: object) -> None:
        raise RuntimeError("no VMM\nat here")

    monkeypatch.setattr(f"{LIBRARY}.rendezvous", fails)
    assert symmetric_memory_or_nccl(nccl, 0) is nccl
    assert "memory: no VMM." in caplog.text


def test_where_all_is_well_it_is_used(ops, monkeypatch) -> None:
    nccl: Any = Nccl()
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda *_: True)
    monkeypatch.setattr(SymmetricMemoryCommunicator, "sums_correctly", lambda _: True)
    made = symmetric_memory_or_nccl(nccl, 0)
    made.close()
    assert made.name == "symmetric memory"
    assert nccl.calls == ["close"]
