"""Ports of this machine."""

from __future__ import annotations

import errno
import random
import socket
from contextlib import ExitStack
from typing import Final

SERVERS: Final = range(20_000, 30_000)
"""Below what Linux (from 32768) gives to connections, and below Kubernetes' node ports."""
TRIES: Final = 100


class PortError(OSError):
    """A server cannot listen there; the message names the port and the flag to change."""


def require_free(host: str, port: int) -> None:
    """Raises PortError if a server could not listen on `host`:`port`."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            # Connections in TIME_WAIT of an earlier run are no reason to refuse.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortError(
                f"port {port} on {host} is in use; stop what listens there or choose another with"
                " --port"
            ) from None
        raise PortError(
            f"cannot listen on port {port} of {host}: {error.strerror}; change --host or --port"
        ) from None


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """`count` different ports that nothing listens on. They are none of those that the kernel
    gives to outgoing connections: a server that is started again finds its port still free."""
    with ExitStack() as stack:
        held = [stack.enter_context(_bound(host)) for _ in range(count)]
        return [int(each.getsockname()[1]) for each in held]


def _bound(host: str) -> socket.socket:
    # Not by the global generator: processes that seed it alike would choose alike.
    for port in random.SystemRandom().sample(SERVERS, TRIES):
        held = socket.socket()
        try:
            held.bind((host, port))
        except OSError:
            held.close()
        else:
            return held
    held = socket.socket()
    held.bind((host, 0))
    return held
