"""An API process from starting to drained, and what runs in it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Protocol

from kvasir_engine.core.client import CoreClient, EngineDeadError
from kvasir_engine.messages import CoreInfo

logger = logging.getLogger(__name__)

HANDOVER_SECONDS = 5.0
"""Seconds that responses may take to write their handover event."""


class ServerPhase(StrEnum):
    """Phase of the server, as /ready answers it."""

    STARTING = "starting"
    READY = "ready"
    GPU_FAULT = "gpu_fault"
    DRAINING = "draining"
    DEAD = "dead"


class RunningResponse(Protocol):
    """A response in progress."""

    def hand_over(self) -> None:
        """End it now, so that its caller can go on with it elsewhere."""
        ...


class Peers(Protocol):
    """The API processes of this engine."""

    def mark_ready(self) -> None:
        """This one serves."""
        ...

    @property
    def all_ready(self) -> bool:
        """All of them do."""
        ...


class Fault(Protocol):
    """Fault of a GPU, for which the engine ends."""

    @property
    def is_set(self) -> bool:
        """There is one."""
        ...

    @property
    def reason(self) -> str:
        """Sentence on it."""
        ...


class Lifecycle:
    """Know whether requests are taken, and end those that outlast the drain."""

    def __init__(self, client: CoreClient) -> None:
        self._client = client
        self._running: set[RunningResponse] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._draining = False
        self.info: CoreInfo | None = None
        """None until the core serves."""
        self.peers: Peers | None = None
        """Set where the port is shared with further processes."""
        self.fault: Fault | None = None
        """Set where GPUs are watched."""

    @property
    def phase(self) -> ServerPhase:
        """The present phase."""
        if not self._client.alive:
            return ServerPhase.DEAD
        if self.has_fault:
            return ServerPhase.GPU_FAULT
        if self._draining:
            return ServerPhase.DRAINING
        if self.info is None or (self.peers is not None and not self.peers.all_ready):
            return ServerPhase.STARTING
        return ServerPhase.READY

    @property
    def ready(self) -> bool:
        """True while new requests are taken."""
        return self.phase is ServerPhase.READY

    @property
    def draining(self) -> bool:
        """True once the process has been told to stop."""
        return self._draining

    @property
    def has_fault(self) -> bool:
        """True once a GPU has failed: the engine ends as soon as nothing runs, or soon."""
        return self.fault is not None and self.fault.is_set

    @property
    def idle(self) -> bool:
        """True while no response is in progress."""
        return self._idle.is_set()

    @property
    def served_info(self) -> CoreInfo:
        """Facts that the core sent when it became ready. Raises RuntimeError before that."""
        if self.info is None:
            raise RuntimeError("the core does not serve yet")
        return self.info

    async def start(self) -> None:
        """Wait for the core; returns early when it has ended instead."""
        try:
            self.info = await self._client.wait_ready()
            if self.peers is not None:
                self.peers.mark_ready()
        except EngineDeadError as error:
            logger.error("the engine's core ended: %s", error)

    @contextmanager
    def run(self, response: RunningResponse) -> Iterator[None]:
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
