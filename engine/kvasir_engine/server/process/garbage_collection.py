"""Garbage collection of an API process: full collections wait until no response is running.

A full collection walks through all that requests hold, such as their prompts' tokens, and stops the
streams meanwhile. What is in no cycle needs none.
"""

from __future__ import annotations

import asyncio
import gc

from kvasir_engine.server.lifecycle import Lifecycle

THRESHOLDS = (700, 10, 500)
"""Python's own, but for full collections: a fiftieth of them while responses are running."""
IDLE_CHECK_SECONDS = 1.0


def collect_seldom() -> None:
    """Enable the garbage collector, but not for what was made until now."""
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    gc.enable()


async def collect_when_idle(lifecycle: Lifecycle) -> None:
    """Collect in full, for ever, whenever no response is running and there may be garbage."""
    while True:
        await asyncio.sleep(IDLE_CHECK_SECONDS)
        if lifecycle.idle and _collections_since_full():
            gc.collect()


def _collections_since_full() -> int:
    """Return how often the middle generation has been collected since the last full collection."""
    return gc.get_count()[2]
