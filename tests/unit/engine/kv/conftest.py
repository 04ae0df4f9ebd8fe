from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from support.engines.block_events import Connect

from kvasir.wire.fleet_secret import secure_client
from kvasir.wire.fleet_secret_file import FleetSecretFile
from kvasir_engine.kv.event_publisher import KVEventPublisher


@pytest.fixture
def connect() -> Iterator[Connect]:
    context = zmq.Context()
    sockets: list[zmq.Socket[bytes]] = []

    def make(kind: int, endpoint: str, secret: str = "") -> zmq.Socket[bytes]:
        socket = context.socket(kind)
        sockets.append(socket)
        secure_client(socket, secret)
        if kind == zmq.SUB:
            socket.subscribe(b"")
        socket.connect(endpoint)
        return socket

    yield make
    context.destroy(linger=0)


@pytest.fixture
def publisher() -> Iterator[Callable[..., KVEventPublisher]]:
    made: list[KVEventPublisher] = []
    secrets: list[FleetSecretFile] = []

    def make(fleet_secret: str = "", file: Path | None = None, **settings: Any) -> KVEventPublisher:
        secret = FleetSecretFile(fleet_secret, file)
        secret.follow()
        secrets.append(secret)
        settings["fleet_secret"] = secret
        made.append(
            KVEventPublisher("tcp://127.0.0.1:*", "tcp://127.0.0.1:*", topic="kv@a@m", **settings)
        )
        return made[-1]

    yield make
    for each in made:
        each.close()
    for secret in secrets:
        secret.stop()
