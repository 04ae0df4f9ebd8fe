"""What a plan is made for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kvasir.models.fit.devices import Device, DeviceError, cpu, known_gpus, local_gpu, named_gpu
from kvasir.models.fit.gpu_table import GPUS


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """smi(script): an nvidia-smi that runs it."""

    def install(script: str) -> None:
        path = tmp_path / "nvidia-smi"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    return install


def test_a_name_takes_its_memory_from_the_table() -> None:
    assert named_gpu("L40S", None) == Device("l40s", GPUS["l40s"], capability=(8, 9))
    assert named_gpu(None, None) is None
    assert {device.name for device in known_gpus()} == set(GPUS)


def test_memory_may_be_given_with_or_without_a_name() -> None:
    assert named_gpu("mine", "24Gi") == Device("mine", 24 << 30)
    assert named_gpu("h100", "24Gi") == Device("h100", 24 << 30, capability=(9, 0))
    assert named_gpu(None, "24Gi") == Device("24Gi", 24 << 30)


@pytest.mark.parametrize(
    ("name", "memory", "sentence"),
    [("voodoo2", None, "--gpu: .*voodoo2.*or give --gpu-memory"), (None, "much", "--gpu-memory: ")],
)
def test_what_is_not_known_names_its_option(
    name: str | None, memory: str | None, sentence: str
) -> None:
    with pytest.raises(DeviceError, match=sentence):
        named_gpu(name, memory)


def test_the_first_gpu_of_the_machine(smi) -> None:
    smi("echo 'NVIDIA X, with a comma, 81559, 9.0'; echo 'NVIDIA Y, 100, 8.0'")
    assert local_gpu() == Device("NVIDIA X, with a comma", 81559 << 20, capability=(9, 0))


def test_a_gpu_that_does_not_say_its_capability(smi) -> None:
    smi("echo 'NVIDIA X, 81559, [N/A]'")
    assert local_gpu() == Device("NVIDIA X", 81559 << 20)


@pytest.mark.parametrize(
    "script",
    ["exit 9", "true", "echo 'NVIDIA X, [N/A], 9.0'", "echo nothing"],
)
def test_a_machine_without_a_gpu_says_so(smi, script: str) -> None:
    smi(script)
    with pytest.raises(DeviceError, match=r"this machine has no GPU; .* --gpu NAME"):
        local_gpu()


def test_the_cpu_has_the_machines_memory() -> None:
    total = next(x for x in Path("/proc/meminfo").read_text().splitlines() if "MemTotal" in x)
    device = cpu()
    assert not device.is_gpu
    assert device.memory_bytes == pytest.approx(int(total.split()[1]) * 1024, rel=0.01)
