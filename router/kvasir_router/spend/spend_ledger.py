"""Spend of this process that is not yet written down, and that of others."""

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Iterator
from itertools import count, islice

import structlog
from prometheus_client.core import Metric

from kvasir_router.spend.spend_store import Spend, SpendBatch, Spender, SpendStore
from kvasir_router.store_error import StoreError
from kvasir_router.telemetry.router_metrics import counter

SYNC_SECONDS = 2.0
"""Between two exchanges with the store: so long may several routers know nothing of each other."""
MAX_PENDING = 100_000
"""Rows that wait for a store that is away; what would be one more is not written down."""
_MAX_ROWS = 1000
"""Rows of one batch: the store serves others meanwhile."""
DAY_SECONDS = 86_400

_log = structlog.get_logger("kvasir_router.spend")


class SpendLedger:
    """Adds up what requests use, and exchanges it with the store every SYNC_SECONDS.

    A batch whose fate is not known is sent again as it is until the store has it.
    """

    def __init__(self, store: SpendStore, router: str) -> None:
        """`router`: this run of the router, by a random id that its processes share."""
        self.store = store
        self._router = router
        self._writer = f"{router}:{secrets.token_hex(8)}"
        self._numbers = count(1)
        self._pending: dict[Spender, Spend] = {}
        self._sending: SpendBatch | None = None
        self._elsewhere: dict[str, int] = {}
        self._day = -1
        """Day of `_elsewhere`."""
        self._failing = False
        self._exchanging = asyncio.Lock()
        self.syncs: Counter[str] = Counter()
        """Exchanges with the store, by result."""
        self.dropped = 0
        """Requests that were not written down."""

    def used(
        self, key: str, tenant: str, model: str, prompt: int, cached: int, output: int
    ) -> None:
        """Note the tokens of a request that ends now."""
        amounts = Spend(1, prompt, cached, output)
        who = Spender(int(time.time() // DAY_SECONDS), key, tenant, model)
        before = self._pending.get(who)
        if before is not None:
            amounts = before.plus(amounts)
        elif len(self._pending) >= MAX_PENDING:
            self.dropped += 1
            return
        self._pending[who] = amounts

    def elsewhere(self, key: str, unix: float) -> float:
        """Return the tokens that a key has used today before this router began, and in others."""
        return float(self._elsewhere.get(key, 0)) if unix // DAY_SECONDS == self._day else 0.0

    async def open(self) -> None:
        """Open the store and learn what was spent today. Raises StoreError for a file that cannot
        be used."""
        await self.store.open()
        await self.sync()

    async def follow(self) -> None:
        """Exchange with the store, forever."""
        while True:
            await asyncio.sleep(SYNC_SECONDS)
            await self.sync()

    async def sync(self) -> None:
        """Write down what is pending, and learn what others have; a store that is away is told of
        once."""
        async with self._exchanging:
            await self._sync()

    async def _sync(self) -> None:
        try:
            while (batch := self._next()) is not None:
                await self.store.add(batch)
                self._sending = None
            day = int(time.time() // DAY_SECONDS)
            self._elsewhere = await self.store.elsewhere(day, self._router)
            self._day = day
        except StoreError as error:
            self.syncs["failed"] += 1
            if not self._failing:
                self._failing = True
                _log.error("spend cannot be written down now", reason=str(error))
        else:
            self.syncs["ok"] += 1
            if self._failing:
                self._failing = False
                _log.info("spend is written down again")

    async def close(self) -> None:
        """Write down what is left, and close the store."""
        await self.sync()
        await self.store.close()

    def families(self) -> Iterator[Metric]:
        """Yield how the store does."""
        yield counter("spend_syncs", "Exchanges with the store of spend.", self.syncs, "result")
        text = "Requests whose spend is not written down: the store was away for too long."
        yield counter("spend_dropped", text, self.dropped)

    def _next(self) -> SpendBatch | None:
        """Return the batch to send; one that may have failed goes first, as it was."""
        if self._sending is None and self._pending:
            rows = dict(islice(self._pending.items(), _MAX_ROWS))
            for who in rows:
                del self._pending[who]
            self._sending = SpendBatch(self._router, self._writer, next(self._numbers), rows)
        return self._sending
