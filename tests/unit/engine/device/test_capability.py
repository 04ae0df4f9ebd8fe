"""GPUs that run the kernels, and what is said of those that do not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from kvasir_engine.device import capability
from kvasir_engine.loader.load_error import ModelLoadError
from kvasir_engine.loader.load_model import load_model
from kvasir_engine.loader.model_directory import resolve_model
from kvasir_engine.settings import SettingsError, make_settings
from kvasir_engine.startup.torch_build import build_torch_runner

GPU = torch.device("cuda", 0)
TINY = resolve_model("builtin://kvasir-tiny")


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    yield
    capability.choose_kernels("auto")
    capability._supports.cache_clear()


@pytest.fixture
def is_gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """is_gpu(name, capability): torch describes such a GPU, which is not here."""

    def describe(name: str, number: tuple[int, int], hip: str | None = None) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _=None: name)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _=None: number)
        monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_75", "sm_90a", "sm_120"])
        monkeypatch.setattr(torch.version, "hip", hip)

    return describe


def start(**settings: str) -> None:
    build_torch_runner(make_settings("tiny", device="cuda", **settings), TINY)


@pytest.mark.parametrize(
    ("number", "kernels", "hopper"),
    [
        ((7, 5), False, False),
        ((8, 0), True, False),
        ((8, 9), True, False),
        ((9, 0), True, True),
        ((10, 0), True, False),
        ((12, 0), True, False),
    ],
)
def test_kernels_run_from_compute_capability_8_on(
    is_gpu: Callable[..., None], number: tuple[int, int], kernels: bool, hopper: bool
) -> None:
    is_gpu("NVIDIA GPU", number)
    assert capability.kernels_run_on(GPU) is kernels
    assert capability.supports_hopper(GPU) is hopper
    assert (capability.unsupported_gpu(GPU) is None) is kernels


def test_none_run_on_a_cpu_which_needs_no_remedy() -> None:
    cpu = torch.device("cpu")
    assert not capability.kernels_run_on(cpu)
    assert capability.unsupported_gpu(cpu) is None
    assert capability.unsupported_dtype(torch.bfloat16, cpu) is None


def test_an_old_gpu_is_refused_with_the_remedy(is_gpu: Callable[..., None]) -> None:
    is_gpu("Tesla T4", (7, 5))
    with pytest.raises(SettingsError) as refusal:
        start()
    assert str(refusal.value) == (
        "Tesla T4 has compute capability 7.5, and the kernels need 8.0 or higher; use --kernels "
        "torch, which is several times slower, or --device cpu."
    )


def test_a_gpu_that_torch_has_no_code_for_is_refused(is_gpu: Callable[..., None]) -> None:
    is_gpu("Tesla V100-SXM2-16GB", (7, 0))
    with pytest.raises(SettingsError, match=r"7\.0, for which torch .* use --device cpu"):
        start(kernels="torch")


def test_an_amd_gpu_is_refused_whatever_its_number(is_gpu: Callable[..., None]) -> None:
    # ROCm reports 9.4 for an MI300X: as large as a Hopper GPU's.
    is_gpu("AMD Instinct MI300X", (9, 4), hip="6.4")
    assert not capability.kernels_run_on(GPU)
    assert not capability.supports_hopper(GPU)
    with pytest.raises(SettingsError, match=r"is an AMD GPU.*--kernels torch"):
        start()
    capability.choose_kernels("torch")
    assert capability.unsupported_gpu(GPU) is None
    assert capability.unsupported_dtype(torch.bfloat16, GPU) is None


def test_the_user_may_choose_torch_anywhere(is_gpu: Callable[..., None]) -> None:
    for number in ((7, 5), (9, 0)):
        is_gpu("NVIDIA GPU", number)
        capability.choose_kernels("torch")
        assert not capability.kernels_run_on(GPU)
        assert capability.unsupported_gpu(GPU) is None


def test_an_old_gpu_has_no_bfloat16(is_gpu: Callable[..., None], tmp_path: Path) -> None:
    is_gpu("Tesla T4", (7, 5))
    with pytest.raises(ModelLoadError, match=r"7\.5 and no bfloat16; use --dtype float16"):
        load_model(TINY, dtype="bfloat16", device=GPU)
    assert capability.unsupported_dtype(torch.float16, GPU) is None
    is_gpu("NVIDIA A10G", (8, 6))
    assert capability.unsupported_dtype(torch.bfloat16, GPU) is None


@pytest.mark.parametrize(("number", "runs"), [((8, 0), False), ((8, 9), True), ((9, 0), True)])
def test_float8_needs_tensor_cores_that_have_it(
    is_gpu: Callable[..., None], number: tuple[int, int], runs: bool
) -> None:
    is_gpu("Some GPU", number)
    fault = capability.unsupported_fp8(GPU)
    if runs:
        assert fault is None
    else:
        assert fault is not None
        assert "Some GPU has compute capability 8.0, and float8 weights need 8.9" in fault


def test_torchs_own_operations_and_a_cpu_compute_float8_anywhere(
    is_gpu: Callable[..., None],
) -> None:
    is_gpu("Some GPU", (8, 0))
    capability.choose_kernels("torch")
    assert capability.unsupported_fp8(GPU) is None
    assert capability.unsupported_fp8(torch.device("cpu")) is None
