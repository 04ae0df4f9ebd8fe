"""Settings of an API process; the table of the flags that concern the server."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from kvasir.cli.flags import flag
from kvasir_engine.serve_panels import HTTP, MODEL, OPS
from kvasir_engine.settings import SettingsError

DEFAULT_MAX_BODY_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Names and meanings are vLLM's where vLLM has the flag."""

    model: str
    """Model argument that the user gave: a directory, a Hub id or a builtin:// name."""
    model_dir: Path
    """Directory of the model's files on this machine."""
    revision: str | None = None
    """The Hub's commit that these are of, or the branch or tag that was asked for."""
    served_model_names: tuple[str, ...] = ()
    """Names a request may use; the first one is in the answers. Empty: `model`, and a builtin://
    model's name too."""
    hf_overrides: dict[str, Any] | None = None
    """Fields that the user puts into the model's config.json."""
    tokenizer_dir: Path | None = None
    """Another directory to read the tokenizer from."""
    chat_template: str | None = flag(None, "File or text of another chat template.", MODEL)
    """A file or a template that replaces the model's."""
    generation_config: str = flag(
        "auto", "Default sampling parameters: auto (MODEL's), vllm (none) or a directory.", MODEL
    )
    skip_tokenizer_init: bool = False
    tool_call_parser: str = flag(
        "auto", "Form of tool calls: auto (by the chat template), none or a parser's name.", MODEL
    )
    reasoning_parser: str = flag(
        "auto", "Form of reasoning: auto (by the chat template), none or a parser's name.", MODEL
    )
    trust_remote_code: bool = False
    lora_refusal: str = ""
    """Sentence on why no LoRA adapter is loaded; "" = any is, by a simulated engine."""
    host: str = flag("127.0.0.1", "Address to listen on.", HTTP)
    port: int = flag(8000, "Port to listen on.", HTTP, min=1, max=65535)
    ssl_certfile: Path | None = flag(None, "Certificate chain (PEM): serve HTTPS with it.", HTTP)
    ssl_keyfile: Path | None = flag(
        None, "Its key, where --ssl-certfile does not hold it too.", HTTP
    )
    root_path: str = flag("", "Prefix of all paths, where a proxy in front adds one.", HTTP)
    """Requests are served with and without it, and the OpenAPI document names it."""
    allowed_origins: list[str] | None = flag(
        None, "Origin of web pages that may call, or *; repeatable, or a JSON list.", HTTP
    )
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    """Keys of --api-key, which stay."""
    file_api_keys: str | None = field(default=None, repr=False)
    """Text that --api-key-file had at the start."""
    api_key_file: Path | None = None
    """That file, which is followed."""
    fleet_secret: str | None = field(default=None, repr=False)
    """Secrets that prove a router, as --fleet-secret-file had them at the start; a router gets
    token ids, seeds and usage beside each answer."""
    fleet_secret_file: Path | None = None
    """That file, which is followed."""
    max_logprobs: int = 20
    max_body_bytes: int = flag(DEFAULT_MAX_BODY_BYTES, "Largest request body.", HTTP, min=1024)
    enable_log_requests: bool = flag(
        False,
        "Log each request: its id, lengths, parameters.",
        OPS,
        switch="--enable-log-requests",
    )
    max_log_len: int = flag(
        0, "Most characters or ids of a prompt in those lines; 0 = none.", OPS, min=0
    )
    drain_timeout: float = flag(
        30.0, "Seconds that running requests get after SIGTERM.", OPS, min=0
    )
    stuck_after: float = flag(120.0, "Seconds of one step after which /live fails.", OPS, min=1)
    gpu_faults: Literal["drain", "log", "off"] = flag(
        "drain", "After a GPU's fault: end when requests have gone elsewhere, or only tell.", OPS
    )
    """A fault that raises no error in CUDA, as the driver tells it; off = nothing is watched."""
    gpu_fault_xids: str = flag(
        "", "Xids that are such faults, as 48,79; default: those of docs/gpu_faults.md.", OPS
    )
    gpu_fault_settle: float = flag(
        300.0, "Seconds after the start in which no GPU's fault ends the engine.", OPS, min=0
    )
    gpu_fault_timeout: float = flag(
        10.0, "Most seconds that running requests get after a GPU's fault.", OPS, min=0
    )
    sim_gpu_fault: Path | None = flag(
        None, "With --device sim: a file, each line of which happens to the GPU: xid 79.", OPS
    )
    metrics_prefix: str = flag("kvasir_", "Of the metrics' names.", OPS)
    created: int = field(default_factory=lambda: int(time.time()))
    """Unix time of the engine's start, the same in all of its API processes."""

    @property
    def tls(self) -> tuple[Path, Path] | None:
        """Certificate chain and key; None = plain HTTP."""
        if self.ssl_certfile is None:
            return None
        return self.ssl_certfile, self.ssl_keyfile or self.ssl_certfile

    @property
    def origins(self) -> tuple[str, ...]:
        """Origins of web pages that may call. Raises SettingsError for what is no JSON list."""
        found: list[str] = []
        for given in self.allowed_origins or ():
            try:
                found += msgspec.json.decode(given, type=list[str]) if given[:1] == "[" else [given]
            except msgspec.MsgspecError as error:
                raise SettingsError(
                    f"--allowed-origins {given} is no JSON list: {error}."
                ) from None
        return tuple(found)

    @property
    def names(self) -> tuple[str, ...]:
        """Every name this model answers to."""
        short = self.model.removeprefix("builtin://")
        return self.served_model_names or tuple(dict.fromkeys((self.model, short)))
