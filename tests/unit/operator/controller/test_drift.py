from __future__ import annotations

import copy
from typing import Any

import pytest

from kvasir_operator.controller.drift import first_difference, matches_live, stamped

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
    assert matches_live(stamped(MANIFEST), it)


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
    assert not matches_live(stamped(MANIFEST), live(**changes))


def test_what_was_taken_out_of_the_manifest_is_seen() -> None:
    less = copy.deepcopy(MANIFEST)
    del less["spec"]["args"]
    assert matches_live(less, live())
    assert not matches_live(stamped(less), live())


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
    assert matches_live({"limits": {"cpu": wanted}}, {"limits": {"cpu": live}}) is same
    assert matches_live({"sizeLimit": wanted}, {"sizeLimit": live}) is same


def test_a_volume_may_be_mounted_twice() -> None:
    mounts = [{"name": "v", "mountPath": "/a"}, {"name": "v", "mountPath": "/b", "subPath": "x"}]
    assert matches_live(mounts, copy.deepcopy(mounts))
    assert not matches_live(mounts, [mounts[0], {**mounts[1], "subPath": "y"}])


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({}, ""),
        ({"replicas": 3}, "spec.replicas"),
        ({"args": ["a"]}, "spec.args"),
        ({"containers": []}, "spec.containers[engine]"),
        (
            {
                "containers": [
                    {"name": "engine", "image": "i", "env": [{"name": "A", "value": "b"}]}
                ]
            },
            "spec.containers[engine].env[A].value",
        ),
    ],
)
def test_the_first_difference_is_named(changes: dict[str, Any], path: str) -> None:
    assert first_difference(stamped(MANIFEST), live(**changes)) == path


def test_amounts_of_one_size_are_no_difference() -> None:
    wanted = {"limits": {"cpu": "1000m"}, "image": "a"}
    assert first_difference(wanted, {"limits": {"cpu": "1"}, "image": "b"}) == "image"
