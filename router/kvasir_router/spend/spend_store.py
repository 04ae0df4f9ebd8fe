"""A place where spend is kept, whatever it is."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


class Spender(NamedTuple):
    """A key that used something of a model on a day."""

    day: int
    """Days since 1970, UTC."""
    key: str
    """Id of an API key, or `ISSUER:TENANT` of access tokens."""
    tenant: str
    model: str


class Spend(NamedTuple):
    """Amounts that were used."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Those of the prompt tokens that were in a cache."""
    completion_tokens: int = 0

    def plus(self, other: "Spend") -> "Spend":
        """Return the sum of both."""
        return Spend(*(mine + more for mine, more in zip(self, other, strict=True)))


@dataclass(frozen=True, slots=True)
class SpendBatch:
    """Amounts to add, once: one that is sent again is known by its writer and number."""

    router: str
    """Run of a router, by its random id; all its processes share it."""
    writer: str
    """Process of it."""
    number: int
    """Higher than that of the writer's batch before."""
    rows: Mapping[Spender, Spend]


class SpendStore(ABC):
    """Base of the stores. Every method raises StoreError when the store cannot be reached."""

    @abstractmethod
    async def open(self) -> None:
        """Get ready, once, before anything else."""

    @abstractmethod
    async def add(self, batch: SpendBatch) -> None:
        """Add the batch, unless it is there."""

    @abstractmethod
    async def elsewhere(self, day: int, router: str) -> dict[str, int]:
        """Return the tokens of a day by key that others than this run of a router have used."""

    @abstractmethod
    async def report(self, first: int, last: int, limit: int) -> list[tuple[Spender, Spend]]:
        """Return what was used from day `first` to `last`, sorted, at most `limit` of it."""

    @abstractmethod
    async def close(self) -> None:
        """Give up connections; safe to call when it was never opened."""
