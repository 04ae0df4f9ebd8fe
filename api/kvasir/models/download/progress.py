"""Progress of a download: served by the job at /progress and left as its termination message."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

MAX_PROGRESS_BYTES = 64 * 1024
TERMINATION_BYTES = 4096
"""Maximum bytes of a termination message that Kubernetes keeps."""
_ERROR_CHARS = 600
_UNSIZED_FIELDS = ("auto_map", "id2label", "label2id", "task_specific_params")
_SIZED_LISTS = (
    "architectures",
    "layer_types",
    "mlp_only_layers",
    "eos_token_id",
    "weight_block_size",
    "block_structure",
    "targets",
)
_MAX_NAMES_CHARS = 400
"""Longest other list of text that is kept, such as of the modules that are not quantised."""


class DownloadPhase(StrEnum):
    """Phase of a download."""

    LISTING = "listing"
    DOWNLOADING = "downloading"
    VERIFYING = "verifying"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Progress:
    """One progress report. Sizes are bytes."""

    phase: DownloadPhase = DownloadPhase.LISTING
    bytes: int = 0
    total_bytes: int = 0
    """0 until the files are listed."""
    eta_seconds: int | None = None
    """None while it is not known."""
    error: str | None = None
    permanent: bool = False
    """True when another attempt cannot succeed before something is changed."""
    config: Mapping[str, Any] | None = None
    """The fields of a finished download's config.json that determine the model's size."""
    weight_bytes: int | None = None

    def as_json(self) -> str:
        """The JSON that the operator reads."""
        body: dict[str, Any] = {
            "phase": self.phase.value,
            "bytes": self.bytes,
            "totalBytes": self.total_bytes,
            "etaSeconds": self.eta_seconds,
            "error": self.error and self.error[:_ERROR_CHARS],
            "permanent": self.permanent,
        }
        if self.weight_bytes is not None:
            body["model"] = {"config": self.config, "weightsBytes": self.weight_bytes}
        return json.dumps(body, separators=(",", ":"), ensure_ascii=False)

    def termination_message(self) -> str:
        """The same within what Kubernetes keeps; the config is left out where it is too long."""
        whole = self.as_json()
        if len(whole.encode()) <= TERMINATION_BYTES:
            return whole
        return replace(self, config=None).as_json()


def parse_progress(text: str | bytes) -> Progress:
    """The report in `text`, as `as_json` wrote it. Raises ValueError for anything else."""
    if len(text) > MAX_PROGRESS_BYTES:
        raise ValueError(f"a progress report of more than {MAX_PROGRESS_BYTES} bytes")
    body = json.loads(text)
    if not isinstance(body, dict):
        raise ValueError("a progress report that is no JSON object")
    model = body.get("model")
    model = model if isinstance(model, dict) else {}
    config, weights, eta = model.get("config"), model.get("weightsBytes"), body.get("etaSeconds")
    error = body.get("error")
    return Progress(
        phase=DownloadPhase(str(body.get("phase"))),
        bytes=_count(body.get("bytes")) or 0,
        total_bytes=_count(body.get("totalBytes")) or 0,
        eta_seconds=_count(eta),
        error=str(error)[:_ERROR_CHARS] if error is not None else None,
        permanent=body.get("permanent") is True,
        config=config if isinstance(config, dict) else None,
        weight_bytes=_count(weights),
    )


def _count(value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise ValueError(f"a progress report with {str(value)[:40]!r} where a count belongs")
    return value


def sizing_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a config.json that says how large a model is, without long lists of names.

    It reads as the same `ModelShape`, but for long lists of the modules that a quantised model
    leaves plain: they alone are often longer than a termination message.
    """
    return {
        name: kept
        for name, value in config.items()
        if name not in _UNSIZED_FIELDS and (kept := _sized(name, value)) is not None
    }


def _sized(name: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return sizing_config(value)
    if isinstance(value, list):
        return value if name in _SIZED_LISTS or _is_short(value) else None
    if isinstance(value, str):
        return value[:_ERROR_CHARS]
    return value


def _is_short(values: list[Any]) -> bool:
    return all(isinstance(each, str) for each in values) and (
        sum(map(len, values)) + 3 * len(values) <= _MAX_NAMES_CHARS
    )
