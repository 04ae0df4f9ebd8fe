"""A place where responses are kept, whatever it is."""

from abc import abstractmethod
from dataclasses import dataclass

from kvasir_router.store_error import StoreError as StoreError


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """Bounds of what is kept."""

    seconds: float
    """Time after which a response is forgotten."""
    total_bytes: int
    """Bytes of all responses, where the store itself has no bound."""
    per_key: int
    """Responses of one API key; the oldest go first."""


@dataclass(frozen=True, slots=True)
class KeptResponse:
    """One response with the conversation that led to it. `owner` is the id of the API key that
    asked for it, and alone sees it; empty where the router has no keys."""

    owner: str
    id: str
    response: bytes
    """JSON object, as the client has it."""
    items: bytes
    """JSON list of its input items, those of earlier responses included."""


class ResponseStore:
    """Base of the stores. Every method raises StoreError when the store cannot be reached."""

    @abstractmethod
    async def open(self) -> None:
        """Get ready, once, before anything else."""

    @abstractmethod
    async def put(self, kept: KeptResponse) -> None:
        """Keep a response, and forget what is beyond the limits. Raises StoreError for one that is
        larger than all that may be kept."""

    @abstractmethod
    async def find(self, owner: str, response_id: str) -> KeptResponse | None:
        """Return the owner's response; None if it has none of this id."""

    @abstractmethod
    async def delete(self, owner: str, response_id: str) -> bool:
        """Forget the owner's response; return whether there was one."""

    @abstractmethod
    async def close(self) -> None:
        """Give up connections and threads; safe to call when it was never opened."""
