"""Free ports of the loopback interface."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack

SERVERS = range(20_000, 30_000)
"""None of those that the kernel gives to connections: who listens there may be started again."""


def free_ports(count: int) -> list[int]:
    """`count` different TCP ports that nobody listens on now."""
    found: list[int] = []
    with ExitStack() as stack:
        for port in random.SystemRandom().sample(SERVERS, len(SERVERS)):
            if len(found) == count:
                break
            held = stack.enter_context(socket.socket())
            try:
                held.bind(("127.0.0.1", port))
            except OSError:
                continue
            found.append(port)
    if len(found) < count:
        raise OSError(f"no {count} ports of {SERVERS.start}-{SERVERS.stop - 1} are free.")
    return found
