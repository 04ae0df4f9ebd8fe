"""Release of names when the API server fails at times; the rest is tested on a real one."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

import pytest

from kvasir.kube import ApiError
from kvasir.resource import labels
from kvasir.resource.ownership.model_name import claim_manifest
from kvasir.resource.ownership.name_claims import Holder
from kvasir_operator.controller.metrics import Metrics
from kvasir_operator.controller.name_claimer import NameClaimer
from kvasir_operator.controller.view import WATCHED, View, index_id
from kvasir_operator.controller.work_queue import Key
from kvasir_operator.kinds import MODEL_NAMES
from kvasir_operator.objects import format_time
from kvasir_operator.settings import OperatorSettings

KEY = Key("ns", "m")


class Server:
    """An API server that has no LLMDeployment, one claim, and fails `failures` times."""

    def __init__(self, claim: dict[str, Any], failures: int) -> None:
        self.claim: dict[str, Any] | None = claim
        self.failures = failures

    async def get(self, kind: Any, namespace: str | None, name: str) -> Any:
        if self.failures:
            self.failures -= 1
            raise ApiError(500, "InternalError", "boom")
        return self.claim if kind is MODEL_NAMES else None

    async def delete(self, *_: Any) -> None:
        self.claim = None


@pytest.mark.parametrize("failures", [0, 1])
async def test_a_name_is_free_at_once_though_a_first_try_failed(failures: int) -> None:
    """The LLMDeployment was seen: nothing is to be waited for as after a restore."""
    claim = claim_manifest(labels.DEFAULT_CLASS, "chat", Holder(*KEY), "u1")
    claim["metadata"] |= {"uid": "c1", "creationTimestamp": format_time(datetime.now(UTC))}
    view, server = View(), Server(claim, 0)
    indexes: dict[str, Any] = {index_id(kind): {} for kind in WATCHED}
    indexes[index_id(MODEL_NAMES)] = {KEY: [claim], Key("", claim["metadata"]["name"]): [claim]}
    view.bind(indexes)
    names = NameClaimer(cast(Any, server), view, OperatorSettings(), Metrics())
    resource = {"metadata": {"namespace": "ns", "name": "m", "uid": "u1"}}
    assert await names.claim(resource, ["chat"]) == {}

    server.failures = failures
    for _ in range(failures):
        with pytest.raises(ApiError):
            await names.release_gone(KEY)
    assert await names.release_gone(KEY) is None
    assert server.claim is None
