"""Messages between rank 0 and the process of another rank besides plans, as JSON."""

from __future__ import annotations

from enum import StrEnum

import msgspec
from msgspec.structs import asdict

from kvasir_engine.errors import FatalError, UserError
from kvasir_engine.loader.load_error import ModelLoadError
from kvasir_engine.parallel.plan_channel import ReaderEnd
from kvasir_engine.settings import EngineSettings, SettingsError

MAX_REPORT_CHARS = 16_000
_USERS_TO_MEND: dict[str, type[UserError]] = {
    kind.__name__: kind for kind in (ModelLoadError, SettingsError)
}


class RankError(FatalError):
    """Another rank has ended or cannot be used any more, so the engine ends too."""


class WorkerConfig(msgspec.Struct, frozen=True):
    """Configuration that the process of rank `rank` is started with, on its standard input."""

    rank: int
    store: str
    """The file through which the ranks meet."""
    model_dir: str
    settings: EngineSettings
    plans: ReaderEnd
    reports: int
    """Descriptor of the pipe that takes `Report`s."""
    step_bytes: int = 0
    """Bytes of the largest step's hidden states, as rank 0 knows them."""


class Progress(StrEnum):
    """Progress of a worker."""

    IMPORTED = "imported"
    """Ready to meet the other ranks."""
    READY = "ready"
    """The model is loaded and plans are awaited."""
    FAILED = "failed"


class Report(msgspec.Struct, frozen=True):
    """Report of a worker, one line. A failure carries the error's type, message and traceback."""

    progress: Progress
    kind: str = ""
    message: str = ""
    traceback: str = ""

    def encode(self) -> bytes:
        """Encode as one line of JSON."""
        fields = {name: text[-MAX_REPORT_CHARS:] for name, text in asdict(self).items()}
        return msgspec.json.encode(fields) + b"\n"

    def error(self, rank: int) -> Exception:
        """A failure as rank 0 raises it: what the user can mend keeps its type and sentence."""
        mendable = _USERS_TO_MEND.get(self.kind)
        if mendable is not None:
            return mendable(self.message)
        return RankError(f"tensor-parallel rank {rank} ended: {self.kind}: {self.message}")
