"""An API process from starting to drained, and what runs in it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Protocol

from kvasir_engine.core.client import CoreClient, CoreInfo, EngineDeadError

logger = logging.getLogger(__name__)

HANDOVER_SECONDS = 5.0
"""How long responses may take to write their handover event."""


class Phase(StrEnum):
    """What /ready answers."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    DEAD = "dead"


class Running(Protocol):
    """A response in progress."""

    def hand_over(self) -> None:
        """End it now, so that its caller can go on with it elsewhere."""
        ...


class Peers(Protocol):
    """The API processes of this engine."""

    def here(self) -> None:
        """This one serves."""
        ...

    @property
    def complete(self) -> bool:
        """All of them do."""
        ...


class Lifecycle:
    """Knows whether requests are taken, and ends those that outlast the drain."""

    def __init__(self, client: CoreClient) -> None:
        self._client = client
        self._running: set[Running] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._draining = False
        self.info: CoreInfo | None = None
        """None until the core serves."""
        self.peers: Peers | None = None
        """Set where the port is shared with further processes."""

    @property
    def phase(self) -> Phase:
        """The present phase."""
        if not self._client.alive:
            return Phase.DEAD
        if self._draining:
            return Phase.DRAINING
        if self.info is None or (self.peers is not None and not self.peers.complete):
            return Phase.STARTING
        return Phase.READY

    @property
    def ready(self) -> bool:
        """True while new requests are taken."""
        return self.phase is Phase.READY

    @property
    def draining(self) -> bool:
        """True once the process has been told to stop."""
        return self._draining

    @property
    def served_info(self) -> CoreInfo:
        """What the core said when it became ready. Raises RuntimeError before that."""
        if self.info is None:
            raise RuntimeError("the core does not serve yet")
        return self.info

    async def start(self) -> None:
        """Wait for the core; returns early when it has ended instead."""
        try:
            self.info = await self._client.wait_ready()
            if self.peers is not None:
                self.peers.here()
        except EngineDeadError as error:
            logger.error("the engine's core ended: %s", error)

    @contextmanager
    def run(self, response: Running) -> Iterator[None]:
        """Count a response as running for as long as the block lasts."""
        self._running.add(response)
        self._idle.clear()
        try:
            yield
        finally:
            self._running.discard(response)
            if not self._running:
                self._idle.set()

    async def drain(self, seconds: float) -> None:
        """Take nothing new; return when nothing runs. What still runs after `seconds` is handed
        over: its response ends with a handover event, or with an error for a plain client."""
        self._draining = True
        try:
            async with asyncio.timeout(seconds):
                await self._client.drain()
                await self._idle.wait()
        except EngineDeadError:
            return
        except TimeoutError:
            await self._hand_over()

    async def _hand_over(self) -> None:
        for response in list(self._running):
            response.hand_over()
        try:
            async with asyncio.timeout(HANDOVER_SECONDS):
                await self._idle.wait()
        except TimeoutError:
            logger.warning("%d responses did not end at the drain deadline", len(self._running))
