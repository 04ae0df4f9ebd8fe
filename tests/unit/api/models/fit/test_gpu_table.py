from __future__ import annotations

import pytest

from kvasir.models.fit.gpu_table import GPUS, UnknownGPUError, gpu_capability, gpu_memory


@pytest.mark.parametrize(
    ("name", "gib"), [("h100", 79.6), ("RTX 4090", 24.0), ("a100", 80.0), ("H200", 140.4)]
)
def test_names(name: str, gib: float) -> None:
    assert gpu_memory(name) / 2**30 == pytest.approx(gib, abs=0.1)


@pytest.mark.parametrize(("name", "capability"), [("RTX 4090", (8, 9)), ("a100", (8, 0))])
def test_capabilities(name: str, capability: tuple[int, int]) -> None:
    assert gpu_capability(name) == capability


def test_every_gpu_has_a_capability() -> None:
    assert all((7, 0) <= gpu_capability(name) <= (12, 0) for name in GPUS)


def test_an_unknown_name() -> None:
    with pytest.raises(UnknownGPUError, match=r"GPU 'h10' is not known: did you mean h100\?"):
        gpu_memory("h10")
    with pytest.raises(UnknownGPUError, match=r"known are b200, h200"):
        gpu_memory("zzz")


def test_the_table_is_of_whole_mebibytes() -> None:
    assert all(size % 2**20 == 0 and 2**33 < size < 2**39 for size in GPUS.values())
