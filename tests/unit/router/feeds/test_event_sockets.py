"""Messages that wait cost neither their connection nor the process."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import asyncio
import sys
import time

import zmq
from zmq.utils.monitor import recv_monitor_message

from kvasir_router.feeds.event_sockets import EventSockets
from kvasir_router.fleet_secrets import FleetSecrets
from kvasir_router.tasks import SupervisedTasks

SECONDS = 20_000
KINDS = {"live": (zmq.SUB, zmq.XPUB), "replay": (zmq.DEALER, zmq.ROUTER)}


def wait_for(monitor, event, milliseconds):
    while monitor.poll(milliseconds):
        if recv_monitor_message(monitor)["event"] == event:
            return True
    return False


def send_until_full(server, address):
    # Nobody reads: soon neither the client's socket nor TCP takes any more
    sent, refused = 0, 0
    while refused < 20:
        try:
            server.send_multipart([*address, b"", bytes(16384)], zmq.NOBLOCK)
            sent, refused = sent + 1, 0
        except zmq.Again:
            refused += 1
            time.sleep(0.05)
    return sent


async def main(name):
    kind, opposite = KINDS[name]
    sockets, context = EventSockets(FleetSecrets(), SupervisedTasks()), zmq.Context()
    server = context.socket(opposite)
    server.sndhwm = 10
    server.setsockopt(zmq.XPUB_NODROP if name == "live" else zmq.ROUTER_MANDATORY, 1)
    server.bind_to_random_port("tcp://127.0.0.1")
    client = sockets.open(kind, "")
    monitor = client.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
    if name == "live":
        client.subscribe(b"")
    client.connect(server.getsockopt_string(zmq.LAST_ENDPOINT))
    if name == "replay":
        client.send_multipart([b"", b"question"])
    assert server.poll(SECONDS)
    first, *_ = server.recv_multipart()
    sent = send_until_full(server, [] if name == "live" else [first])
    broken = wait_for(monitor, zmq.EVENT_DISCONNECTED, 9000)
    if broken:
        wait_for(monitor, zmq.EVENT_HANDSHAKE_SUCCEEDED, 2000)
    count = 0
    while client.poll(500):
        client.recv_multipart()
        count += 1
    # Its thread for all connections has seen that there is room again, and is there
    other, end = sockets.open(zmq.DEALER, ""), context.socket(zmq.ROUTER)
    end.bind_to_random_port("tcp://127.0.0.1")
    other.connect(end.getsockopt_string(zmq.LAST_ENDPOINT))
    other.send(b"")
    assert end.poll(SECONDS)
    print(f"broken {broken}, missing {sent - count}")
    for each in (server, end, monitor, client, other):
        each.close(linger=0)


asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["live", "replay"])
def test_a_connection_outlives_a_reader_that_is_busy(name: str) -> None:
    """For longer than any silence is borne; libzmq aborts the process when it connects a full
    socket again (its issue 3937)."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, name],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "broken False, missing 0\n", "")
