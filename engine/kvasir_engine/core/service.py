"""The core behind its sockets: messages in, one step, news out."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import astuple
from types import FrameType

import zmq

from kvasir_engine.core.build import Core
from kvasir_engine.core.channels import Channels
from kvasir_engine.core.grammar_requests import GrammarRequests, unfit_resume
from kvasir_engine.core.status import CorePhase, CoreStatus
from kvasir_engine.core.telemetry import AfterStep
from kvasir_engine.grammar.matcher import Grammar
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
    to_core_decoder,
)
from kvasir_engine.request import EngineRequest
from kvasir_engine.scheduler import admission
from kvasir_engine.scheduler.step_results import StepNews
from kvasir_engine.step_plan import StepPlan

log = logging.getLogger(__name__)

IDLE_POLL_MS = 1000
GRAMMAR_POLL_MS = 100
"""Between two looks whether a grammar takes too long."""
LOAD_INTERVAL_SECONDS = 0.01
"""Seconds between two looks at the load: its readers look every 20 ms at most."""
MAX_MESSAGES_PER_STEP = 512
"""Maximum messages handled between two steps, so that a flood of arrivals cannot keep the running
requests from their next step."""


class StepClock:
    """Keep the launch time of the oldest unfinished step in shared memory (StepWatcher)."""

    def __init__(self, status: CoreStatus) -> None:
        self._status = status
        self._launched: dict[int, float] = {}

    def launched(self, plan: StepPlan) -> None:
        """StepWatcher.launched."""
        self._launched[plan.step_id] = time.monotonic()
        self._status.set_launched_at(min(self._launched.values()))

    def retired(self, plan: StepPlan) -> None:
        """StepWatcher.retired."""
        del self._launched[plan.step_id]
        self._status.set_launched_at(min(self._launched.values(), default=0.0))


class CoreService:
    """Own the core's sockets; everything runs on one thread."""

    def __init__(
        self,
        core: Core,
        channels: Channels,
        status: CoreStatus,
        *,
        num_clients: int,
        after_step: Sequence[AfterStep] = (),
    ) -> None:
        self.core = core
        self._status = status
        self._after_step = after_step
        self._context = zmq.Context()
        self._inbox = self._context.socket(zmq.PULL)
        self._inbox.rcvhwm = 0
        self._inbox.bind(channels.to_core)
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Written by `_stop`, since a poll that a signal interrupts is begun again, and when a
        grammar is there."""
        self._poller = zmq.Poller()
        self._poller.register(self._inbox, zmq.POLLIN)
        self._poller.register(self._wake, zmq.POLLIN)
        self._grammars = GrammarRequests(core.grammars, lambda: os.eventfd_write(self._wake, 1))
        self._addresses = [channels.to_client(client) for client in range(num_clients)]
        self._clients = [self._connect(address) for address in self._addresses]
        self._incarnations: list[int | None] = [None] * num_clients
        self._draining: set[int] = set()
        self._stopping = False
        self._looked_at = 0.0
        self._lost = ""

    def _connect(self, address: str) -> zmq.Socket[bytes]:
        # Unbounded: what waits here is bounded by the running requests' own lengths, and a
        # dropped message would lose tokens.
        socket = self._context.socket(zmq.PUSH)
        socket.sndhwm = 0
        socket.linger = 0
        socket.connect(address)
        return socket

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT, or until the device fails (CoreLoop.step)."""
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # Not only in answer to a Hello: that may still wait for its connection.
        for client in range(len(self._clients)):
            self._send(client, self._ready())
        self._status.phase = CorePhase.SERVING
        while not self._stopping:
            self._turn()

    def _ready(self) -> CoreInfo:
        made = self.core.built_runner
        return CoreInfo(
            num_blocks=made.num_blocks,
            max_model_len=made.max_model_len,
            block_size=made.groups[0].block_size,
            vocab_size=made.vocab_size,
            startup_seconds=made.timings,
            dtype=made.dtype,
            quantization=made.quantization,
            kv_cache_dtype=made.groups[0].dtype,
            prefix_seed=self.core.scheduler.kv.prefix_seed,
        )

    def close(self) -> None:
        """Close the sockets and the runner."""
        self.core.built_runner.runner.close()
        self._context.destroy(linger=0)
        os.close(self._wake)

    def _stop(self, _signal: int, _frame: FrameType | None) -> None:
        self._stopping = True
        os.eventfd_write(self._wake, 1)

    def _turn(self) -> None:
        """Take in what has arrived, then one step; sleep in the socket when there is none."""
        loop = self.core.loop
        if loop.idle:
            self._status.set_turned_at(0.0)
            self._when_idle()
        now = time.monotonic()
        self._status.set_turned_at(now)
        self._receive()
        if len(self._grammars):
            self._take_grammars()
        news = loop.step()
        if news is not None:
            self._publish(news)
        self._report(now)

    def _when_idle(self) -> None:
        self._check_idle()
        waiting = len(self._grammars)
        if not waiting:
            for client in self._draining:
                self._send(client, Drained())
            self._draining.clear()
        self._poller.poll(GRAMMAR_POLL_MS if waiting else IDLE_POLL_MS)
        with suppress(BlockingIOError):
            os.eventfd_read(self._wake)

    def _check_idle(self) -> None:
        """Log what an idle core has lost, each state once; it can still serve with the rest."""
        lost = ""
        try:
            self.core.loop.check_idle()
        except AssertionError as error:
            lost = str(error)
        if lost and lost != self._lost:
            log.error(lost)
        self._lost = lost

    def _report(self, now: float) -> None:
        """Say what the step did; and how the load is, now and then and before a sleep."""
        load = None
        if now - self._looked_at >= LOAD_INTERVAL_SECONDS or self.core.loop.idle:
            self._looked_at = now
            load = self.core.scheduler.load()
            self._status.set_load(load)
        for reporter in self._after_step:
            try:
                reporter(self.core, load)
            except Exception:
                # Nobody waits for a report; once an interval is enough of a log.
                if load is not None:
                    log.exception("%s failed", type(reporter).__name__)

    # -- in -----------------------------------------------------------------------------------

    def _receive(self) -> None:
        for _ in range(MAX_MESSAGES_PER_STEP):
            # Asking costs a tenth of the exception that an empty socket raises.
            if not int(self._inbox.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
                return
            self._handle(to_core_decoder.decode(self._inbox.recv(zmq.NOBLOCK)))

    def _handle(self, message: ToCore) -> None:
        match message:
            case Hello():
                self._welcome(message)
            case Add():
                if message.incarnation == self._incarnations[message.request.client]:
                    self._add(message)
            case Abort(handles):
                for handle in handles:
                    self._grammars.end(handle)
                    self.core.loop.end(handle)
            case Finish(handle):
                self.core.loop.end(handle)
            case Drain(client):
                self._status.phase = CorePhase.DRAINING
                self._draining.add(client)
            case ResetPrefixCache():
                self.core.scheduler.kv.reset_cache()

    def _welcome(self, message: Hello) -> None:
        """An API process has started, perhaps in the place of one that has ended."""
        client = message.client
        if self._incarnations[client] is not None:
            self._grammars.end_client(client)
            self.core.loop.end_client(client)
            self._draining.discard(client)
            # With it goes what nobody has read.
            self._clients[client].close()
            self._clients[client] = self._connect(self._addresses[client])
        self._incarnations[client] = message.incarnation
        self._send(client, self._ready())

    def _add(self, message: Add) -> None:
        try:
            answer = self._answer(message.whole())
        except Exception as error:
            answer = self._failed(message.request, error)
        if answer is not None:
            self._send(message.request.client, answer)

    def _answer(self, request: EngineRequest) -> FromCore | None:
        """Admit or refuse a request that has arrived; None where it waits for its grammar."""
        if self._status.phase is CorePhase.DRAINING:
            sentence = "The engine is shutting down and admits no new requests."
            return Rejected(request.handle, 503, sentence, retry_after=1)
        if refusal := self._refusal(request):
            return refusal
        if request.constraint:
            refusal = self._grammars.begin(request)
            return self._admit(request) if refusal and request.may_be_free else refusal
        return self._admit(request)

    def _take_grammars(self) -> None:
        """Admit the requests whose grammars are there, also while the engine drains."""
        for request, outcome in self._grammars.take_ended():
            try:
                answer = self._answer_with(request, outcome)
            except Exception as error:
                answer = self._failed(request, error)
            self._send(request.client, answer)

    def _answer_with(self, request: EngineRequest, outcome: Grammar | Rejected) -> FromCore:
        unfit = outcome if isinstance(outcome, Rejected) else unfit_resume(request, outcome)
        if unfit is not None and not request.may_be_free:
            return unfit
        grammar = None if unfit is not None or isinstance(outcome, Rejected) else outcome
        return self._refusal(request) or self._admit(request, grammar)

    def _admit(self, request: EngineRequest, grammar: Grammar | None = None) -> FromCore:
        self.core.loop.add(request, grammar)
        return Accepted(request.handle)

    def _refusal(self, request: EngineRequest) -> Rejected | None:
        refusal = admission.check(self.core.scheduler, request)
        return Rejected(request.handle, *astuple(refusal)) if refusal else None

    def _failed(self, request: EngineRequest, error: Exception) -> Rejected:
        log.exception("request %s could not be admitted", request.request_id)
        self.core.loop.end(request.handle)
        sentence = f"The engine failed on this request ({type(error).__name__})."
        return Rejected(request.handle, 500, sentence)

    # -- out ----------------------------------------------------------------------------------

    def _publish(self, news: StepNews) -> None:
        for client in range(len(self._clients)):
            handles, tokens = news.handles, news.tokens
            if len(self._clients) > 1:
                mine = news.clients == client
                handles, tokens = handles[mine], tokens[mine]
            deltas = [delta for whose, delta in news.deltas if whose == client]
            if len(handles) or deltas:
                message = StepTokens(handles.tobytes(), tokens.tobytes(), deltas)
                self._send(client, message)

    def _send(self, client: int, message: FromCore) -> None:
        self._clients[client].send(encoder.encode(message), zmq.NOBLOCK)
