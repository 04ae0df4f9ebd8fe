"""Have every engine hold the LoRA adapters of its LLMDeployment, without a restart.

What a run of an engine holds stands in an annotation of its pod. Routers read it there, the plan
counts it, and an operator that begins anew goes on from it. A container that restarts is another
run: it holds nothing, and gets everything again.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Protocol

import structlog

from kvasir.kube.client import Cluster
from kvasir.kube.objects import (
    Object,
    annotation,
    container_run,
    holds,
    is_terminating,
    name_of,
)
from kvasir.resource import labels
from kvasir.resource.lora.lora_held import HeldAdapters
from kvasir.resource.ownership.name_claims import adapter_names
from kvasir_operator.controller.metrics import Metrics
from kvasir_operator.controller.view import View
from kvasir_operator.controller.work_queue import Key
from kvasir_operator.kinds import PODS
from kvasir_operator.lora.lora_client import LoraRefusedError
from kvasir_operator.pod_writer import PodWriter, UnfinishedError, owner_of
from kvasir_operator.spec_facts import held_by_pod

_WRITERS = 16
"""Pods that are worked on at the same time; each loads one adapter after the other."""
_TOGETHER_SECONDS = 0.1
"""Seconds that pass before the next look at all pods, whatever has changed: each change is one."""
_LOOK_SECONDS = 5.0
_LONGEST_PAUSE = 60.0
_WRITE_EVERY = 2.0
"""Seconds after which a pod's annotation is written though more adapters are to be loaded."""
TURN_AWAY_SECONDS = 2.0
"""Seconds that routers get to turn away from an adapter before it is unloaded."""

_log = structlog.get_logger("kvasir_operator.lora_loader")


class Loads(Protocol):
    """Client that loads adapters into an engine: `LoraClient` is one."""

    async def load(self, pod: Object, name: str, directory: str) -> None:
        """Load one. Raises LoraRefusedError."""

    async def unload(self, pod: Object, name: str) -> None:
        """Unload one. Raises LoraRefusedError."""


class LoraLoader:
    """The only writer of labels.ADAPTERS. An engine that refuses or hangs is asked again by itself,
    with pauses that grow, while the others go on."""

    def __init__(
        self,
        cluster: Cluster,
        view: View,
        metrics: Metrics,
        client: Loads,
        turn_away: float = TURN_AWAY_SECONDS,
    ) -> None:
        self._view = view
        self._client = client
        self._turn_away = turn_away
        self._wanted: dict[Key, Mapping[str, str] | None] = {}
        self._news = asyncio.Event()
        self._writer = PodWriter(
            cluster,
            view,
            metrics,
            self._settle,
            longest_pause=_LONGEST_PAUSE,
            seconds=None,
            failed=partial(_log.warning, "adapters are not loaded"),
        )

    def want(self, key: Key, adapters: Mapping[str, str] | None) -> None:
        """Take what engines of an LLMDeployment shall hold: directories by names, as the plan says.
        None = nothing is asked of them."""
        if self._wanted.get(key, ...) != adapters:
            self._wanted[key] = None if adapters is None else dict(adapters)
            self._news.set()

    def forget(self, key: Key) -> None:
        """The LLMDeployment is gone."""
        self._wanted.pop(key, None)

    def wake(self) -> None:
        """Note that a pod has changed."""
        self._news.set()

    def is_settled(self, pod: Object) -> bool:
        """Tell if this run of a pod's engine was asked for each adapter that it shall hold,
        whatever it said: until then it would answer to fewer names than the one that it
        replaces."""
        key = owner_of(pod)
        if key not in self._wanted:
            return not adapter_names(self._view.resource(key) or {})
        wanted, held = self._wanted[key], held_by_pod(pod)
        if not wanted:
            return True
        return held is not None and wanted.keys() <= {*held.held, *held.refused}

    async def run(self) -> None:
        """Look for ever, whenever something has changed."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(_WRITERS):
                tasks.create_task(self._writer.work())
            while True:
                self._news.clear()
                self._look()
                try:
                    await asyncio.wait_for(self._news.wait(), _LOOK_SECONDS)
                except TimeoutError:
                    continue
                await asyncio.sleep(_TOGETHER_SECONDS)

    def _look(self) -> None:
        """Queue the pods whose engines do not hold what they shall."""
        if not any(wanted is not None for wanted in self._wanted.values()):
            return
        for pod in self._view.engine_pods():
            wanted = self._wanted.get(owner_of(pod))
            if wanted is not None and _is_up(pod) and not is_done(pod, wanted):
                self._writer.offer(pod)

    async def _settle(self, pod: Object) -> None:
        """Have one engine hold what it shall. Raises ApiError, and UnfinishedError if it refuses
        a part."""
        wanted = self._wanted.get(owner_of(pod))
        if wanted is None or not _is_up(pod):
            return
        run = container_run(pod, labels.ENGINE_CONTAINER)
        before = held_by_pod(pod) or HeldAdapters(run)
        going = [name for name, it in before.held.items() if wanted.get(name) != it]
        kept = {name: it for name, it in before.held.items() if name not in going}
        refused = {name: why for name, why in before.refused.items() if name in wanted}
        now = HeldAdapters(run, kept, refused)
        if going:
            await self._unload(pod, now, going)
        now = await self._load(pod, now, wanted)
        await self._write(pod, now)
        if now.refused:
            raise UnfinishedError

    async def _unload(self, pod: Object, now: HeldAdapters, going: list[str]) -> None:
        """Tell routers first, which send it no more requests for these, and then the engine."""
        await self._write(pod, now)
        await asyncio.sleep(self._turn_away)
        for name in going:
            try:
                await self._client.unload(pod, name)
            except LoraRefusedError as error:
                # It only takes memory; loaded again under its name, it is unloaded before
                _log.warning("an adapter stays", pod=name_of(pod), adapter=name, error=str(error))
            else:
                _log.info("adapter unloaded", pod=name_of(pod), adapter=name)

    async def _load(
        self, pod: Object, now: HeldAdapters, wanted: Mapping[str, str]
    ) -> HeldAdapters:
        held, refused, written = dict(now.held), dict(now.refused), time.monotonic()
        for name in in_turn(wanted, now):
            try:
                await self._load_one(pod, name, wanted[name])
            except LoraRefusedError as error:
                if refused.get(name) != str(error):
                    _log.warning("refused", pod=name_of(pod), adapter=name, error=str(error))
                refused[name] = str(error)
                if not error.answered:
                    break  # the others would wait as long: they come after a pause
            else:
                held[name] = wanted[name]
                refused.pop(name, None)
                _log.info("adapter loaded", pod=name_of(pod), adapter=name)
            if time.monotonic() - written >= _WRITE_EVERY:
                written = time.monotonic()
                await self._write(pod, replace(now, held=held, refused=refused))
        return replace(now, held=held, refused=refused)

    async def _load_one(self, pod: Object, name: str, directory: str) -> None:
        """Load an adapter; one that is there under its name, of which nobody knows where it came
        from, makes room first."""
        try:
            await self._client.load(pod, name, directory)
        except LoraRefusedError as error:
            if not error.is_there:
                raise
            await self._client.unload(pod, name)
            await self._client.load(pod, name, directory)

    async def _write(self, pod: Object, now: HeldAdapters) -> None:
        """Write what the engine holds, if it has changed. Raises ApiError."""
        seen = self._view.find(PODS, owner_of(pod), name_of(pod))
        text = now.written()
        if seen is None or annotation(seen, labels.ADAPTERS) == text:
            return
        # The run is in it: should the container have begun anew meanwhile, it says nothing
        metadata = {"annotations": {labels.ADAPTERS: text}, "uid": pod["metadata"]["uid"]}
        await self._writer.merge(seen, {}, metadata, "adapters")


def in_turn(wanted: Mapping[str, str], now: HeldAdapters) -> list[str]:
    """Return the adapters to load: those that were not asked for yet before those that were, which
    come in any order, so that one without an answer keeps no other one for ever."""
    again = [name for name in wanted if name in now.refused]
    random.shuffle(again)
    return [name for name in wanted if name not in {*now.held, *again}] + again


def is_done(pod: Object, wanted: Mapping[str, str]) -> bool:
    """Tell if this run of a pod's engine holds exactly what it shall."""
    held = held_by_pod(pod)
    if held is None:
        return not wanted
    return dict(held.held) == dict(wanted) and not held.refused


def _is_up(pod: Object) -> bool:
    return holds(pod, "ContainersReady") and not is_terminating(pod)
