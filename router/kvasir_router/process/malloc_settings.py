"""Memory settings of a process that serves."""

import asyncio
import ctypes
import gc

# mallopt(3)
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LIBC = ctypes.CDLL(None)

MAX_FREE_HEAP_BYTES = 64 * 1024 * 1024
"""Free memory at the heap's end that is not given back to the kernel."""
MAX_HEAP_ALLOCATION = 4 * 1024 * 1024
GIVE_BACK_SECONDS = 10.0
"""Seconds after which the kernel has back what no body has used again."""


def settle() -> None:
    """Call when everything that stays is there."""
    gc.collect()
    gc.freeze()  # collecting it again and again costs latency
    _keep_freed()


def _keep_freed() -> None:
    """Let bodies use the memory of those before them. By default glibc gives what is free at the
    heap's end back to the kernel above some hundred KB, and large blocks at once; a page at a time
    is then faulted in again: at 400 KB these faults were two fifths of a request's CPU time."""
    mallopt = getattr(_LIBC, "mallopt", None)
    if mallopt is not None:  # glibc's alone
        mallopt(_TRIM_THRESHOLD, MAX_FREE_HEAP_BYTES)
        mallopt(_MMAP_THRESHOLD, MAX_HEAP_ALLOCATION)


async def give_back_freed() -> None:
    """Give free memory back to the kernel now and then, for ever: large bodies leave up to
    MAX_FREE_HEAP_BYTES of it, and pieces between what stays."""
    trim = getattr(_LIBC, "malloc_trim", None)
    while True:
        await asyncio.sleep(GIVE_BACK_SECONDS)
        if trim is not None:  # glibc's alone
            await asyncio.to_thread(trim, 0)
