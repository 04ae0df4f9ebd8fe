"""State of the index process that outlives it, in a file beside its socket."""

from pathlib import Path

import msgspec
import structlog

from kvasir.atomic_files import write_atomic
from kvasir_router.discovery.specs import PolicySpec
from kvasir_router.telemetry.metric_families import Family
from kvasir_router.workers.shared_memory.load_table_rows import ReplicaName

_log = structlog.get_logger("kvasir_router.workers")


class SavedState(msgspec.Struct):
    """All of it."""

    slots: dict[ReplicaName, int] = {}
    """Every replica's slot: the workers count by them."""
    policies: dict[str, PolicySpec] = {}
    """Policies set at run time, by model."""
    past: list[Family] = []
    """Counts of workers that have ended."""


def save_state(path: Path, memory: SavedState) -> None:
    """Write it."""
    try:
        write_atomic(path, msgspec.msgpack.encode(memory))
    except OSError as error:
        _log.error(
            "cannot save the index state; a restart begins with an empty index", error=str(error)
        )


def load_state(path: Path) -> SavedState:
    """Read it; empty at first."""
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=SavedState)
    except FileNotFoundError:
        return SavedState()
    except (OSError, msgspec.MsgspecError) as error:
        _log.error("what the index process knew is lost", error=str(error))
        return SavedState()
