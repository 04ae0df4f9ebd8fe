"""Ports of this machine."""

from __future__ import annotations

import errno
import random
import socket
import sys
from typing import Final

SERVERS: Final = range(20_000, 30_000)
"""Ports for servers: below those that Linux gives to connections (from 32768), and below
Kubernetes' node ports."""
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
    """`count` different ports that are this process's own until it ends. They are none of those
    that the kernel gives to outgoing connections.

    Where the system allows it, each stays reserved (`reserve_port`): a server that is started
    there, or started again, finds its port free.
    """
    held = [reserve_port(host) for _ in range(count)]
    found = [int(each.getsockname()[1]) for each in held]
    for each in held:
        if sys.platform == "linux":
            each.detach()  # the descriptor stays open until the process ends
        else:  # pragma: no cover - elsewhere a reserved port would refuse its server
            each.close()
    return found


def reserve_port(host: str = "127.0.0.1") -> socket.socket:
    """A socket that reserves its port until it is closed: it is bound and never listens.

    On Linux a server may listen there that sets SO_REUSEADDR, as servers do. A further
    reservation, a bind without that option, and outgoing connections get another port, whether
    the server is up or down. Raises PortError.
    """
    # Not by the global generator: processes that seed it alike would choose alike.
    for port in (*random.SystemRandom().sample(SERVERS, TRIES), 0):
        held = socket.socket()
        try:
            held.bind((host, port))
        except OSError:
            held.close()
            continue
        # After the bind, which has to be exclusive: no two reservations share a port.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return held
    raise PortError(f"no port of {host} is free; stop what listens on {SERVERS}")
