"""Channels between the processes of one engine: a private directory of sockets and files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from kvasir.wire.fleet_secret_file import FleetSecretFile
from kvasir_engine.settings import EngineSettings

HANDLES_PER_CLIENT = 1 << 26
MAX_CLIENTS = 31
"""Handles are signed 32-bit integers: client number times HANDLES_PER_CLIENT plus a counter."""


class CoreConfig(msgspec.Struct):
    """Configuration that the core process is started with."""

    settings: EngineSettings
    model_dir: str
    num_clients: int
    log_level: str = "info"
    kv_events_topic: str = ""
    fleet_secret: str = ""
    """Secrets that subscribers to KV events must know, as --fleet-secret-file has them; empty =
    anyone may subscribe."""
    fleet_secret_file: str = ""
    """Path of that file, which is followed; empty = there is none."""
    prefix_seed: bytes = b""
    """Key of the block hashes (kvasir.wire.block_hash)."""
    model_name: str = ""
    """Label of the metrics."""
    metrics_prefix: str = "kvasir_"

    def followed_secret(self) -> FleetSecretFile:
        """Return the fleet secret, which may change."""
        path = Path(self.fleet_secret_file) if self.fleet_secret_file else None
        return FleetSecretFile(self.fleet_secret, path)


@dataclass(frozen=True, slots=True)
class Channels:
    """Paths in the runtime directory; only its owner may enter it."""

    directory: Path

    @property
    def to_core(self) -> str:
        """The core's PULL socket."""
        return f"ipc://{self.directory}/core"

    def to_client(self, client: int) -> str:
        """The PULL socket of API process `client`."""
        return f"ipc://{self.directory}/client-{client}"

    @property
    def status(self) -> Path:
        """The core's status in shared memory."""
        return self.directory / "status"

    @property
    def config(self) -> Path:
        """The core's configuration."""
        return self.directory / "core.json"

    @property
    def failure(self) -> Path:
        """File with one sentence on why the core ended, when it knew."""
        return self.directory / "failure"

    @property
    def reports(self) -> str:
        """Address at which the first API process takes prompt reports from the others."""
        return f"ipc://{self.directory}/reports"

    @property
    def watch(self) -> Path:
        """Shared page that says whether anybody watches prompt reports."""
        return self.directory / "watch"

    @property
    def fault_page(self) -> Path:
        """Shared page that says whether a GPU has failed; it is there if one is watched."""
        return self.directory / "fault-page"

    @property
    def gpu_fault(self) -> Path:
        """File with one sentence on the fault of a GPU that ends the engine."""
        return self.directory / "gpu-fault"

    @property
    def metrics(self) -> Path:
        """prometheus_client's multi-process directory."""
        return self.directory / "metrics"

    def read_failure(self) -> str:
        """Return why the core ended, if it knew; empty otherwise."""
        return _text(self.failure)

    def read_gpu_fault(self) -> str:
        """Return the fault that ends the engine; empty if there is none."""
        return _text(self.gpu_fault)

    def write_config(self, config: CoreConfig) -> None:
        """Write `config` for `read_config` in another process."""
        self.config.write_bytes(msgspec.json.encode(config))

    def read_config(self) -> CoreConfig:
        """Return the configuration that `write_config` wrote."""
        return msgspec.json.decode(self.config.read_bytes(), type=CoreConfig)


def _text(path: Path) -> str:
    """Return what a file says; empty if it is not there."""
    try:
        return path.read_text()
    except OSError:
        return ""
