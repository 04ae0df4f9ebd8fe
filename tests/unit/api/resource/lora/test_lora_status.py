from __future__ import annotations

import pytest

from kvasir.resource.deployment_status import Status
from kvasir.resource.lora.lora_status import MAX_REFUSAL


def test_a_status_tells_of_each_adapter() -> None:
    told = [{"name": "sql", "readyReplicas": 2}, {"name": "chat", "message": "x" * MAX_REFUSAL}]
    found = Status.model_validate({"adapters": told}).adapters
    assert found is not None
    assert [(each.name, each.ready_replicas) for each in found] == [("sql", 2), ("chat", 0)]
    with pytest.raises(ValueError, match="at most"):
        Status.model_validate({"adapters": [{"name": "a", "message": "x" * 1000}]})
