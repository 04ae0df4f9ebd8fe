"""Number of routers that share the clients, by a DNS name that leads to each Ready one of them,
such as that of a headless Service."""

import asyncio
import socket
from collections import Counter
from collections.abc import Awaitable, Callable

import structlog

_LOOK_SECONDS = 5.0

_log = structlog.get_logger("kvasir_router.peers")


async def addresses_of(name: str) -> int:
    """Return the number of addresses of `name` in its larger family. Raises OSError."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    families = Counter(family for family, *_ in set(found))
    return max(families.values(), default=0)


async def follow_peers(
    share: Callable[[int], bool],
    name: str,
    every: float = _LOOK_SECONDS,
    count: Callable[[str], Awaitable[int]] = addresses_of,
) -> None:
    """Have `share` divide the limits by the number of routers behind `name`, for ever; it returns
    whether that is another one.

    While nothing is found, as before this router itself is Ready, the last number stays.
    """
    while True:
        try:
            routers = await count(name)
        except OSError as error:
            _log.debug("no router is found", name=name, error=str(error))
            routers = 0
        if routers and share(routers):
            _log.info("limits are divided anew", routers=routers)
        await asyncio.sleep(every)
