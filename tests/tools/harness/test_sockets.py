from __future__ import annotations

import socket

import pytest

from harness import sockets


def test_ports_that_connections_never_get() -> None:
    ports = sockets.free_ports(5)
    assert len(set(ports)) == 5
    assert set(ports) <= set(sockets.SERVERS)


def test_taken_ones_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        first = taken.getsockname()[1]
        (free,) = sockets.free_ports(1)
        monkeypatch.setattr(sockets, "SERVERS", [first, free])
        assert sockets.free_ports(1) == [free]


def test_none_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "SERVERS", range(0))
    with pytest.raises(OSError, match="are free"):
        sockets.free_ports(1)
