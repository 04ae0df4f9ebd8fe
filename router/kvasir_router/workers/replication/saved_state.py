"""What the index process remembers over its own end, in a file beside its socket."""

from pathlib import Path

import msgspec
import structlog

from kvasir.atomic_files import write_atomic
from kvasir_router.workers.process_stats import Family
from kvasir_router.workers.replication.messages import Place

_log = structlog.get_logger("kvasir_router.workers")


class Memory(msgspec.Struct):
    """All of it."""

    places: list[Place] = []
    """Every replica's slot: the workers count by them."""
    policies: dict[str, str] = {}
    """Set at run time, by model."""
    past: list[Family] = []
    """What workers that have ended have counted."""


def remember(path: Path, memory: Memory) -> None:
    """Write it."""
    try:
        write_atomic(path, msgspec.msgpack.encode(memory))
    except OSError as error:
        _log.error("what the index process knows is not kept over a restart", error=str(error))


def recall(path: Path) -> Memory:
    """Read it; empty at first."""
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=Memory)
    except FileNotFoundError:
        return Memory()
    except (OSError, msgspec.MsgspecError) as error:
        _log.error("what the index process knew is lost", error=str(error))
        return Memory()
