"""One request to one replica, up to its answer."""

import asyncio
import time
from abc import abstractmethod
from typing import Protocol

from kvasir_router.discovery.specs import OWN_ENGINES, EngineKind
from kvasir_router.fleet.choice import Choice
from kvasir_router.fleet.model import Model
from kvasir_router.fleet.replica import Health, LoadStreamState, Replica
from kvasir_router.proxy.attempts.assignment import Assignment
from kvasir_router.proxy.attempts.stream_silence import StreamLimits, StreamSilence
from kvasir_router.proxy.attempts.upstream_rendering import returned_lines
from kvasir_router.proxy.failures.failure import Failure, Kind, broken
from kvasir_router.tasks import SupervisedTasks
from kvasir_router.wire.query import Query
from kvasir_router.wire.upstream import ResponseHead, UpstreamConnection

HELD_BYTES = 256 * 1024
"""Answers up to this length are passed on when they are whole: half of one can still be replaced
by another replica's. Of an unknown length only JSON may be: events, text or sound are of use as
they come. As much as may wait for a client that reads slowly."""


STALLED_SECONDS = 10.0
"""A replica that is not heard of by a load stream, and has sent nothing to anybody for so long, is
taken to be stuck when a client gives up: its /health may answer all the same."""


class Sink(Protocol):
    """Destination of an answer's body."""

    def take(self, data: bytes, last: bool) -> None:
        """All body bytes of one read, possibly none; `last` with the end of the answer."""


class AttemptObserver:
    """Receiver of an upstream request's reports."""

    @abstractmethod
    def rendered(self, attempt: "UpstreamRequest") -> tuple[bytes, bytes]:
        """Return the request's head and body for the attempt's replica."""

    def answer_began(self, attempt: "UpstreamRequest", head: ResponseHead) -> None:
        """Take the head of an answer that is passed on as it comes."""

    def answered(self, attempt: "UpstreamRequest", head: ResponseHead, body: bytes) -> None:
        """Take a whole answer."""

    def failed(self, attempt: "UpstreamRequest", failure: Failure) -> None:
        """Take note that it has left its replica; its answer, if it had begun, is broken."""

    def replica_suspected(self, attempt: "UpstreamRequest") -> None:
        """Take note that the replica does not answer its probes."""

    def defect(self, error: Exception) -> None:
        """End the request: one of these has raised."""


class UpstreamRequest(Assignment):
    """Counted by its replica from its making until `leave`, which every way out goes through.

    Nothing here awaits, except for opening a connection when none is idle. The observer hears of
    the answer's head (`answer_began`) or, if it is held, of all of it (`answered`), and of a
    failure (`failed`), at which the attempt has left.
    """

    def __init__(
        self,
        observer: AttemptObserver,
        query: Query,
        model: Model,
        choice: Choice,
        contract: bool,
        tasks: SupervisedTasks,
        limits: StreamLimits | None,
    ) -> None:
        """`limits`: those of a stream, which hold for engines that are not Kvasir's."""
        super().__init__(query, model, choice)
        replica = choice.replica
        self._observer = observer
        self._tasks = tasks
        self.contract = contract and replica.spec.engine is EngineKind.KVASIR
        """True if the replica knows the router, and so keeps the engine contract."""
        self.asks_for_usage = False
        """True if the router asked for usage that the client did not ask for."""
        self._silence: StreamSilence | None = None
        if limits is not None and replica.spec.engine not in OWN_ENGINES:
            self._silence = StreamSilence(replica, limits)
        self._connection: UpstreamConnection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._sent_before = False
        self._head: ResponseHead | None = None
        self._parts: list[bytes] | None = None
        self._sink: Sink | None = None  # not itself: a circle would have to be collected
        replica.watchers.add(self)
        self._sent_at = 0.0
        self._parts_before = 0

    def start(self, *, afresh: bool) -> None:
        """Send the request; `afresh`: over a new connection, whose end means the replica's."""
        connection = None if afresh else self.replica.pool.take_idle()
        if connection is not None:
            self._send(connection)
        else:
            self._connect()

    def pass_to(self, sink: Sink, paused: bool) -> None:
        """The answer's body goes to `sink` from now on."""
        self._sink = sink
        if paused:
            self.pause()

    def pause(self) -> None:
        """Stop reading the answer."""
        if self._silence is not None:
            self._silence.pause()
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        """Read on."""
        if self._silence is not None:
            self._silence.resume()
        if self._connection is not None:
            self._connection.resume()

    def leave(self) -> None:
        """The replica has nothing to do with the request any more; what it still does for it is
        stopped at once."""
        if self._silence is not None:
            self._silence.end()
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()
            if self._head is None and self._is_stalled():
                self.replica.failed("no_progress")
        self.replica.watchers.discard(self)
        self.ended()

    def give_up(self, failure: Failure) -> None:
        """The replica ended its answer as one that is not complete."""
        self.note(failure)
        self._failed(failure)

    # Listener

    def response_started(self, head: ResponseHead) -> None:
        self._head = head
        if self.foreign:
            head.lines, head.usage = returned_lines(head.lines), b""
        self.replica.parts += 1
        self.began()
        length = head.content_length
        if length is None and head.is_json:
            self._room = HELD_BYTES
        elif length is None or length > HELD_BYTES:
            self._observer.answer_began(self, head)

    def response_data(self, data: bytes, last: bool) -> None:
        if last:
            self._connection = None
        if self._silence is not None and self._head is not None:
            self._silence.heard(self._head, data, last)
        self.replica.parts += 1
        (self._sink or self).take(data, last)

    def response_broken(self, reason: str) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if self._head is None and connection.reused and not self._sent_before:
            # The replica closed a kept connection as the request came, or it has ended: a fresh
            # connection tells.
            self._sent_before = True
            self._connect()
            return
        self.replica.failed(reason, Health.SUSPECT)
        self._failed(broken(reason, is_engine=not self.foreign))

    def response_failed(self, error: Exception) -> None:
        self._observer.defect(error)

    # Sink of a held answer

    def take(self, data: bytes, last: bool) -> None:
        head = self._head
        if not last:
            if self._parts is None:
                self._parts = []
            self._parts.append(data)
            if head is not None and head.content_length is None:
                self._take_room(head, len(data))
        elif head is not None:
            body = data if self._parts is None else b"".join((*self._parts, data))
            if head.content_length is None:
                head.content_length = len(body)
            self._observer.answered(self, head, body)

    def _take_room(self, head: ResponseHead, size: int) -> None:
        """An answer of unknown length that turns out to be a long one is held no longer."""
        self._room -= size
        if self._room >= 0 or self._parts is None:
            return
        data, self._parts = b"".join(self._parts), None
        self._observer.answer_began(self, head)
        if self._sink is not None:
            self._sink.take(data, False)

    # Watcher

    def replica_suspected(self, replica: Replica) -> None:
        try:
            self._observer.replica_suspected(self)
        except Exception as error:  # others watch the replica, too
            self._observer.defect(error)

    def _connect(self) -> None:
        self._connecting = self._tasks.run("connect", self._open())

    async def _open(self) -> None:
        try:
            connection = await self.replica.pool.connect()
            self._connecting = None
            self._send(connection)
        except ConnectionRefusedError:
            self._failed_to_connect("refused", Health.DOWN, Kind.UNSENT)
        except TimeoutError:
            self._failed_to_connect("connect_timeout", Health.SUSPECT, Kind.UNSENT)
        except OSError:
            self._failed_to_connect("connect_error", Health.SUSPECT, Kind.UNSENT)
        except Exception as error:
            self._connecting = None
            self._observer.defect(error)

    def _failed_to_connect(self, reason: str, health: Health, kind: Kind) -> None:
        self._connecting = None
        self.replica.failed(reason, health)
        if self._sent_before:
            kind = Kind.CHARGED if self.foreign else Kind.DEATH
        self._failed(Failure(reason, kind))

    def _failed(self, failure: Failure) -> None:
        self.leave()
        self._observer.failed(self, failure)

    def _send(self, connection: UpstreamConnection) -> None:
        self._connection = connection
        self._sent_at = time.monotonic()
        self._parts_before = self.replica.parts
        head, body = self._observer.rendered(self)
        connection.send(self, head, body)
        if self._silence is not None:
            self._silence.begin(len(body), self._silent)

    def _silent(self, reason: str, seconds: float) -> None:
        try:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.abort()
            self.replica.failed(reason)
            self._failed(Failure(reason, Kind.CHARGED, seconds))
        except Exception as error:
            self._observer.defect(error)

    def _is_stalled(self) -> bool:
        """Return whether nobody has had anything of the replica since the request was sent, long
        ago."""
        replica = self.replica
        return (
            replica.parts == self._parts_before
            and replica.load_stream_state is LoadStreamState.NONE
            and time.monotonic() - self._sent_at >= STALLED_SECONDS
        )
