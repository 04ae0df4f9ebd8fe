"""The probe over a module in the place of pynvml: which calls it makes, and how it reads them."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from kvasir_engine.server.gpu_faults.gpu_probe import GpuState, ProbeError, XidEvent
from kvasir_engine.server.gpu_faults.nvml_probe import NvmlProbe, visible

UUIDS = ["GPU-aa11", "GPU-bb22", "GPU-cc33"]


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"error {value}")
        self.value = value


class Nvml(SimpleNamespace):
    """A driver of three GPUs. Like pynvml, it returns a new object for a handle each time."""

    NVMLError = NVMLError
    NVML_ERROR_NOT_SUPPORTED = 3
    NVML_ERROR_TIMEOUT = 10
    NVML_ERROR_GPU_IS_LOST = 15
    NVML_ERROR_RESET_REQUIRED = 16
    NVML_DEVICE_MIG_ENABLE = 1
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_TEMPERATURE_GPU = 0
    NVML_VOLATILE_ECC = 0
    nvmlEventTypeXidCriticalError = 8

    def __init__(self) -> None:
        super().__init__(events=[], registered=[], names=["H100"] * 3, mig={}, failing={})
        self.reasons = self.errors = 0
        self.remapped = (0, 0, 0, 0)

    def pointer(self, index: int) -> Any:
        return ctypes.cast(ctypes.c_void_p(0x1000 + index), ctypes.POINTER(ctypes.c_int))

    def index(self, handle: Any) -> int:
        return (ctypes.cast(handle, ctypes.c_void_p).value or 0) - 0x1000

    def answer(self, handle: Any, value: Any) -> Any:
        error = self.failing.get(self.index(handle))
        if error is not None:
            raise NVMLError(error)
        return value

    def nvmlInit(self) -> None:
        if "init" in self.failing:
            raise NVMLError(9)

    def nvmlDeviceGetCount(self) -> int:
        return len(UUIDS)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        return self.pointer(index)

    def nvmlDeviceGetUUID(self, handle: Any) -> str:
        return UUIDS[self.index(handle)]

    def nvmlDeviceGetName(self, handle: Any) -> bytes:
        return self.names[self.index(handle)].encode()

    def nvmlDeviceGetMigMode(self, handle: Any) -> list[int]:
        if self.index(handle) not in self.mig:
            raise NVMLError(self.NVML_ERROR_NOT_SUPPORTED)
        return [self.mig[self.index(handle)], 0]

    def nvmlEventSetCreate(self) -> str:
        return "set"

    def nvmlDeviceRegisterEvents(self, handle: Any, kind: int, events: Any) -> None:
        self.registered.append((self.index(handle), kind, events))

    def nvmlEventSetWait_v2(self, events: Any, milliseconds: int) -> Any:
        if not self.events:
            raise NVMLError(self.NVML_ERROR_TIMEOUT)
        found = self.events.pop(0)
        if isinstance(found, Exception):
            raise found
        index, kind, data = found
        return SimpleNamespace(device=self.pointer(index), eventType=kind, eventData=data)

    def nvmlDeviceGetTemperature(self, handle: Any, sensor: int) -> int:
        return self.answer(handle, 40)

    def nvmlDeviceGetRemappedRows(self, handle: Any) -> tuple[int, ...]:
        return self.answer(handle, self.remapped)

    def nvmlDeviceGetTotalEccErrors(self, handle: Any, kind: int, counter: int) -> int:
        assert (kind, counter) == (1, 0)
        return self.answer(handle, self.errors)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: Any) -> int:
        return self.answer(handle, self.reasons)


@pytest.fixture
def nvml() -> Nvml:
    return Nvml()


def make_probe(nvml: Nvml, count: int = 1, **environment: str) -> NvmlProbe:
    return NvmlProbe(count, environment, lambda: nvml)


def test_only_the_engines_own_gpus_are_watched(nvml: Nvml) -> None:
    probe = make_probe(nvml, 2, CUDA_VISIBLE_DEVICES="2,0,1")
    assert probe.open() == ("GPU-cc33", "GPU-aa11")
    assert nvml.registered == [(2, 8, "set"), (0, 8, "set")]


def test_an_xid_is_told_with_its_gpu(nvml: Nvml) -> None:
    probe = make_probe(nvml, 2)
    probe.open()
    nvml.events = [(1, 8, 79), (2, 8, 48), (0, 1, 5)]
    assert probe.look(0).events == (XidEvent("GPU-bb22", 79),)
    assert probe.look(0).events == (), "of a neighbour"
    assert probe.look(0).events == (), "no Xid"


def test_states_are_read_seldom_and_after_an_event(nvml: Nvml) -> None:
    probe = make_probe(nvml)
    probe.open()
    sound = GpuState("GPU-aa11", row_remap_failed=False, uncorrectable_errors=0)
    assert probe.look(0).states == (sound,)
    assert probe.look(0).states == ()
    nvml.remapped, nvml.errors, nvml.reasons = (0, 1, 0, 1), 4, 0x20 | 0x80 | 0x4
    nvml.events = [(0, 8, 64)]
    [state] = probe.look(0).states
    assert (state.row_remap_failed, state.uncorrectable_errors) == (True, 4)
    assert state.slowdowns == {"software_thermal", "power_brake"}


@pytest.mark.parametrize(
    ("error", "lost", "needs_reset"), [(15, True, False), (16, False, True), (3, False, False)]
)
def test_a_gpu_that_does_not_answer_is_a_state(
    nvml: Nvml, error: int, lost: bool, needs_reset: bool
) -> None:
    probe = make_probe(nvml)
    probe.open()
    nvml.failing[0] = error
    assert probe.look(0).states == (GpuState("GPU-aa11", lost, needs_reset),)


def test_events_of_a_lost_gpu_are_no_error_and_others_are(nvml: Nvml) -> None:
    probe = make_probe(nvml)
    probe.open()
    nvml.events = [NVMLError(15), NVMLError(999)]
    nvml.failing[0] = 15
    assert probe.look(0).states[0].lost
    with pytest.raises(ProbeError, match="NVML: error 999"):
        probe.look(0)


def test_without_library_or_driver_it_says_so(nvml: Nvml) -> None:
    def missing() -> Any:
        raise ImportError

    with pytest.raises(ProbeError, match="nvidia-ml-py is not installed: pip install"):
        NvmlProbe(1, {}, missing).open()
    nvml.failing["init"] = True
    with pytest.raises(ProbeError, match="NVML: error 9"):
        make_probe(nvml).open()


@pytest.mark.parametrize("shown", ["MIG-aa11", "0"])
def test_an_instance_of_mig_is_not_watched(nvml: Nvml, shown: str) -> None:
    nvml.mig[0] = 1
    with pytest.raises(ProbeError, match="an instance of MIG"):
        make_probe(nvml, CUDA_VISIBLE_DEVICES=shown).open()


def test_gpus_whose_order_is_not_known_are_not_watched(nvml: Nvml) -> None:
    nvml.names = ["H100", "L4", "H100"]
    with pytest.raises(ProbeError, match="CUDA_DEVICE_ORDER=PCI_BUS_ID"):
        make_probe(nvml).open()
    assert make_probe(nvml, CUDA_DEVICE_ORDER="PCI_BUS_ID").open() == ("GPU-aa11",)
    assert make_probe(nvml, CUDA_VISIBLE_DEVICES="GPU-b").open() == ("GPU-bb22",)
    assert len(make_probe(nvml, 3).open()) == 3, "all are its own, in whatever order"


def test_too_few_gpus_are_not_watched(nvml: Nvml) -> None:
    with pytest.raises(ProbeError, match="1 of 2 GPUs are found"):
        make_probe(nvml, 2, CUDA_VISIBLE_DEVICES="1").open()


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (None, UUIDS),
        ("", []),
        ("1", UUIDS[1:2]),
        ("2, 0", [UUIDS[2], UUIDS[0]]),
        ("GPU-b,GPU-aa11", [UUIDS[1], UUIDS[0]]),
        ("0,7,1", UUIDS[:1]),
        ("0,-1,1", UUIDS[:1]),
        ("GPU-", []),
    ],
)
def test_visible_devices_are_read_as_cuda_does(shown: str | None, expected: list[str]) -> None:
    assert visible(UUIDS, shown) == expected
