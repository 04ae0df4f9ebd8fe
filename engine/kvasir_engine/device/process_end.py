"""End of this process when its device has failed. No torch.

After an error of CUDA torch's destructors raise, where C++ ends the process without a word: so the
process says why and ends before anything on the device, or pinned for it, is freed. A process that
sets nothing goes on to raise `DeviceError`.
"""

from __future__ import annotations

from collections.abc import Callable

from kvasir_engine.errors import DeviceError

EndProcess = Callable[[DeviceError], None]
_end: EndProcess | None = None


def end_by(end: EndProcess | None) -> None:
    """Have `end` called with the first error of the device; it does not return."""
    global _end
    _end = end


def device_failed(error: DeviceError) -> None:
    """End the process as it was told to; return where it was told nothing."""
    if _end is not None:
        _end(error)
