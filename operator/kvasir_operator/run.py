"""Run of the operator: from its settings until it is told to stop or loses its Lease."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

import structlog

from kvasir.kube import AccessError, ApiError
from kvasir.kube.client import Cluster
from kvasir.kube.config import load_access
from kvasir_operator.controller.class_holder import ClassHolder, ClassTakenError
from kvasir_operator.controller.crd_check import (
    CRDMissingError,
    missing_fields,
    missing_kind,
    require_classes,
)
from kvasir_operator.controller.metrics import Metrics
from kvasir_operator.controller.name_claimer import NameClaimer
from kvasir_operator.controller.observe import Observer
from kvasir_operator.controller.reconcile import Reconciler
from kvasir_operator.controller.view import View
from kvasir_operator.controller.watches import WatchError, Watching
from kvasir_operator.controller.work_queue import Key, WorkQueue
from kvasir_operator.departures.departures import Departures
from kvasir_operator.departures.gpu_faults import GpuFaultEvents
from kvasir_operator.health_server import serve
from kvasir_operator.lease import Leadership, LeaseLostError
from kvasir_operator.lora.lora_client import LoraClient
from kvasir_operator.lora.lora_loader import LoraLoader
from kvasir_operator.readiness_gates import ReadinessGates
from kvasir_operator.router_answers import RouterAnswers
from kvasir_operator.scaling.autoscaler import Autoscaler
from kvasir_operator.settings import OperatorSettings

_WORKERS = 4

_log = structlog.get_logger("kvasir_operator")


class OperatorError(Exception):
    """The operator cannot go on; one sentence on why."""


_EXPECTED = (ClassTakenError, LeaseLostError, OperatorError, WatchError, CRDMissingError)
"""Ends of the work that are no defects of ours."""


async def run(settings: OperatorSettings) -> None:
    """Run the operator until SIGTERM or SIGINT. Raises OperatorError."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    # They tell of every watch that ends, and of every request
    for name in ("kopf", "httpx"):
        logging.getLogger(name).setLevel(logging.WARNING)
    metrics = Metrics()
    leads = asyncio.Event()
    try:
        # A connection of its own for the Lease: what else is sent must not hold up its renewal
        async with Cluster(await load_access()) as for_lease:
            leadership = Leadership(for_lease, settings)
            async with (
                Cluster(await load_access(), may_write=leadership.may_write) as cluster,
                serve(settings.host, settings.metrics_port, metrics, leads.is_set) as port,
            ):
                _log.info("serving metrics", port=port)
                try:
                    await _until(stop, _lead(cluster, settings, leadership, metrics, leads, stop))
                finally:
                    await leadership.release()
    except (AccessError, LeaseLostError) as error:
        raise OperatorError(str(error)) from error


async def _lead(
    cluster: Cluster,
    settings: OperatorSettings,
    leadership: Leadership,
    metrics: Metrics,
    leads: asyncio.Event,
    stop: asyncio.Event,
) -> None:
    """Wait for the Lease, and work while it is held."""
    await leadership.acquire()
    leads.set()
    metrics.leads(True)
    view, queue = View(settings.class_name), WorkQueue[Key]()
    routers = RouterAnswers(view, settings)
    autoscaler = Autoscaler(cluster, view, settings, metrics, queue.add)
    observer = Observer(cluster, view, settings, routers, autoscaler.problem)
    gatekeeper = ReadinessGates(cluster, view, settings, metrics, routers)
    lora_client = LoraClient(settings)
    adapters = LoraLoader(cluster, view, metrics, lora_client)
    gatekeeper.is_settled = adapters.is_settled
    classes = ClassHolder(cluster, view, settings, metrics)
    names = NameClaimer(cluster, view, settings, metrics)
    signals = settings.node_signals if settings.node_drain else None
    departures = Departures(cluster, view, signals, metrics)

    gpu_faults = GpuFaultEvents(cluster, view, metrics)

    pod_changed = partial(_wake, gatekeeper, adapters, departures, gpu_faults)
    watching = Watching(view, queue, settings, pod_changed, departures.wake)
    reconciler = Reconciler(
        cluster, view, queue, observer, classes, names, adapters, settings, metrics
    )
    try:
        async with asyncio.TaskGroup() as tasks:
            # First: whatever the rest waits for, the Lease is renewed meanwhile
            tasks.create_task(leadership.hold())
            await _check_crds(cluster)
            await _begin(classes, names)
            _follow_secret(settings, view, queue)
            tasks.create_task(gatekeeper.run())
            tasks.create_task(departures.run())
            tasks.create_task(gpu_faults.run())
            tasks.create_task(adapters.run())
            tasks.create_task(autoscaler.run())
            tasks.create_task(_resync(view, queue, settings.resync_seconds))
            tasks.create_task(_keep_class(classes, view, settings.resync_seconds))
            if settings.external_metrics_port:
                tasks.create_task(_serve_external_metrics(cluster, view, settings))
            for _ in range(_WORKERS):
                tasks.create_task(reconciler.run())
            # Last: when kopf ends it cancels all tasks that were made after its own
            tasks.create_task(_watch(watching, stop))
    except ExceptionGroup as group:
        # Not `except*`: before Python 3.11.4 what it raises comes out as a group, with a traceback
        expected, defects = group.split(_EXPECTED)
        if expected is None or defects is not None:
            raise
        raise OperatorError(str(expected.exceptions[0])) from None
    finally:
        settings.fleet_secret.stop()
        await observer.close()
        await lora_client.close()


def _wake(*woken: ReadinessGates | LoraLoader | Departures | GpuFaultEvents) -> None:
    for each in woken:
        each.wake()


async def _check_crds(cluster: Cluster) -> None:
    """Wait for the API server, and for it to serve what is defined: kinds that are not served when
    watching begins are never watched. Raises CRDMissingError."""
    waits_for = ""
    while True:
        try:
            lacking = await missing_fields(cluster)
            missing = await missing_kind(cluster)
        except ApiError as error:
            missing = str(error)
        if missing is None and not waits_for:
            break
        if missing is None:
            waits_for = ""  # the fields were read before the kind was there
            continue
        if missing != waits_for:
            waits_for = missing
            _log.warning("a CustomResourceDefinition cannot be used", missing=missing)
        await asyncio.sleep(1.0)
    if lacking:
        require_classes(lacking)
        _log.error("the installed CustomResourceDefinition is too old", lacks=lacking)


async def _begin(classes: ClassHolder, names: NameClaimer) -> None:
    """Make the class, and claim what no operator could claim yet, before anything is watched.
    Raises ClassTakenError."""
    while True:
        try:
            await classes.ensure_class()
            await names.claim_by_age()
            return
        except ApiError as error:
            _log.warning("class and names are not claimed yet", error=str(error))
            await asyncio.sleep(1.0)


async def _keep_class(classes: ClassHolder, view: View, seconds: float) -> None:
    """Make the class again as soon as somebody has deleted it. Raises ClassTakenError."""
    while True:
        with suppress(TimeoutError):
            await asyncio.wait_for(view.class_gone.wait(), seconds)
        view.class_gone.clear()
        try:
            await classes.ensure_class()
        except ApiError as error:
            _log.warning("the class cannot be checked", error=str(error))


async def _watch(watching: Watching, stop: asyncio.Event) -> None:
    """Signals end kopf, which takes them over when it begins, and with it everything else."""
    await watching.run(stop)
    stop.set()


async def _serve_external_metrics(cluster: Cluster, view: View, settings: OperatorSettings) -> None:
    from kvasir_operator.external_metrics.metrics_server import serve_external_metrics

    try:
        await serve_external_metrics(cluster, view, settings)
    except OSError as error:
        port = settings.external_metrics_port
        raise OperatorError(f"--external-metrics-port {port} cannot be used: {error}") from None


def _follow_secret(settings: OperatorSettings, view: View, queue: WorkQueue[Key]) -> None:
    """Bring another fleet secret to the engines as soon as it is here."""
    loop = asyncio.get_running_loop()

    def renew() -> None:
        keys = view.keys()
        for key in keys:
            queue.add(key)

    settings.fleet_secret.follow(lambda: loop.call_soon_threadsafe(renew))


async def _resync(view: View, queue: WorkQueue[Key], seconds: float) -> None:
    """Every LLMDeployment again, evenly spread, though nothing may have happened."""
    while True:
        # Also those that are gone and still have names
        keys = list({*view.keys(), *view.claim_holders()})
        for key in keys:
            await asyncio.sleep(seconds / len(keys))
            queue.add(key)
        if not keys:
            await asyncio.sleep(min(seconds, 5.0))


async def _until(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Run `work` until it ends or `stop` is set; raise what it raises."""
    working, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not working.done():
        working.cancel()
    with suppress(asyncio.CancelledError):
        await working
