"""Messages between an API process and a body worker: one packet each, with a descriptor or none."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from kvasir.wire.prompt_report.report import PromptReport
from kvasir_engine.messages import CoreInfo
from kvasir_engine.server.server_settings import ServerSettings

MAX_PACKET_BYTES = 64 * 1024


class Next(StrEnum):
    """State of the worker after a message."""

    REPORT = "report"
    """It reports the prompts."""
    FREE = "free"
    """It takes the next job."""
    ENDS = "ends"
    """It has become large, and ends."""


class Setup(msgspec.Struct, tag="setup"):
    """The model that bodies are for; the first packet's descriptor has it."""

    settings: ServerSettings
    info: CoreInfo
    memory_bytes: int = 2 * 2**30
    """Bytes that reading one body may take, beyond what the process has before."""


class Job(msgspec.Struct, tag="job"):
    """A body to be read; its bytes come as the packet's descriptor."""

    route: str
    """Name of the table in process/body_worker.py."""
    request_id: str
    model: str | None = None
    """The name that the path gave, where the body has none."""
    adapters: list[str] = []
    """Names of the LoRA adapters that are loaded now."""
    watch: int = 0
    """Number of the watch that prompts are reported to; 0 = nobody watches."""


class Answered(msgspec.Struct, tag="answered"):
    """The body was read; the packet's descriptor has a Result."""

    then: Next


class Reported(msgspec.Struct, tag="reported"):
    """The packet's descriptor has a list of the job's prompt reports."""

    then: Next


ToWorker = Setup | Job
FromWorker = Answered | Reported


class BodyRefusal(msgspec.Struct, tag="refused"):
    """An ApiError."""

    status: int
    message: str
    param: str | None
    code: str | None
    headers: dict[str, str]
    extra: dict[str, Any] = {}


class Document(msgspec.Struct, tag="document"):
    """The whole answer, as JSON."""

    json: bytes


class Prepared(msgspec.Struct, tag="prepared"):
    """Runs for the core, encoded by whoever decodes them."""

    content: bytes


Result = BodyRefusal | Document | Prepared

encode = msgspec.msgpack.Encoder(enc_hook=str).encode
decode_result = msgspec.msgpack.Decoder(Result).decode
decode_from_worker = msgspec.msgpack.Decoder(FromWorker).decode
_reports = msgspec.msgpack.Decoder(list[tuple[list[int], list[int], bytes]])


def _path(kind: type[Any], value: Any) -> Any:
    return kind(value)


decode_to_worker = msgspec.msgpack.Decoder(ToWorker, dec_hook=_path).decode


def encode_reports(reports: list[PromptReport]) -> bytes:
    """Return the reports' bytes, for `decode_reports`."""
    return encode([(list(r.text_hashes), list(r.kv_blocks), r.kv_hashes) for r in reports])


def decode_reports(content: bytes) -> list[PromptReport]:
    """Return the reports of `encode_reports`."""
    return [PromptReport(*fields) for fields in _reports.decode(content)]
