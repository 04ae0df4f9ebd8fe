"""Ports of this machine."""

from __future__ import annotations

import errno
import socket


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
    """`count` different ports that nothing listens on, chosen by the kernel."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for held in sockets:
            held.bind((host, 0))
        return [held.getsockname()[1] for held in sockets]
    finally:
        for held in sockets:
            held.close()
