"""GPUs by any resource name, and by claims."""

from __future__ import annotations

from typing import Any

import pytest

TINY = {"model": {"uri": "builtin://kvasir-tiny"}}
CLAIMS = frozenset({"resourceclaimtemplates"})


def claiming(**claim: Any) -> dict[str, Any]:
    count = claim.get("count", 1)
    return {**TINY, "resources": {"gpuClaim": claim}, "parallelism": {"tensor": count}}


def pod_of(made: Any, make: Any) -> dict[str, Any]:
    found: dict[str, Any] = make.manifest(made, "Deployment")["spec"]["template"]["spec"]
    return found


@pytest.mark.parametrize("name", ["amd.com/gpu", "nvidia.com/mig-1g.10gb", "nvidia.com/gpu"])
def test_pods_ask_for_the_resource_that_is_named(world: Any, make: Any, name: str) -> None:
    limits = {name: 2, "memory": "8Gi"}
    made = world({**TINY, "resources": {"limits": limits}, "parallelism": {"tensor": 2}}).plan()
    (container,) = pod_of(made, make)["containers"]
    assert container["resources"]["limits"] == {name: "2", "memory": "8Gi"}
    assert container["args"][container["args"].index("--tensor-parallel-size") + 1] == "2"
    assert container["image"] == "cuda:1"
    assert made.status["gpus"] == f"2 {name}"


def test_a_device_class_becomes_a_template_and_a_claim_of_each_pod(world: Any, make: Any) -> None:
    one = world(claiming(deviceClassName="gpu.nvidia.com", count=2)).see(optional=CLAIMS)
    made = one.step()
    template = make.manifest(made, "ResourceClaimTemplate")
    name = template["metadata"]["name"]
    assert name.startswith("m-gpus-")
    assert template["metadata"]["ownerReferences"][0]["name"] == "m"
    assert template["spec"]["spec"]["devices"]["requests"] == [
        {
            "name": "gpus",
            "exactly": {
                "deviceClassName": "gpu.nvidia.com",
                "allocationMode": "ExactCount",
                "count": 2,
            },
        }
    ]
    pod = pod_of(made, make)
    assert pod["resourceClaims"] == [{"name": "gpus", "resourceClaimTemplateName": name}]
    (container,) = pod["containers"]
    assert container["resources"]["claims"] == [{"name": "gpus"}]
    assert "limits" not in container["resources"]
    assert container["args"][container["args"].index("--tensor-parallel-size") + 1] == "2"
    assert made.status["gpus"] == "2 gpu.nvidia.com"
    # A template cannot change: other content has another name, and pods change with it
    other = claiming(deviceClassName="mig.nvidia.com", count=2)["resources"]
    edited = one.edit({"resources": other}).plan()
    again = make.manifest(edited, "ResourceClaimTemplate")["metadata"]["name"]
    assert again != name
    assert pod_of(edited, make)["resourceClaims"][0]["resourceClaimTemplateName"] == again


def test_a_template_of_the_users_is_claimed_as_it_is(world: Any, make: Any) -> None:
    made = world(claiming(resourceClaimTemplateName="own")).plan()
    assert not [it for it in made.manifests if it["kind"] == "ResourceClaimTemplate"]
    claim = {"name": "gpus", "resourceClaimTemplateName": "own"}
    assert pod_of(made, make)["resourceClaims"] == [claim]
    assert made.status["gpus"] == "1 claims of own"


def test_without_the_kind_it_is_said(world: Any, make: Any) -> None:
    made = world(claiming(deviceClassName="gpu.nvidia.com")).plan()
    status, reason, message = make.condition(made, "Accepted")
    assert (status, reason) == ("False", "ClaimsUnavailable")
    assert "operator.optionalKinds" in message
    kinds = {it["kind"] for it in made.manifests}
    assert not kinds & {"Deployment", "ResourceClaimTemplate"}
    assert made.requeue == 30.0
