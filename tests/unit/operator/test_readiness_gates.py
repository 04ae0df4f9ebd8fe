from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from kvasir_operator.load_protection import ANNOTATIONS, MARKER, protection
from kvasir_operator.readiness_gates import (
    ReadinessGates,
    awaits_confirmation,
    protection_change,
    verdict_on,
)
from kvasir_operator.settings import OperatorSettings


def gated(make: Any, *, gate: tuple[str, str] | None = None, **more: Any) -> dict[str, Any]:
    """A pod whose gate is (status, the run it is about); "" = no annotation says which."""
    pod = make.pod("a", **more)
    pod["spec"]["readinessGates"] = [{"conditionType": "kvasir.dev/routed"}]
    conditions = [c for c in pod["status"]["conditions"] if c["type"] != "kvasir.dev/routed"]
    if gate is not None:
        conditions.append({"type": "kvasir.dev/routed", "status": gate[0]})
        pod["metadata"]["annotations"] = {"kvasir.dev/routed-run": gate[1]} if gate[1] else {}
    pod["status"]["conditions"] = conditions
    return pod  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("pod", "confirmed", "verdict"),
    [
        ({"up": True}, True, True),
        ({"up": True}, False, None),
        ({"up": False}, True, None),
        # Open: routers that come later, or forget it, do not close it
        ({"up": True, "gate": ("True", "uid-a/0")}, False, None),
        ({"up": False, "gate": ("True", "uid-a/0")}, False, None),
        # The engine began anew: closed until routers serve its new run
        ({"up": False, "restarts": 1, "gate": ("True", "uid-a/0")}, False, False),
        ({"up": True, "restarts": 1, "gate": ("True", "uid-a/0")}, False, False),
        ({"up": True, "restarts": 1, "gate": ("True", "uid-a/0")}, True, True),
        ({"up": True, "restarts": 1, "gate": ("False", "uid-a/1")}, True, True),
        ({"up": False, "restarts": 1, "gate": ("False", "uid-a/1")}, False, None),
        # Whoever opened it did not say for which run: it stays so, and is written anew
        ({"up": True, "gate": ("True", "")}, False, None),
        ({"up": True, "gate": ("True", "")}, True, True),
    ],
)
def test_verdicts(make: Any, pod: Any, confirmed: bool, verdict: bool | None) -> None:
    found = verdict_on(gated(make, **pod), confirmed)
    assert (found and found.is_open) == verdict


def test_pods_without_the_gate_wait_for_nobody(make: Any) -> None:
    pod = make.pod("a", up=True)
    assert not awaits_confirmation(pod)
    assert verdict_on(pod, True) is None


async def test_a_silent_router_is_asked_until_it_answers_though_no_pod_waits() -> None:
    asked = 0
    told: list[int] = []
    answered = asyncio.Event()

    class Routers:
        @asynccontextmanager
        async def client(self) -> Any:
            yield None

        def ask(self, client: None, wake: Any) -> None:
            nonlocal asked
            asked += 1

        def silent(self) -> tuple[str, ...]:
            return ("router",) if asked < 3 else ()

        async def close(self) -> None:
            pass

    def tell(count: int) -> None:
        told.append(count)
        if not count:
            answered.set()

    cluster: Any = None
    view: Any = SimpleNamespace(engine_pods=list)
    metrics: Any = SimpleNamespace(silent_routers=tell)
    routers: Any = Routers()
    gates = ReadinessGates(cluster, view, OperatorSettings(), metrics, routers)
    running = asyncio.create_task(gates.run())
    await asyncio.wait_for(answered.wait(), 30)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert told == [1, 1, 0]


@pytest.mark.parametrize(
    ("pod", "confirmed", "change"),
    [
        ({"up": False}, False, {}),
        ({"up": True}, False, {}),
        # With the gate
        ({"up": True}, True, dict.fromkeys(ANNOTATIONS)),
        # Open already, as by an operator that ended behind its write
        ({"up": True, "gate": ("True", "uid-a/0")}, False, dict.fromkeys(ANNOTATIONS)),
        # A readiness that comes and goes does not count
        ({"up": False, "gate": ("True", "uid-a/0")}, False, dict.fromkeys(ANNOTATIONS)),
    ],
)
def test_node_autoscalers_leave_a_pod_alone_until_it_serves(
    make: Any, pod: Any, confirmed: bool, change: dict[str, Any]
) -> None:
    it = gated(make, **pod)
    it["metadata"].setdefault("annotations", {}).update(protection({}))
    assert protection_change(it, verdict_on(it, confirmed)) == change


def test_a_pod_whose_engine_begins_anew_is_protected_again(make: Any) -> None:
    it = gated(make, up=False, restarts=1, gate=("True", "uid-a/0"))
    it["metadata"]["annotations"][MARKER] = ",".join(ANNOTATIONS)
    assert protection_change(it, verdict_on(it, False)) == ANNOTATIONS


def test_without_gates_a_pod_is_protected_until_its_containers_are_ready(make: Any) -> None:
    for up in (False, True):
        it = make.pod("a", up=up)
        it["metadata"]["annotations"] = protection({})
        assert bool(protection_change(it, None)) == up
