"""Messages between rank 0 and the process of another rank besides plans, as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from kvasir_engine.errors import FatalError, UserError
from kvasir_engine.loader.load_error import ModelLoadError
from kvasir_engine.parallel.plan_channel import ReaderEnd
from kvasir_engine.settings import CacheSettings, EngineSettings, SchedulerSettings, SettingsError

MAX_REPORT_CHARS = 16_000
_USERS_TO_MEND: dict[str, type[UserError]] = {
    kind.__name__: kind for kind in (ModelLoadError, SettingsError)
}


class RankError(FatalError):
    """Another rank has ended or cannot be used any more, so the engine ends too."""


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """Configuration that the process of rank `rank` is started with, on its standard input."""

    rank: int
    store: Path
    """The file through which the ranks meet."""
    model_dir: Path
    settings: EngineSettings
    plans: ReaderEnd
    reports: int
    """Descriptor of the pipe that takes `Report`s."""

    def encode(self) -> bytes:
        """Encode for `decode` in the other process."""
        return json.dumps(asdict(self), default=str).encode()

    @classmethod
    def decode(cls, data: bytes) -> WorkerConfig:
        """Decode what `encode` made."""
        given: dict[str, Any] = json.loads(data)
        settings: dict[str, Any] = given["settings"]
        settings["scheduler"] = SchedulerSettings(**settings["scheduler"])
        settings["cache"] = CacheSettings(**settings["cache"])
        return cls(
            rank=given["rank"],
            store=Path(given["store"]),
            model_dir=Path(given["model_dir"]),
            settings=EngineSettings(**settings),
            plans=ReaderEnd(**given["plans"]),
            reports=given["reports"],
        )


class Progress(StrEnum):
    """Progress of a worker."""

    IMPORTED = "imported"
    """Ready to meet the other ranks."""
    READY = "ready"
    """The model is loaded and plans are awaited."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Report:
    """Report of a worker, one line. A failure carries the error's type, message and traceback."""

    progress: Progress
    kind: str = ""
    message: str = ""
    traceback: str = ""

    def encode(self) -> bytes:
        """Encode as one line for `decode`."""
        fields = {name: value[-MAX_REPORT_CHARS:] for name, value in asdict(self).items()}
        return json.dumps(fields).encode() + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> Report:
        """Decode what `encode` made."""
        fields = json.loads(line)
        return cls(Progress(fields.pop("progress")), **fields)

    def error(self, rank: int) -> Exception:
        """A failure as rank 0 raises it: what the user can mend keeps its type and sentence."""
        mendable = _USERS_TO_MEND.get(self.kind)
        if mendable is not None:
            return mendable(self.message)
        return RankError(f"tensor-parallel rank {rank} ended: {self.kind}: {self.message}")
