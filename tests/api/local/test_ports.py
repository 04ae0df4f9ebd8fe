from __future__ import annotations

import socket

import pytest

from kvasir.local.ports import PortError, free_ports, require_free


def test_free_ports_differ_and_are_free() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    for port in ports:
        require_free("127.0.0.1", port)


def test_a_port_that_something_listens_on(free_port: int) -> None:
    with (
        socket.create_server(("127.0.0.1", free_port), reuse_port=True),
        pytest.raises(PortError, match=f"port {free_port} on 127.0.0.1 is in use.*--port"),
    ):
        require_free("127.0.0.1", free_port)
    require_free("127.0.0.1", free_port)


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_an_address_that_is_not_this_machines(host: str) -> None:
    with pytest.raises(PortError, match=rf"cannot listen on port 8080 of {host}: .*change --host"):
        require_free(host, 8080)
