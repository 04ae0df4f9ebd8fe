"""What the supervisor checks before a start; tests/integration/engine/serve ends real processes."""

from __future__ import annotations

import socket

import pytest

from kvasir_engine.core.channels import MAX_CLIENTS
from kvasir_engine.server.process.supervisor import PortError, check_clients, check_port
from kvasir_engine.settings import SettingsError


def test_a_port_in_use_is_named_with_its_flag() -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(PortError, match=f"127.0.0.1:{port}.*--grpc-port"):
            check_port("127.0.0.1", port, "--grpc-port")
    check_port("127.0.0.1", port, "--port")


@pytest.mark.parametrize("number", [0, -1, MAX_CLIENTS + 1])
def test_an_impossible_number_of_api_processes_is_refused(number: int) -> None:
    with pytest.raises(SettingsError, match=rf"--api-processes.*got {number}\."):
        check_clients(number)
    check_clients(MAX_CLIENTS)
