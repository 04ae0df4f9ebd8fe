"""State that the processes of one router share, made before they are forked."""

import secrets
import socket
from dataclasses import dataclass, field, replace
from functools import partial
from math import ceil
from pathlib import Path

from kvasir_router.options.router_settings import RouterSettings
from kvasir_router.workers.shared_memory.load_table import LoadTable
from kvasir_router.workers.shared_memory.shared_limits import SharedLimitTable


@dataclass(frozen=True, slots=True)
class Shared:
    """Made by the supervisor."""

    settings: RouterSettings
    directory: Path
    """Private to this router; gone with it."""
    load: LoadTable
    ledger: SharedLimitTable
    link_sock: socket.socket
    """Socket on which the index process takes the workers' connections."""
    admin_sock: socket.socket
    run: str = field(default_factory=partial(secrets.token_hex, 8))
    """Random id of this run of the router."""

    @property
    def link_path(self) -> Path:
        """The address of `link_sock`."""
        return self.directory / "index.sock"

    @property
    def memory_path(self) -> Path:
        """File of the index process's state that outlives it."""
        return self.directory / "index.memory"


def worker_settings(settings: RouterSettings) -> RouterSettings:
    """One worker's part of what is bounded for the whole router. What concerns single requests or
    connections is not divided."""
    count = settings.workers
    waiting, failover = settings.waiting, settings.failover
    return replace(
        settings,
        max_connections=ceil(settings.max_connections / count),
        waiting=replace(
            waiting,
            workers=count,
            requests=ceil(waiting.requests / count),
            body_bytes=ceil(waiting.body_bytes / count),
        ),
        failover=replace(failover, streams_bytes=ceil(failover.streams_bytes / count)),
    )
