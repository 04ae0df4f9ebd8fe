from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from kvasir.cli.local import ports
from kvasir.cli.local.ports import PortError, free_ports, require_free, reserve_port


def test_free_ports_differ_and_are_free() -> None:
    found = free_ports(20)
    assert len(set(found)) == 20
    for port in found:
        require_free("127.0.0.1", port)


def test_free_ports_are_no_connections() -> None:
    """A connection on a server's port would keep the server from starting again."""
    file = Path("/proc/sys/net/ipv4/ip_local_port_range")
    first = int(file.read_text().split()[0]) if file.exists() else 32_768
    assert all(port < first for port in free_ports(20))


def test_a_free_port_where_all_of_them_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(ports, "SERVERS", range(port, port + 1))
        monkeypatch.setattr(ports, "TRIES", 1)
        (found,) = free_ports(1)
    assert found != port


def test_no_port_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "TRIES", 1)
    with pytest.raises(PortError, match=r"no port of 192\.0\.2\.1 is free"):
        free_ports(1, "192.0.2.1")


def test_a_free_port_stays_this_process_own_while_its_server_is_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As an API server's has to, which a test restarts beside other processes' tests."""
    (port,) = free_ports(1)
    monkeypatch.setattr(ports, "SERVERS", range(port, port + 1))
    monkeypatch.setattr(ports, "TRIES", 1)

    def nobody_else_gets_it() -> None:
        assert free_ports(1) != [port]
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))

    nobody_else_gets_it()
    for _ in range(2):
        with socket.create_server(("127.0.0.1", port)) as server:
            with socket.create_connection(("127.0.0.1", port)):
                server.accept()[0].close()
            nobody_else_gets_it()
        nobody_else_gets_it()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))


def test_a_reserved_port_is_free_once_it_is_given_back() -> None:
    with reserve_port() as held:
        port = held.getsockname()[1]
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))


def test_a_process_that_ended_holds_nothing() -> None:
    code = "from kvasir.cli.local.ports import free_ports; print(*free_ports(1))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    with socket.socket() as other:
        other.bind(("127.0.0.1", int(done.stdout)))


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
