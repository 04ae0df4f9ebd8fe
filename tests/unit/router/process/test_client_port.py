"""The clients' port at its end: who has begun to connect is served, and nobody is reset."""

import asyncio
import socket

import pytest

from kvasir_router.process.client_port import listen, turn_away


def test_nobody_begins_to_connect_any_more() -> None:
    with listen("127.0.0.1", 0, "--port") as sock:
        sock.listen()
        address = sock.getsockname()
        with socket.create_connection(address) as waiting:
            turn_away(sock)
            with pytest.raises(TimeoutError):
                socket.create_connection(address, timeout=0.2)
            waiting.sendall(b"hello")
            sock.setblocking(True)
            accepted, _ = sock.accept()
            with accepted:
                assert accepted.recv(5) == b"hello"


async def test_who_waits_in_the_backlog_is_served(start_replica, start_router, model_entry, post):
    router = await start_router([model_entry("m", await start_replica())])
    request = post(b'{"model": "m"}', b"Connection: close")
    connections = [socket.create_connection(("127.0.0.1", router.port)) for _ in range(20)]
    stopping = asyncio.create_task(router.server._port.close())
    answers = []
    for connection in connections:
        connection.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=connection)
        writer.write(request)
        answers.append(await asyncio.wait_for(reader.read(), 10))
        writer.close()
    await stopping
    assert all(answer.startswith(b"HTTP/1.1 200 ") for answer in answers)
    with pytest.raises(ConnectionError):
        await asyncio.open_connection("127.0.0.1", router.port)


def test_a_shared_port_can_be_bound_twice_and_another_not() -> None:
    with listen("127.0.0.1", 0, "--port", shared=True) as one:
        port = one.getsockname()[1]
        with listen("127.0.0.1", port, "--port", shared=True):
            one.listen()
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}.*--port"):
            listen("127.0.0.1", port, "--port")
