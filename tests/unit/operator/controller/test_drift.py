from __future__ import annotations

import copy
from typing import Any

import pytest

from kvasir_operator.controller.drift import is_same, stamped

MANIFEST: dict[str, Any] = {
    "kind": "X",
    "metadata": {"name": "x"},
    "spec": {
        "replicas": 2,
        "args": ["a", "b"],
        "containers": [{"name": "engine", "image": "i", "env": [{"name": "A", "value": ""}]}],
        "rules": [{"from": [{"podSelector": {}}], "ports": [{"port": 1}]}],
        "none": [],
    },
}


def live(**changes: Any) -> dict[str, Any]:
    it = copy.deepcopy(stamped(MANIFEST))
    it["spec"] |= changes
    return it


def test_defaults_and_what_others_own_make_no_difference() -> None:
    container = {
        "name": "engine",
        "image": "i",
        "imagePullPolicy": "IfNotPresent",
        "env": [{"name": "B", "value": "b"}, {"name": "A"}],
    }
    it = live(containers=[{"name": "sidecar"}, container], extra=1)
    it["metadata"]["resourceVersion"] = "7"
    it["metadata"]["annotations"]["other"] = "x"
    del it["spec"]["none"]
    assert is_same(stamped(MANIFEST), it)


@pytest.mark.parametrize(
    "changes",
    [
        {"replicas": 3},
        {"args": ["a"]},
        {"args": ["a", "b", "c"]},
        {"args": None},
        {"containers": []},
        {"containers": [{"name": "engine", "image": "other", "env": [{"name": "A"}]}]},
        {"containers": [{"name": "engine", "image": "i", "env": []}]},
        {"rules": []},
        {"rules": [{"from": [{"podSelector": {}}], "ports": [{"port": 2}]}]},
        {"rules": [*MANIFEST["spec"]["rules"], {"from": [{"ipBlock": {"cidr": "0.0.0.0/0"}}]}]},
        {"none": ["x"]},
    ],
)
def test_a_foreign_edit_is_seen(changes: dict[str, Any]) -> None:
    assert not is_same(stamped(MANIFEST), live(**changes))


def test_what_was_taken_out_of_the_manifest_is_seen() -> None:
    less = copy.deepcopy(MANIFEST)
    del less["spec"]["args"]
    assert is_same(less, live())
    assert not is_same(stamped(less), live())


@pytest.mark.parametrize(
    ("wanted", "live", "same"),
    [
        ("1000m", "1", True),
        ("0.5", "500m", True),
        ("2048Mi", "2Gi", True),
        ("1G", "1Gi", False),
        ("2", "3", False),
        ("1", None, False),
    ],
)
def test_amounts_are_compared_by_value(wanted: str, live: str | None, same: bool) -> None:
    assert is_same({"limits": {"cpu": wanted}}, {"limits": {"cpu": live}}) is same
    assert is_same({"sizeLimit": wanted}, {"sizeLimit": live}) is same


def test_a_volume_may_be_mounted_twice() -> None:
    mounts = [{"name": "v", "mountPath": "/a"}, {"name": "v", "mountPath": "/b", "subPath": "x"}]
    assert is_same(mounts, copy.deepcopy(mounts))
    assert not is_same(mounts, [mounts[0], {**mounts[1], "subPath": "y"}])
