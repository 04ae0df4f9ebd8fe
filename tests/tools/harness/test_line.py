"""A socket that is left to the garbage collector is a ResourceWarning, which fails a test."""

from __future__ import annotations

import gc
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from harness.proof.line import Line

ASK = b"GET /model.safetensors HTTP/1.1\r\nRange: bytes=7-\r\n\r\n"


class Store:
    """Answers without end."""

    def __init__(self) -> None:
        self.full = threading.Event()
        """A connection takes no more: what is between holds all it can."""
        self.left = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._answering: list[threading.Thread] = []
        self._serving = threading.Thread(target=self._serve)
        self._serving.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._serving.join()
        self._listener.close()
        for each in self._answering:
            each.join()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                answering = threading.Thread(target=self._answer, args=(connection,))
                self._answering.append(answering)
                answering.start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, suppress(ConnectionError):
            connection.recv(1024)
            connection.settimeout(0.2)
            with suppress(TimeoutError):
                while True:
                    connection.sendall(bytes(65536))
            self.full.set()
            connection.settimeout(None)
            connection.recv(1)
        self.left.set()


@pytest.fixture
def store() -> Iterator[Store]:
    made = Store()
    yield made
    made.close()


def stay(client: socket.socket, store: Store) -> None:
    """Do nothing more."""


def leave(client: socket.socket, store: Store) -> None:
    """The line has closed the connection, but has bytes for it still."""
    client.shutdown(socket.SHUT_WR)
    assert store.left.wait(60)


@pytest.mark.slow
@pytest.mark.parametrize("rate", [None, 300_000.0])
@pytest.mark.parametrize("then", [stay, leave])
def test_no_connection_outlives_it(
    store: Store, rate: float | None, then: Callable[[socket.socket, Store], None]
) -> None:
    line = Line(store.port, "127.0.0.1")
    line.rate = rate
    with socket.create_connection(("127.0.0.1", line.port)) as client:
        client.sendall(ASK)
        assert store.full.wait(60)
        then(client, store)
        line.close()
    assert line.reads == 1
    assert line.resumed_at == [7]
    del line
    gc.collect()


@pytest.mark.slow
def test_nor_one_that_is_made_while_it_ends(store: Store) -> None:
    line = Line(store.port, "127.0.0.1")
    begun = threading.Event()
    connecting = threading.Thread(target=connect, args=(line.port, begun))
    connecting.start()
    assert begun.wait(60)
    line.close()
    connecting.join()
    del line
    gc.collect()


def connect(port: int, begun: threading.Event) -> None:
    """Many connections, until none is taken."""
    made: list[socket.socket] = []
    with suppress(OSError):
        while len(made) < 1000:
            made.append(socket.create_connection(("127.0.0.1", port), timeout=5))
            begun.set()
    for each in made:
        each.close()
