"""How many bytes of request bodies a process holds, for all its connections together."""

from kvasir_router.wire.http_request import RequestError

ALWAYS_TAKEN = 16 * 1024
"""A body is refused only beyond so many bytes: short requests are served whatever long ones do, and
so little for each connection is bounded by their number."""


class BodyBudget:
    """A body counts from its first byte until its request is answered: it may be sent again."""

    __slots__ = ("_limit", "used")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.used = 0

    def take(self, size: int, received: int) -> None:
        """Count `size` more bytes of a body of which `received` are here now. Raises
        RequestError."""
        self.used += size
        if self.used > self._limit and received > ALWAYS_TAKEN:
            raise RequestError(
                503,
                "The router holds all the bytes of requests that it may; try again soon.",
                "overloaded",
                retry_after=1,
            )

    def give_back(self, size: int) -> None:
        """These bytes are held no longer."""
        self.used -= size
