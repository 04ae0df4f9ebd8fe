"""Engines come to hold what they shall, whatever happens between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from copy import deepcopy
from typing import Any

import pytest

from kvasir.kube.objects import annotation
from kvasir.resource import labels
from kvasir.resource.lora.lora_held import HeldAdapters
from kvasir_operator.controller.metrics import Metrics
from kvasir_operator.controller.work_queue import Key
from kvasir_operator.lora.lora_client import LoraRefusedError
from kvasir_operator.lora.lora_loader import LoraLoader, is_done
from kvasir_operator.spec_facts import held_by_pod

KEY = Key("ns", "m")
ENOUGH = 20.0


class Cluster:
    """Pods, as both the view and the API server have them; their engines."""

    def __init__(self, *pods: dict[str, Any]) -> None:
        self.pods = {pod["metadata"]["name"]: pod for pod in pods}
        self.engines: dict[str, dict[str, str]] = {name: {} for name in self.pods}
        self.calls: list[tuple[str, ...]] = []
        self.writes: list[dict[str, str]] = []
        self.refuses: dict[str, str] = {}
        self.changed = asyncio.Event()

    # View

    def engine_pods(self) -> list[dict[str, Any]]:
        return list(self.pods.values())

    def find(self, kind: Any, owner: Key, name: str) -> dict[str, Any] | None:
        return self.pods.get(name)

    def resource(self, key: Key) -> dict[str, Any]:
        return {"spec": {"adapters": [{"name": "sql"}]}}

    def wrote(self, kind: Any, before: Any, answer: Any, now: float) -> None:
        pass

    # API server

    async def merge_status(
        self, kind: Any, namespace: str, name: str, status: Any, metadata: Any
    ) -> dict[str, Any]:
        pod = deepcopy(self.pods[name])
        assert metadata["uid"] == pod["metadata"]["uid"]
        pod["metadata"].setdefault("annotations", {}).update(metadata["annotations"])
        self.pods[name] = pod
        found = held_by_pod(pod)
        self.writes.append(dict(found.held) if found is not None else {})
        self.changed.set()
        return pod

    # Engines

    async def load(self, pod: Any, name: str, directory: str) -> None:
        engine = self.engines[pod["metadata"]["name"]]
        self.calls.append(("load", name, directory))
        if name in self.refuses:
            raise LoraRefusedError(self.refuses[name])
        if name in engine:
            raise LoraRefusedError("has already been loaded", is_there=True)
        engine[name] = directory

    async def unload(self, pod: Any, name: str) -> None:
        self.calls.append(("unload", name))
        if self.engines[pod["metadata"]["name"]].pop(name, None) is None:
            raise LoraRefusedError("cannot be found")

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(ENOUGH):
            while not holds():
                self.changed.clear()
                await self.changed.wait()


@asynccontextmanager
async def at_work(cluster: Cluster) -> AsyncIterator[LoraLoader]:
    fake: Any = cluster
    loader = LoraLoader(fake, fake, Metrics(), cluster, turn_away=0.0)
    task = asyncio.create_task(loader.run())
    yield loader
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def held(cluster: Cluster, name: str = "a") -> dict[str, str]:
    found = held_by_pod(cluster.pods[name])
    return {} if found is None else dict(found.held)


async def test_each_engine_gets_all_and_its_pod_says_so(make: Any) -> None:
    cluster = Cluster(make.pod("a", up=True), make.pod("b", up=True), make.pod("late"))
    wanted = {"sql": "/sql", "chat": "/chat"}
    async with at_work(cluster) as loader:
        loader.want(KEY, wanted)
        await cluster.until(lambda: held(cluster) == held(cluster, "b") == wanted)
        assert loader.is_settled(cluster.pods["a"])
        assert not loader.is_settled(cluster.pods["late"])
    assert cluster.engines == {"a": wanted, "b": wanted, "late": {}}


async def test_one_more_is_loaded_and_one_less_unloaded_after_routers_know(make: Any) -> None:
    cluster = Cluster(make.pod("a", up=True))
    async with at_work(cluster) as loader:
        loader.want(KEY, {"sql": "/sql"})
        await cluster.until(lambda: held(cluster) == {"sql": "/sql"})
        loader.want(KEY, {"chat": "/chat"})
        await cluster.until(lambda: held(cluster) == {"chat": "/chat"})
    assert cluster.engines["a"] == {"chat": "/chat"}
    assert cluster.calls == [("load", "sql", "/sql"), ("unload", "sql"), ("load", "chat", "/chat")]
    assert cluster.writes == [{"sql": "/sql"}, {}, {"chat": "/chat"}]


async def test_another_directory_under_the_same_name_takes_its_place(make: Any) -> None:
    cluster = Cluster(make.pod("a", up=True))
    async with at_work(cluster) as loader:
        loader.want(KEY, {"sql": "/v1"})
        await cluster.until(lambda: held(cluster) == {"sql": "/v1"})
        loader.want(KEY, {"sql": "/v2"})
        await cluster.until(lambda: held(cluster) == {"sql": "/v2"})
    assert cluster.engines["a"] == {"sql": "/v2"}


async def test_a_container_that_began_anew_gets_its_adapters_again(make: Any) -> None:
    cluster = Cluster(make.pod("a", up=True))
    async with at_work(cluster) as loader:
        loader.want(KEY, {"sql": "/sql"})
        await cluster.until(lambda: held(cluster) == {"sql": "/sql"})
        again = make.pod("a", up=True, restarts=1)
        again["metadata"]["annotations"] = cluster.pods["a"]["metadata"]["annotations"]
        cluster.pods["a"], cluster.engines["a"] = again, {}
        assert not loader.is_settled(again)
        loader.wake()
        await cluster.until(lambda: held(cluster) == {"sql": "/sql"})
    assert cluster.engines["a"] == {"sql": "/sql"}
    assert cluster.calls == [("load", "sql", "/sql")] * 2


async def test_what_another_operator_loaded_without_a_word_is_loaded_anew(make: Any) -> None:
    cluster = Cluster(make.pod("a", up=True))
    cluster.engines["a"] = {"sql": "/unknown"}
    async with at_work(cluster) as loader:
        loader.want(KEY, {"sql": "/sql"})
        await cluster.until(lambda: held(cluster) == {"sql": "/sql"})
    assert cluster.engines["a"] == {"sql": "/sql"}


async def test_one_that_is_refused_keeps_no_other_and_is_tried_again(make: Any) -> None:
    cluster = Cluster(make.pod("a", up=True))
    cluster.refuses = {"chat": "rank 64 is too large"}
    async with at_work(cluster) as loader:
        loader.want(KEY, {"chat": "/chat", "sql": "/sql"})
        await cluster.until(lambda: held(cluster) == {"sql": "/sql"})
        found = held_by_pod(cluster.pods["a"])
        assert found is not None
        assert found.refused == cluster.refuses
        assert loader.is_settled(cluster.pods["a"]), "a gate does not wait for a refusal to pass"
        cluster.refuses = {}
        await cluster.until(lambda: len(held(cluster)) == 2)
    assert (
        annotation(cluster.pods["a"], labels.ADAPTERS)
        == HeldAdapters("uid-a/0", {"chat": "/chat", "sql": "/sql"}).written()
    )


async def test_gates_wait_until_the_plan_has_spoken_but_not_where_it_asks_nothing(
    make: Any,
) -> None:
    cluster = Cluster(make.pod("a", up=True))
    fake: Any = cluster
    loader = LoraLoader(fake, fake, Metrics(), cluster)
    assert not loader.is_settled(cluster.pods["a"])
    loader.want(KEY, None)
    assert loader.is_settled(cluster.pods["a"])
    loader.want(KEY, {})
    assert loader.is_settled(cluster.pods["a"])
    loader.forget(KEY)
    assert not loader.is_settled(cluster.pods["a"])


@pytest.mark.parametrize(
    ("told", "wanted", "done"),
    [
        (None, {}, True),
        (None, {"a": "/a"}, False),
        (HeldAdapters("uid-a/0", {"a": "/a"}), {"a": "/a"}, True),
        (HeldAdapters("uid-a/0", {"a": "/b"}), {"a": "/a"}, False),
        (HeldAdapters("uid-a/0", {"a": "/a"}), {}, False),
        (HeldAdapters("uid-a/1", {"a": "/a"}), {"a": "/a"}, False),
        (HeldAdapters("uid-a/0", {}, {"a": "no"}), {"a": "/a"}, False),
    ],
)
def test_what_is_done(make: Any, told: Any, wanted: dict[str, str], done: bool) -> None:
    pod = make.pod("a", up=True)
    if told is not None:
        pod["metadata"]["annotations"] = {labels.ADAPTERS: told.written()}
    assert is_done(pod, wanted) is done
