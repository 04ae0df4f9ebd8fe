"""Rules of GPUs, of files: in the words of the API server."""

from __future__ import annotations

import pytest
from support.resource_cases import ACCEPTED, REFUSED

from kvasir.resource import LLMDeployment

CASES = ("gpus and tensor", "mig and tensor", "claim and tensor", "claim and auto", "cuda", "cpu")
IN_OTHER_WORDS = {
    "gpus and tensor": "ask for 2 GPUs (nvidia.com/gpu) but parallelism.tensor is 1",
    "mig and tensor": "ask for 2 GPUs (nvidia.com/mig-1g.10gb) but parallelism.tensor is 1",
    "claim and tensor": "ask for 2 GPUs (a) but parallelism.tensor is 1",
}
HEAD = {
    "apiVersion": "kvasir.dev/v1alpha1",
    "kind": "LLMDeployment",
    "metadata": {"name": "d"},
}


@pytest.mark.parametrize("case", CASES)
def test_refused(case: str) -> None:
    spec, told = REFUSED[case]
    with pytest.raises(ValueError) as refusal:
        LLMDeployment.model_validate({**HEAD, "spec": spec})
    assert IN_OTHER_WORDS.get(case, told) in str(refusal.value)


@pytest.mark.parametrize("case", ["mig", "amd", "device class", "claim template", "profile"])
def test_accepted(case: str) -> None:
    assert LLMDeployment.model_validate({**HEAD, "spec": ACCEPTED[case]}).spec.model.uri
