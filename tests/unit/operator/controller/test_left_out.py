from __future__ import annotations

import copy
from typing import Any

import pytest
from structlog.testing import capture_logs

from kvasir_operator.controller import left_out
from kvasir_operator.controller.drift import stamped
from kvasir_operator.controller.left_out import LeftOut

CLAIMS = [{"name": "gpus", "resourceClaimTemplateName": "a"}]
WANTED: dict[str, Any] = stamped(
    {
        "kind": "Deployment",
        "metadata": {"name": "m", "namespace": "ns", "labels": {"a": "b"}},
        "spec": {"template": {"spec": {"resourceClaims": CLAIMS, "containers": [{"name": "x"}]}}},
    }
)


def stored(wanted: dict[str, Any] = WANTED, uid: str = "1") -> dict[str, Any]:
    """The object as an API server has it whose pods claim no resources."""
    it = copy.deepcopy(wanted)
    it["metadata"] |= {"uid": uid, "resourceVersion": "7"}
    del it["spec"]["template"]["spec"]["resourceClaims"]
    return it


def test_what_a_server_drops_is_not_applied_again_and_is_told_once() -> None:
    memory = LeftOut()
    assert not memory.explains(WANTED, stored())
    with capture_logs() as logs:
        memory.note(WANTED, stored())
        memory.note(WANTED, stored())
    [told] = logs
    assert told["field"] == "spec.template.spec.resourceClaims"
    now = stored()
    now["metadata"]["annotations"]["deployment.kubernetes.io/revision"] = "1"
    now["metadata"]["resourceVersion"] = "9"
    now["status"] = {"replicas": 1}
    assert memory.explains(WANTED, now)


@pytest.mark.parametrize("what", ["spec", "label", "manifest", "another object"])
def test_what_changes_after_it_is_seen(what: str) -> None:
    memory = LeftOut()
    memory.note(WANTED, stored())
    wanted, now = WANTED, stored()
    if what == "spec":
        now["spec"]["template"]["spec"]["containers"][0]["image"] = "evil:1"
    elif what == "label":
        now["metadata"]["labels"]["a"] = "c"
    elif what == "manifest":
        wanted = {**WANTED, "spec": {**WANTED["spec"], "replicas": 2}}
    else:
        now = stored(uid="2")
    assert not memory.explains(wanted, now)


def test_what_is_as_it_was_applied_is_forgotten() -> None:
    memory = LeftOut()
    memory.note(WANTED, stored())
    memory.note(WANTED, {**copy.deepcopy(WANTED), "metadata": {**WANTED["metadata"], "uid": "1"}})
    assert not memory.explains(WANTED, stored())


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(left_out, "_MAX_OBJECTS", 2)
    memory = LeftOut()
    for uid in "123":
        memory.note(WANTED, stored(uid=uid))
    assert [memory.explains(WANTED, stored(uid=uid)) for uid in "123"] == [False, True, True]
