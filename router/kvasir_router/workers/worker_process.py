"""A worker: serves clients by what the index process tells, and tells it what it does."""

import asyncio
from collections.abc import Callable
from functools import partial
from itertools import count

import structlog

from kvasir_router import compiled
from kvasir_router.fleet.health_monitor import HealthMonitor
from kvasir_router.fleet.model import Model
from kvasir_router.fleet.replica import LoadStreamState, Replica
from kvasir_router.process import malloc_settings
from kvasir_router.process.client_port import ClientPort
from kvasir_router.process.components import RouterComponents
from kvasir_router.process.picker_port import PickerPort
from kvasir_router.telemetry.metric_families import families_of
from kvasir_router.telemetry.router_metrics import CONTENT_TYPE
from kvasir_router.wire.responses import Answer, error
from kvasir_router.workers.control_channel import GO, LEAVING, READY, TERM, Control
from kvasir_router.workers.process_metrics import limit_families, subscriber_families
from kvasir_router.workers.process_stats import ProcessStats
from kvasir_router.workers.replication.messages import (
    Ask,
    Complete,
    Known,
    MetricsRequest,
    MetricsText,
    Poisoned,
    QueueReport,
    StatsReport,
    ToWorker,
)
from kvasir_router.workers.replication.replica_state import ReplicaState
from kvasir_router.workers.replication.subscriber import IndexSubscriber
from kvasir_router.workers.shared_state import Shared, worker_settings
from kvasir_router.workers.whole_lines import WholeLines

_log = structlog.get_logger("kvasir_router.workers")

_WAITS_SECONDS = 1.0
_LOOK_SECONDS, _BUSY_LOOK_SECONDS = 0.05, 0.002
"""Between two looks at what others have in flight, besides those for each choice: with nobody
waiting for room here, and with somebody."""
_METRICS_SECONDS = 2.0
_TAKE_OVER_SECONDS = 10.0
_FAREWELL_SECONDS = 0.02
"""Seconds to flush the last messages before exiting."""

_NO_METRICS = error(
    503,
    "The index process, which adds up the metrics, does not answer.",
    "metrics_unavailable",
    retry_after=1,
)


class RouterWorker(RouterComponents):
    """One of several processes behind the same port."""

    def __init__(self, shared: Shared, slot: int, column: int) -> None:
        """`slot`: which worker it is, from 0; `column`: its own in the load table."""
        super().__init__(worker_settings(shared.settings), WholeLines(1), shared.run)
        gateway, settings = self.gateway, self.settings
        self._slot = slot
        self._column = column
        self._table = shared.load
        self._link = IndexSubscriber(
            shared.link_path,
            self._handle_message,
            self._index_away,
            self._index_back,
            gateway.tasks,
        )
        self._follower = ReplicaState(self, shared.load, column, self._link.tell)
        self.metrics.register(partial(subscriber_families, self._link))
        self._probes = HealthMonitor(settings.probing, gateway.fleet_secrets, gateway.tasks.child())
        self._probed: list[tuple[Model, Replica]] = []
        self._known = asyncio.Event()
        self._tasks = gateway.tasks.child()
        self._port = ClientPort(gateway, settings.tls)
        self._picker = PickerPort(gateway)
        self._questions = count()
        self._asked: dict[int, Callable[[Answer], None]] = {}
        gateway.poison.added = lambda digest: self._link.tell(Poisoned(digest))
        gateway.ask_metrics = self._ask_metrics
        if not gateway.admission.is_open:
            gateway.admission.limit_by(shared.ledger.limits)
            self.metrics.register(partial(limit_families, shared.ledger))

    async def run(self, control: Control) -> None:
        """Serve until told to stop, or to make room for another worker."""
        self.gateway.tasks.watch_loop()
        await self.load_keys()
        tasks = self._tasks
        tasks.keep("index link", self._link.run, required=True)
        tasks.keep("others' load", self._look, required=True, every=_LOOK_SECONDS)
        tasks.keep("waiting counts", self._say, every=_WAITS_SECONDS)
        tasks.keep("free memory", malloc_settings.give_back_freed)
        word = tasks.run("control", control.word())
        known = tasks.run("first state", self._known.wait())
        await asyncio.wait({word, known}, return_when=asyncio.FIRST_COMPLETED)
        if known.done():
            url = await self._port.open(control.listener)
            await self._picker.open(self.settings.picker.port, shared=True)
            malloc_settings.settle()
            control.say(READY)
            form = compiled.in_use()
            _log.info("worker listening", worker=self._slot, url=url, compiled=form)
            await self._leave(control, await word)
        known.cancel()
        self._link.tell(self._counted())
        await asyncio.sleep(_FAREWELL_SECONDS)
        await tasks.stop()
        await self._probes.stop()
        await self._port.stop()
        await self._picker.stop()
        await self.close()
        _log.info("worker stopped", worker=self._slot)

    async def _leave(self, control: Control, word: bytes) -> None:
        """Let another worker take over, or stop as the whole router does; then drain."""
        if word != GO:
            control.say(LEAVING)
            word = await self._taken_over(control)
        self.gateway.stopping = True
        if word == GO:
            await asyncio.sleep(self.settings.pre_stop_delay)
            await self._port.close()
        else:
            self._port.leave()  # the socket stays open, and whoever comes is the other worker's
        await self._picker.close()
        draining = self._tasks.run("drain", self.gateway.drain(self.settings.drain_timeout))
        second = self._tasks.run("control", control.word())
        await asyncio.wait({draining, second}, return_when=asyncio.FIRST_COMPLETED)
        draining.cancel()
        second.cancel()

    async def _taken_over(self, control: Control) -> bytes:
        """Wait until another worker serves, or the whole router stops; not forever."""
        try:
            async with asyncio.timeout(_TAKE_OVER_SECONDS):
                return await control.word()
        except TimeoutError:
            _log.warning("no other worker came", worker=self._slot)
            return TERM

    # From the index process

    def _handle_message(self, message: ToWorker) -> None:
        self._follower.apply_message(message)
        if isinstance(message, Known):
            self._known.set()
        elif isinstance(message, Complete):
            if self._follower.teaches:
                self._tasks.run("texts", self._tell_texts())
        elif isinstance(message, Ask):
            self._link.tell(self._counted())
        elif isinstance(message, MetricsText):
            answer = self._asked.pop(message.question, None)
            if answer is not None:
                answer(Answer(200, message.text, CONTENT_TYPE))

    def _index_away(self) -> None:
        """Nobody else looks after the replicas now. What they last said of themselves is old."""
        for model, replica in self._follower.replicas:
            replica.heard(LoadStreamState.NONE)
            self._probes.watch(model, replica)
            self._probed.append((model, replica))

    def _index_back(self) -> None:
        for model, replica in self._probed:
            self._probes.forget_replica(model, replica)
        self._probed = []

    # To the index process

    async def _tell_texts(self) -> None:
        """Teach a new index process, which knows no prompts, and so not which blocks matter."""
        for log in self._follower.log.all():
            for message in log.texts():
                await self._link.has_room()
                self._link.tell(message)

    def _counted(self) -> StatsReport:
        signals = self.gateway.signals
        latencies = {name: signals.model(name).state() for name in self.fleet.models}
        canaries = {
            name: model.split.samples().report()
            for name, model in self.fleet.models.items()
            if model.split is not None
        }
        return StatsReport(ProcessStats(families_of(self.metrics.collect()), latencies, canaries))

    def _ask_metrics(self, answer: Callable[[Answer], None]) -> None:
        question = next(self._questions)
        self._asked[question] = answer
        self._link.tell(MetricsRequest(question))
        asyncio.get_running_loop().call_later(_METRICS_SECONDS, self._give_up, question)

    def _give_up(self, question: int) -> None:
        answer = self._asked.pop(question, None)
        if answer is not None:
            answer(_NO_METRICS)

    async def _say(self) -> None:
        """Tell the index process how many wait here, forever."""
        queue = self.gateway.queue
        said: dict[str, tuple[int, int]] = {}
        while True:
            await asyncio.sleep(_WAITS_SECONDS)
            waits = {
                model.name: (queue.wanting(model), queue.waiting_tokens(model))
                for model in self.fleet.models.values()
                if queue.wanting(model)
            }
            if waits or said:
                self._link.tell(QueueReport(waits))
            said = waits

    async def _look(self) -> None:
        """Learn of room that others' requests leave, and say that the loop turns, forever."""
        others, queue = self._follower.others, self.gateway.queue
        while True:
            waits = any(queue.waiting(model) for model in self.fleet.models.values())
            await asyncio.sleep(_BUSY_LOOK_SECONDS if waits else _LOOK_SECONDS)
            if not waits:
                others.find()
            others.refresh()
            self._table.beat(self._column)
