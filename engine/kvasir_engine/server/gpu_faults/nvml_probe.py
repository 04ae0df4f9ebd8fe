"""Probe by NVIDIA's management library (NVML).

Tests give it a module in the place of `pynvml`: it was written by NVML's documentation, and has not
been run on a GPU. https://docs.nvidia.com/deploy/nvml-api
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from kvasir_engine.server.gpu_faults.gpu_probe import GpuState, ProbeError, Sight, XidEvent

STATE_SECONDS = 5.0
"""Seconds between two readings of the states."""

_MIG = "faults are told of whole GPUs, and this is an instance of MIG"
_SLOWDOWNS = {"software_thermal": 0x20, "hardware_thermal": 0x40, "power_brake": 0x80}
"""Bits of nvmlClocksThrottleReasons, whose names have changed."""


class NvmlProbe:
    """The GPUs that a process with this environment computes on, the first `count` of those that
    CUDA shows."""

    def __init__(
        self,
        count: int,
        environment: Mapping[str, str] = os.environ,
        load: Callable[[], Any] = lambda: import_module("pynvml"),
    ) -> None:
        self._count = count
        self._environment = environment
        self._load = load
        self._handles: dict[str, Any] = {}
        """By UUID."""
        self._by_address: dict[int, str] = {}
        self._looked = -STATE_SECONDS

    def open(self) -> tuple[str, ...]:
        """GpuProbe."""
        try:
            self._nvml = nvml = self._load()
        except ImportError as error:
            raise ProbeError("nvidia-ml-py is not installed: pip install nvidia-ml-py") from error
        try:
            nvml.nvmlInit()
            self._handles = self._find()
            self._events = nvml.nvmlEventSetCreate()
            kind = nvml.nvmlEventTypeXidCriticalError
            for uuid, handle in self._handles.items():
                self._by_address[_address(handle)] = uuid
                nvml.nvmlDeviceRegisterEvents(handle, kind, self._events)
        except nvml.NVMLError as error:
            raise ProbeError(f"NVML: {error}") from error
        return tuple(self._handles)

    def look(self, seconds: float) -> Sight:
        """GpuProbe. States are read at most every STATE_SECONDS, and after an event."""
        nvml = self._nvml
        try:
            found = nvml.nvmlEventSetWait_v2(self._events, int(seconds * 1e3))
        except nvml.NVMLError as error:
            if error.value == nvml.NVML_ERROR_GPU_IS_LOST:
                time.sleep(seconds)  # it would come again at once; the states tell which
            elif error.value != nvml.NVML_ERROR_TIMEOUT:
                raise ProbeError(f"NVML: {error}") from error
            found = None
        events = () if found is None else self._xid(found)
        now = time.monotonic()
        if not events and now - self._looked < STATE_SECONDS:
            return Sight()
        self._looked = now
        states = tuple(self._state(uuid, handle) for uuid, handle in self._handles.items())
        return Sight(events, states)

    def _xid(self, found: Any) -> tuple[XidEvent, ...]:
        uuid = self._by_address.get(_address(found.device))
        if uuid is None or found.eventType != self._nvml.nvmlEventTypeXidCriticalError:
            return ()
        return (XidEvent(uuid, int(found.eventData)),)

    def _state(self, uuid: str, handle: Any) -> GpuState:
        """Return one GPU's state; what it does not support stays untold."""
        nvml = self._nvml
        faults: set[int] = set()

        def ask(question: Callable[..., Any], *arguments: Any) -> Any:
            try:
                return question(handle, *arguments)
            except nvml.NVMLError as error:
                faults.add(error.value)
                return None

        ask(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU)
        remapped = ask(nvml.nvmlDeviceGetRemappedRows)
        kind, counter = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        errors = ask(nvml.nvmlDeviceGetTotalEccErrors, kind, counter)
        # Its name until driver 535, which newer ones keep
        reasons = ask(nvml.nvmlDeviceGetCurrentClocksThrottleReasons) or 0
        return GpuState(
            uuid,
            lost=nvml.NVML_ERROR_GPU_IS_LOST in faults,
            needs_reset=nvml.NVML_ERROR_RESET_REQUIRED in faults,
            row_remap_failed=None if remapped is None else bool(remapped[3]),
            uncorrectable_errors=errors,
            slowdowns=frozenset(name for name, mask in _SLOWDOWNS.items() if reasons & mask),
        )

    def _find(self) -> dict[str, Any]:
        """Return the engine's GPUs. Raises ProbeError where it cannot be told which they are: a
        neighbour's fault must not end this engine."""
        nvml = self._nvml
        every = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        uuids = [_text(nvml.nvmlDeviceGetUUID(handle)) for handle in every]
        given = self._environment.get("CUDA_VISIBLE_DEVICES")
        shown = visible(uuids, given)
        kinds = {_text(nvml.nvmlDeviceGetName(handle)) for handle in every}
        in_order = self._environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
        by_number = given is None or given[:1].isdigit()
        if len(kinds) > 1 and len(every) > self._count and by_number and not in_order:
            raise ProbeError(
                "GPUs of several kinds, of which CUDA's order is not known: set "
                "CUDA_DEVICE_ORDER=PCI_BUS_ID"
            )
        if len(shown) < self._count:
            raise ProbeError(f"{len(shown)} of {self._count} GPUs are found")
        handles = dict(zip(uuids, every, strict=True))
        found = {uuid: handles[uuid] for uuid in shown[: self._count]}
        if any(self._has_instances(handle) for handle in found.values()):
            raise ProbeError(_MIG)
        return found

    def _has_instances(self, handle: Any) -> bool:
        """Return whether the GPU is divided by MIG: what happens to it may be a neighbour's."""
        try:
            current, _pending = self._nvml.nvmlDeviceGetMigMode(handle)
        except self._nvml.NVMLError:
            return False  # it knows no MIG
        return bool(current == self._nvml.NVML_DEVICE_MIG_ENABLE)


def visible(uuids: Sequence[str], shown: str | None) -> list[str]:
    """Return those of a machine's GPUs that CUDA_VISIBLE_DEVICES shows, in its order: by number, or
    by (the beginning of) their UUID; None = all. Raises ProbeError for instances of MIG."""
    if shown is None:
        return list(uuids)
    found = []
    for each in filter(None, (part.strip() for part in shown.split(","))):
        if each.startswith("MIG-"):
            raise ProbeError(_MIG)
        if each.isascii() and each.isdigit():
            matching = list(uuids[int(each) : int(each) + 1])
        else:
            matching = [uuid for uuid in uuids if uuid.startswith(each)]
        if len(matching) != 1:
            break  # CUDA shows none from the first that it does not know on
        found += matching
    return found


def _address(handle: Any) -> int:
    """Return what tells handles apart: each is a pointer, in an object of its own."""
    import ctypes

    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
