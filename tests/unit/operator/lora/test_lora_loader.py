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
from kvasir_operator.lora import lora_loader
from kvasir_operator.lora.lora_client import LoraRefusedError
from kvasir_operator.lora.lora_loader import LoraLoader, in_turn, is_done
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
        self.answers_not: set[str] = set()
        self.looks = 0
        self.changed = asyncio.Event()

    # View

    def engine_pods(self) -> list[dict[str, Any]]:
        self.looks += 1
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
        if name in self.answers_not:
            raise LoraRefusedError("The engine did not answer: ReadTimeout", answered=False)
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
    try:
        yield loader
    finally:
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


async def test_the_rest_waits_where_the_engine_does_not_answer(make: Any) -> None:
    cluster = Cluster(make.pod("a", up=True))
    cluster.answers_not = {"stuck"}
    async with at_work(cluster) as loader:
        loader.want(KEY, {"stuck": "/stuck", "sql": "/sql", "chat": "/chat"})
        await cluster.until(lambda: bool(cluster.writes))
        assert cluster.calls == [("load", "stuck", "/stuck")]
        found = held_by_pod(cluster.pods["a"])
        assert found is not None
        assert list(found.refused) == ["stuck"]
        await cluster.until(lambda: held(cluster) == {"sql": "/sql", "chat": "/chat"})
        assert [name for _, name, _ in cluster.calls] == ["stuck", "sql", "chat", "stuck"]
        cluster.answers_not = set()
        await cluster.until(lambda: len(held(cluster)) == 3)


async def test_many_changes_are_one_look(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lora_loader, "_TOGETHER_SECONDS", 3600.0)
    cluster = Cluster(make.pod("a", up=True))
    async with at_work(cluster) as loader:
        loader.want(KEY, {"sql": "/sql"})
        await cluster.until(lambda: held(cluster) == {"sql": "/sql"})
        for _ in range(100):
            loader.wake()
            await asyncio.sleep(0)
        assert cluster.looks == 1


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


def test_new_ones_come_first_and_none_of_the_others_is_always_the_last() -> None:
    now = HeldAdapters("uid-a/0", {"held": "/held"}, {"a": "no", "b": "no"})
    wanted = {name: f"/{name}" for name in ("a", "held", "new", "b", "newer")}
    orders = {tuple(in_turn(wanted, now)) for _ in range(200)}
    assert orders == {("new", "newer", "a", "b"), ("new", "newer", "b", "a")}


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
