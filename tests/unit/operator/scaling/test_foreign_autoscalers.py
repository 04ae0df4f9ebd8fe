from __future__ import annotations

from typing import Any, cast

import pytest

from kvasir.kube import ApiError
from kvasir_operator.controller.work_queue import Key
from kvasir_operator.scaling.foreign_autoscalers import ForeignAutoscalers
from kvasir_operator.settings import OperatorSettings


def autoscaler(name: str, kind: str, target: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name},
        "spec": {"scaleTargetRef": {"kind": kind, "name": target}},
    }


class Server:
    def __init__(self) -> None:
        self.asked = 0
        self.failure: ApiError | None = None
        self.listed = [
            autoscaler("keda-hpa-m", "LLMDeployment", "m"),
            autoscaler("other", "Deployment", "n"),
        ]

    async def list(self, kind: Any, namespace: str) -> list[dict[str, Any]]:
        assert (kind.plural, namespace) == ("horizontalpodautoscalers", "ns")
        self.asked += 1
        if self.failure is not None:
            raise self.failure
        return self.listed


class Clock:
    now = 100.0


def foreign(server: Server, **settings: Any) -> tuple[ForeignAutoscalers, Clock]:
    clock = Clock()
    cluster = cast(Any, server)
    return ForeignAutoscalers(cluster, OperatorSettings(**settings), lambda: clock.now), clock


FOUND = {Key("ns", "m"): "HorizontalPodAutoscaler keda-hpa-m"}


async def test_those_of_llmdeployments_are_found_every_ten_seconds() -> None:
    server = Server()
    found, clock = foreign(server)
    assert await found.of({"ns"}) == FOUND
    server.listed = []
    clock.now += 9
    assert (await found.of({"ns"}), server.asked) == (FOUND, 1)
    clock.now += 1
    assert (await found.of({"ns"}), server.asked) == ({}, 2)


@pytest.mark.parametrize(("status", "kept"), [(500, FOUND), (0, FOUND), (403, {})])
async def test_what_was_known_holds_while_the_api_server_fails(status: int, kept: Any) -> None:
    server = Server()
    found, clock = foreign(server)
    await found.of({"ns"})
    server.failure = ApiError(status, "", "boom")
    clock.now += 10
    assert await found.of({"ns"}) == kept


async def test_without_the_right_nobody_is_asked() -> None:
    server = Server()
    found, _ = foreign(server, optional_kinds=())
    assert (await found.of({"ns"}), server.asked) == ({}, 0)
