"""What an API process is told when it starts; the flags of `kvasir serve` that concern HTTP."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

DEFAULT_MAX_BODY_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Names and meanings are vLLM's where vLLM has the flag."""

    model: str
    """What the user asked for: a directory, a Hub id or a builtin:// name."""
    model_dir: Path
    """Where the model's files are on this machine."""
    revision: str | None = None
    """The Hub's commit that these are of, or the branch or tag that was asked for."""
    served_model_names: tuple[str, ...] = ()
    """Names a request may use; the first one is in the answers. Empty: `model`, and a builtin://
    model's name too."""
    tokenizer_dir: Path | None = None
    """Another directory to read the tokenizer from."""
    chat_template: str | None = None
    """A file or a template that replaces the model's."""
    generation_config: str = "auto"
    """Default sampling parameters: "auto" (the model's), "vllm" (none) or a directory."""
    trust_remote_code: bool = False
    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    fleet_secret: str | None = field(default=None, repr=False)
    """Proves a router; it gets token ids, seeds and usage beside each answer."""
    max_logprobs: int = 20
    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES
    stuck_after: float = 120.0
    """Seconds a launched step may take before /health says that the core is stuck."""
    drain_timeout: float = 30.0
    """Seconds that running requests get after SIGTERM."""
    metrics_prefix: str = "kvasir_"
    created: int = field(default_factory=lambda: int(time.time()))
    """Unix time of the engine's start, the same in all of its API processes."""

    @property
    def names(self) -> tuple[str, ...]:
        """Every name this model answers to."""
        short = self.model.removeprefix("builtin://")
        return self.served_model_names or tuple(dict.fromkeys((self.model, short)))
