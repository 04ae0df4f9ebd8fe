"""Whose user pods run as: the chart's, the platform's, or the one that values name."""

import json

import pytest

OWN = {"runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532}
ALWAYS = {
    "runAsNonRoot": True,
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}
OPENSHIFT = ("security.openshift.io/v1",)


@pytest.mark.parametrize(
    ("values", "apis", "expected"),
    [
        ({}, (), ALWAYS | OWN),
        ({}, OPENSHIFT, ALWAYS),
        ({"platformUser": "always"}, (), ALWAYS),
        ({"platformUser": "never"}, OPENSHIFT, ALWAYS | OWN),
        ({"podSecurity": {"runAsUser": 1000}}, (), ALWAYS | OWN | {"runAsUser": 1000}),
        (
            {"podSecurity": {"fsGroup": None, "seccompProfile": None}},
            (),
            {
                "runAsNonRoot": True,
                "fsGroupChangePolicy": "OnRootMismatch",
                "runAsUser": 65532,
                "runAsGroup": 65532,
            },
        ),
    ],
)
def test_pods_run_as(helm, values, apis, expected) -> None:
    objects = helm.template(
        {"global": {"imageRegistry": "registry.example.com"} | values}, api_versions=apis
    )
    deployments = [each for each in objects if each["kind"] == "Deployment"]
    pods = [each["spec"]["template"]["spec"] for each in deployments]
    pods += [each["spec"] for each in objects if each["kind"] == "Pod"]
    assert len(pods) == 3
    assert [pod["securityContext"] for pod in pods] == [expected] * 3
    [flag] = [
        argument.partition("=")[2]
        for pod in pods
        for argument in pod["containers"][0].get("args", ())
        if argument.startswith("--pod-security=")
    ]
    assert json.loads(flag) == expected


def test_root_is_refused(helm, helm_error) -> None:
    with pytest.raises(helm_error, match="runAsUser"):
        helm.template({"global": {"imageRegistry": "x", "podSecurity": {"runAsUser": 0}}})
