from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from kvasir.kube import ApiError
from kvasir.resource import labels
from kvasir_operator.pod_writer import PodWriter, UnfinishedError, owner_of, pod_condition


def pod(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "ns", "labels": {labels.DEPLOYMENT: "m"}}}


class Cluster:
    """An API server that answers a write, or refuses it by a status."""

    status = 200

    async def merge_status(self, *what: Any) -> dict[str, Any]:
        if self.status != 200:
            raise ApiError(self.status, "Refused", "refused")
        return pod("a")


class View:
    """Pods by their names, and what was written."""

    def __init__(self) -> None:
        self.written: list[str] = []

    def find(self, kind: Any, owner: Any, name: str) -> dict[str, Any] | None:
        return None if name == "gone" else pod(name)

    def wrote(self, kind: Any, before: dict[str, Any], answer: Any, when: float) -> None:
        self.written.append(before["metadata"]["name"])


class Metrics:
    def count_write(self, resource: str, verb: str) -> None:
        pass


def make(settle: Any, failures: list[Any], cluster: Any = None, view: Any = None) -> PodWriter:
    given = cast("Any", (cluster or Cluster(), view or View(), Metrics()))
    return PodWriter(
        *given, settle, longest_pause=1.0, seconds=0.05, failed=lambda **it: failures.append(it)
    )


async def test_one_that_fails_or_hangs_delays_no_other() -> None:
    failures: list[Any] = []
    done = asyncio.Event()

    async def settle(it: dict[str, Any]) -> None:
        name = it["metadata"]["name"]
        if name == "fails":
            raise ValueError("no")
        if name == "unfinished":
            raise UnfinishedError
        if name == "hangs":
            await asyncio.Event().wait()
        done.set()

    writer = make(settle, failures)
    for name in ("fails", "unfinished", "hangs", "gone", "fine"):
        writer.offer(pod(name))
    work = asyncio.create_task(writer.work())
    async with asyncio.timeout(30):
        await done.wait()
    work.cancel()
    assert [it["pod"] for it in failures] == ["fails", "hangs"]
    assert failures[0]["error"] == "ValueError('no')"


@pytest.mark.parametrize(("status", "written"), [(200, ["a"]), (404, []), (409, [])])
async def test_a_pod_that_has_changed_is_left_to_the_watch(status: int, written: list[str]) -> None:
    cluster, view = Cluster(), View()
    cluster.status = status
    writer = make(None, [], cluster, view)
    assert await writer.merge(pod("a"), {}, {}, "gate") is bool(written)
    assert view.written == written


async def test_other_refusals_are_raised() -> None:
    cluster = Cluster()
    cluster.status = 500
    with pytest.raises(ApiError):
        await make(None, [], cluster).merge(pod("a"), {}, {}, "gate")


def test_a_pod_is_of_its_deployment_and_its_condition_is_whole() -> None:
    assert owner_of(pod("a")) == ("ns", "m")
    made = pod_condition(pod("a"), "X", False, "Why", "Because.")
    assert made.pop("lastTransitionTime").endswith("Z")
    assert made == {"type": "X", "status": "False", "reason": "Why", "message": "Because."}


@pytest.mark.parametrize(("status", "moves"), [("True", False), ("False", True), ("Unknown", True)])
def test_a_condition_has_the_time_of_its_status_not_of_its_message(
    status: str, moves: bool
) -> None:
    since = "2026-01-02T03:04:05Z"
    before = {"type": "X", "status": status, "reason": "A", "lastTransitionTime": since}
    it = {**pod("a"), "status": {"conditions": [before]}}
    made = pod_condition(it, "X", True, "B", "Another message.")
    assert (made["reason"], made["message"]) == ("B", "Another message.")
    assert (made["lastTransitionTime"] != since) is moves


def test_a_condition_without_a_time_gets_one() -> None:
    before = {"type": "X", "status": "True"}
    it = {**pod("a"), "status": {"conditions": [before]}}
    assert pod_condition(it, "X", True, "B", "")["lastTransitionTime"].endswith("Z")
