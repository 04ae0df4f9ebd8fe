from __future__ import annotations

from typing import Any, cast

from kvasir.kube import ApiError
from kvasir_operator.controller.metrics import Metrics
from kvasir_operator.kinds import EVENTS
from kvasir_operator.scaling.events import Events

RESOURCE = {"metadata": {"namespace": "ns", "name": "m", "uid": "u"}}


class Cluster:
    def __init__(self, failure: ApiError | None = None) -> None:
        self.made: list[dict[str, Any]] = []
        self.failure = failure

    async def create(self, kind: Any, event: dict[str, Any], manager: str) -> None:
        assert (kind, manager) == (EVENTS, "kvasir-autoscaler")
        if self.failure is not None:
            raise self.failure
        self.made.append(event)


async def test_an_event_is_about_its_resource_and_no_longer_than_it_may_be() -> None:
    cluster = Cluster()
    await Events(cast(Any, cluster), Metrics()).tell(RESOURCE, "Scaled", "x" * 5000)
    (made,) = cluster.made
    assert made["metadata"] == {"generateName": "m.", "namespace": "ns"}
    about = made["involvedObject"]
    assert (about["kind"], about["name"], about["uid"]) == ("LLMDeployment", "m", "u")
    assert len(made["message"]) == 1024


async def test_one_that_is_refused_is_no_error() -> None:
    cluster = Cluster(ApiError(403, "Forbidden", "no"))
    await Events(cast(Any, cluster), Metrics()).tell(RESOURCE, "Scaled", "x")
    assert cluster.made == []
