"""A node that is cordoned, by the real Deployment controller: the replacement serves first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kvasir.kube.objects import condition, holds, is_terminating, name_of
from kvasir.resource import labels
from kvasir_operator.kinds import DEPLOYMENTS, EVENTS


@pytest.fixture
def nodes(site: Any, plane: Any) -> Iterator[list[str]]:
    """Nodes of this test's own, which nobody runs."""
    names = [f"{site.namespace}-{number}" for number in range(2)]
    for name in names:
        plane.apply(f"{{apiVersion: v1, kind: Node, metadata: {{name: {name}}}}}")
    yield names
    plane.kubectl("delete", "node", *names)


async def bind(site: Any, pod: dict[str, Any], node: str) -> None:
    """The scheduler's part."""
    name = name_of(pod)
    body = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }
    path = f"/api/v1/namespaces/{site.namespace}/pods/{name}/binding"
    async with site.cluster.open("POST", path, body=body):
        pass


def waits(pod: dict[str, Any], old: dict[str, Any]) -> dict[str, Any] | None:
    """A fate: all but the old pod load for ever."""
    if name_of(pod) == name_of(old):
        return None
    return {"phase": "Pending", "conditions": []}


async def test_a_lone_replica_is_replaced_before_it_goes_unless_its_node_comes_back(
    site: Any, start: Any, plane: Any, nodes: list[str]
) -> None:
    node, other = nodes
    operator = start("--node-drain")
    await site.apply()
    await site.until("Ready", "True")
    (old,) = await site.engines()
    await bind(site, old, node)
    site.fate = lambda pod: waits(pod, old)

    async def alive() -> dict[str, dict[str, Any]]:
        return {name_of(it): it for it in await site.engines() if not is_terminating(it)}

    async def both() -> bool:
        pods = await alive()
        return len(pods) == 2 and holds(pods[name_of(old)], labels.LEAVING)

    plane.kubectl("cordon", node)
    await site.until("PodsLeaving", "True", "NodeLeaves")
    await site.eventually(both, "the old pod and its replacement")
    message = str(condition(await site.get(), "PodsLeaving")["message"])
    assert message == f"Pod {name_of(old)} on {node}: Node {node} is cordoned."
    assert await site.condition("Ready") == ("True", "Serving")

    async def old_alone() -> bool:
        pods = await alive()
        return list(pods) == [name_of(old)] and not holds(pods[name_of(old)], labels.LEAVING)

    plane.kubectl("uncordon", node)
    await site.eventually(old_alone, "the node that came back")

    plane.kubectl("cordon", node)
    await site.eventually(both, "another replacement")
    (replacement,) = (it for name, it in (await alive()).items() if name != name_of(old))
    # What has no node would go before all that serve
    await bind(site, replacement, other)
    site.fate = lambda pod: None

    async def replaced() -> bool:
        return list(await alive()) == [name_of(replacement)]

    await site.eventually(replaced, "the replacement alone")
    assert (await site.get(DEPLOYMENTS))["spec"]["replicas"] == 1
    events = await site.cluster.list(EVENTS, site.namespace, "")
    told = [each["reason"] for each in events if each["reason"] in ("PodLeaves", "PodStays")]
    assert sorted(told) == ["PodLeaves", "PodLeaves", "PodStays"]
    assert "Traceback" not in operator.log


async def test_what_was_said_of_a_node_is_taken_back_where_nodes_are_not_watched_any_more(
    site: Any, start: Any, plane: Any, nodes: list[str]
) -> None:
    operator = start("--node-drain")
    await site.apply()
    await site.until("Ready", "True")
    (pod,) = await site.engines()
    await bind(site, pod, nodes[0])
    site.fate = lambda it: waits(it, pod)
    plane.kubectl("cordon", nodes[0])
    await site.until("PodsLeaving", "True", "NodeLeaves")
    operator.stop()
    start()

    async def taken_back() -> bool:
        told = (condition(it, labels.LEAVING).get("message") for it in await site.engines())
        return "Nodes are not watched any more." in told

    await site.eventually(taken_back, "the notice's end")
