from __future__ import annotations

import copy
from typing import Any

import pytest

from kvasir_operator.plan.engine.strategic_merge import merge

BASE = {
    "containers": [{"name": "a", "image": "1", "volumeMounts": [{"name": "x", "mountPath": "/x"}]}],
    "volumes": [{"name": "x", "emptyDir": {}}, {"name": "y", "emptyDir": {}}],
    "tolerations": [{"key": "k"}],
    "securityContext": {"runAsNonRoot": True, "fsGroup": 1},
    "schedulerName": "s",
}


@pytest.mark.parametrize(
    ("patch", "changed"),
    [
        ({}, {}),
        ({"dnsPolicy": "None"}, {"dnsPolicy": "None"}),
        (
            {"securityContext": {"fsGroup": 2}},
            {"securityContext": {"runAsNonRoot": True, "fsGroup": 2}},
        ),
        ({"securityContext": {"fsGroup": None}}, {"securityContext": {"runAsNonRoot": True}}),
        ({"tolerations": [{"key": "l"}]}, {"tolerations": [{"key": "l"}]}),
        (
            {"containers": [{"name": "a", "tty": True}, {"name": "b"}]},
            {"containers": [{**BASE["containers"][0], "tty": True}, {"name": "b"}]},
        ),
        (
            {"containers": [{"name": "a", "volumeMounts": [{"name": "y", "mountPath": "/x"}]}]},
            {
                "containers": [
                    {"name": "a", "image": "1", "volumeMounts": [{"name": "y", "mountPath": "/x"}]}
                ]
            },
        ),
        # A volume has one source
        (
            {"volumes": [{"name": "x", "hostPath": {"path": "/p"}}]},
            {"volumes": [{"name": "x", "hostPath": {"path": "/p"}}, {"name": "y", "emptyDir": {}}]},
        ),
        ({"hostAliases": [{"ip": "1"}]}, {"hostAliases": [{"ip": "1"}]}),
    ],
)
def test_what_a_patch_changes(patch: dict[str, Any], changed: dict[str, Any]) -> None:
    before = copy.deepcopy((BASE, patch))
    assert merge(BASE, patch) == {**BASE, **changed}
    assert (BASE, patch) == before


def test_a_null_takes_a_field_out() -> None:
    assert merge(BASE, {"schedulerName": None, "volumes": None}).keys() == BASE.keys() - {
        "schedulerName",
        "volumes",
    }
