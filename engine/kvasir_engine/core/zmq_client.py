"""An API process's connection to the core, on its asyncio loop (CoreClient)."""

from __future__ import annotations

import asyncio
import secrets
from array import array
from collections.abc import AsyncIterator

import zmq

from kvasir_engine.core.channels import HANDLES_PER_CLIENT, MAX_CLIENTS, Channels
from kvasir_engine.core.client import EngineDeadError, LoadSnapshot, RequestRejectedError
from kvasir_engine.core.status import CorePhase, CoreStatus
from kvasir_engine.messages import (
    Abort,
    Accepted,
    Add,
    CoreInfo,
    Drain,
    Drained,
    Finish,
    FromCore,
    Hello,
    Rejected,
    ResetPrefixCache,
    StepTokens,
    ToCore,
    encoder,
    from_core_decoder,
)
from kvasir_engine.request import EngineRequest, SampleDelta

DEATH_POLL_SECONDS = 0.2


class RequestStream(AsyncIterator[list[SampleDelta]]):
    """The deltas of one request, in order; ends after its last sample's finish reason."""

    def __init__(self, client: ZmqCoreClient, request: EngineRequest) -> None:
        self._client = client
        self.request = request
        self.admitted: asyncio.Future[None] = client.loop.create_future()
        self.open_samples = request.params.n
        self._waiting: list[SampleDelta] = []
        self._waker: asyncio.Future[None] | None = None
        self._error: Exception | None = None

    def __aiter__(self) -> RequestStream:
        return self

    async def __anext__(self) -> list[SampleDelta]:
        while not self._waiting:
            if self._error is not None:
                raise self._error
            if self.open_samples == 0:
                raise StopAsyncIteration
            self._waker = self._client.loop.create_future()
            await self._waker
        deltas, self._waiting = self._waiting, []
        return deltas

    async def aclose(self) -> None:
        """Stop listening; the request is aborted if it still runs."""
        self._client.drop_streams(self.request, abort=self.open_samples > 0)
        self.open_samples = 0

    def push(self, delta: SampleDelta) -> None:
        """A delta has arrived."""
        self._waiting.append(delta)
        if delta.finish_reason is not None:
            self.sample_ended()
        self.wake()

    def sample_ended(self) -> None:
        """Note that one sample brings nothing more."""
        self.open_samples -= 1
        if self.open_samples == 0:
            self._client.drop_streams(self.request, abort=False)

    def fail(self, error: Exception) -> None:
        """Raise `error` to the reader: nothing more will come."""
        self._error = error
        if not self.admitted.done():
            self.admitted.set_exception(error)
        self.wake()

    def wake(self) -> None:
        """Let a reader that waits look again."""
        if self._waker is not None and not self._waker.done():
            self._waker.set_result(None)


class ZmqCoreClient:
    """API process `client` of the engine whose processes meet in `channels`."""

    def __init__(self, channels: Channels, client: int = 0) -> None:
        if not 0 <= client < MAX_CLIENTS:
            raise ValueError(f"client must be 0 to {MAX_CLIENTS - 1}, got {client}.")
        self.loop = asyncio.get_running_loop()
        self.client = client
        self._channels = channels
        self._status = CoreStatus(channels.status)
        self._streams: dict[int, RequestStream] = {}
        # Handles are not those of a process that had this number before: some of its messages may
        # still be on their way.
        self._next_handle = secrets.randbelow(HANDLES_PER_CLIENT)
        self._incarnation = secrets.randbits(63)
        self._ready: asyncio.Future[CoreInfo] = self.loop.create_future()
        self._drained: asyncio.Future[None] = self.loop.create_future()
        self._context = zmq.Context()
        self._inbox = self._context.socket(zmq.PULL)
        self._inbox.rcvhwm = 0
        self._inbox.bind(channels.to_client(client))
        self._outbox = self._context.socket(zmq.PUSH)
        self._outbox.sndhwm = 0
        self._outbox.linger = 0
        self._outbox.connect(channels.to_core)
        self._fd = int(self._inbox.fd)
        self.loop.add_reader(self._fd, self._receive)
        self._watch = self.loop.create_task(self._watch_core())
        self._closed = False
        self._send(Hello(client, self._incarnation))

    async def wait_ready(self) -> CoreInfo:
        """CoreClient.wait_ready."""
        return await asyncio.shield(self._ready)

    async def submit(self, request: EngineRequest) -> RequestStream:
        """CoreClient.submit."""
        if not self.alive:
            raise self._death()
        request.client = self.client
        request.handle = self._handles(request.params.n)
        stream = RequestStream(self, request)
        for sample in range(request.params.n):
            self._streams[request.handle + sample] = stream
        self._send(Add.of(request, self._incarnation))
        try:
            await stream.admitted
        except asyncio.CancelledError:
            self.drop_streams(request, abort=True)
            raise
        return stream

    def finish_sample(self, request: EngineRequest, sample: int) -> None:
        """CoreClient.finish_sample."""
        stream = self._streams.pop(request.handle + sample, None)
        if stream is not None:
            self._send(Finish(request.handle + sample))
            stream.sample_ended()

    def reset_prefix_cache(self) -> None:
        """CoreClient.reset_prefix_cache."""
        self._send(ResetPrefixCache())

    def load(self) -> LoadSnapshot:
        """CoreClient.load."""
        return self._status.load()

    async def drain(self) -> None:
        """CoreClient.drain."""
        self._send(Drain(self.client))
        await asyncio.shield(self._drained)

    async def wait_dead(self) -> None:
        """Return when the core has ended."""
        await asyncio.wait({self._watch})

    @property
    def serving(self) -> bool:
        """True once the core has loaded the model, until it drains or ends."""
        return self._status.phase is CorePhase.SERVING

    @property
    def alive(self) -> bool:
        """CoreClient.alive."""
        return not self._closed and self._status.phase is not CorePhase.DEAD

    def close(self) -> None:
        """CoreClient.close."""
        if self._closed:
            return
        self._closed = True
        self._watch.cancel()
        if self._streams:
            self._send(Abort(list(self._streams)))
        self._fail_all(EngineDeadError("The engine was closed."))
        self.loop.remove_reader(self._fd)
        self._context.destroy(linger=100)
        self._status.close()

    def drop_streams(self, request: EngineRequest, *, abort: bool) -> None:
        """Drop a request's streams; with `abort`, tell the core."""
        samples = range(request.handle, request.handle + request.params.n)
        known = [handle for handle in samples if self._streams.pop(handle, None) is not None]
        if abort and known and not self._closed:
            self._send(Abort(known))

    def _handles(self, n: int) -> int:
        """The first of n consecutive free handles."""
        base = self.client * HANDLES_PER_CLIENT
        while True:
            first = self._next_handle
            if first + n > HANDLES_PER_CLIENT:
                self._next_handle = 0
                continue
            self._next_handle = first + n
            if not any(base + first + i in self._streams for i in range(n)):
                return base + first

    def _send(self, message: ToCore) -> None:
        self._outbox.send(encoder.encode(message), zmq.NOBLOCK)

    def _receive(self) -> None:
        """Read everything that has arrived. The descriptor is edge-triggered: read until empty."""
        while not self._closed:
            try:
                frame = self._inbox.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._handle(from_core_decoder.decode(frame))

    def _handle(self, message: FromCore) -> None:
        match message:
            case StepTokens():
                self._deliver_step(message)
            case Accepted(handle):
                self._admit(handle, None)
            case Rejected():
                error = RequestRejectedError(
                    message.message,
                    status=message.status,
                    param=message.param,
                    retry_after=message.retry_after,
                )
                self._admit(message.handle, error)
            case CoreInfo():
                if not self._ready.done():
                    self._ready.set_result(message)
            case Drained():
                if not self._drained.done():
                    self._drained.set_result(None)

    def _deliver_step(self, message: StepTokens) -> None:
        streams = self._streams
        for handle, token in zip(
            array("i", message.handles), array("i", message.tokens), strict=True
        ):
            stream = streams.get(handle)
            if stream is not None:
                stream.push(SampleDelta(handle, [token]))
        for delta in message.deltas:
            stream = streams.get(delta.handle)
            if stream is None:
                continue
            if delta.finish_reason is not None:
                del streams[delta.handle]
            stream.push(delta)

    def _admit(self, handle: int, error: Exception | None) -> None:
        stream = self._streams.get(handle)
        if stream is None or stream.admitted.done():
            return
        if error is None:
            stream.admitted.set_result(None)
        else:
            self.drop_streams(stream.request, abort=False)
            stream.fail(error)

    async def _watch_core(self) -> None:
        """End every stream when the core dies: it cannot say so itself."""
        # Shared memory cannot wake an event loop.
        while self._status.phase is not CorePhase.DEAD:  # noqa: ASYNC110
            await asyncio.sleep(DEATH_POLL_SECONDS)
        error = self._death()
        self._fail_all(error)
        for waiting in (self._ready, self._drained):
            if not waiting.done():
                waiting.set_exception(error)
                # Nobody may be waiting; that is no mistake worth a warning.
                waiting.exception()

    def _fail_all(self, error: Exception) -> None:
        streams = set(self._streams.values())
        self._streams.clear()
        for stream in streams:
            stream.fail(error)

    def _death(self) -> EngineDeadError:
        reason = self._channels.read_failure()
        return EngineDeadError(reason or "The engine's core has ended unexpectedly.")
