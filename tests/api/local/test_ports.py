from __future__ import annotations

import socket

import pytest
from kvasir.local.ports import PortInUseError, free_ports, require_free


def test_free_ports_differ_and_are_free() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    for port in ports:
        require_free("127.0.0.1", port)


def test_a_port_that_something_listens_on(free_port: int) -> None:
    with (
        socket.create_server(("127.0.0.1", free_port), reuse_port=True),
        pytest.raises(PortInUseError, match=f"port {free_port} on 127.0.0.1 is in use.*--port"),
    ):
        require_free("127.0.0.1", free_port)
    require_free("127.0.0.1", free_port)


def test_an_address_of_another_machine() -> None:
    with pytest.raises(OSError, match=r"Cannot assign requested address"):
        require_free("192.0.2.1", 8080)
