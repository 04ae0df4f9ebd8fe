"""Files of others' Go modules, at a pinned version: the CRDs of operators that we work with."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from harness.commands import run
from harness.errors import HarnessError
from harness.toolchain import go

_SECONDS = 600

KSERVE = (
    "github.com/kserve/kserve",
    "v0.15.2",
    "h1:uph7Umk331fvBMrHHpTJNDt6+lf3IAuyiskaQw8wIAk=",
)
GATEWAY_API = (
    "sigs.k8s.io/gateway-api",
    "v1.2.1",
    "h1:fZZ/+RyRb+Y5tGkwxFKuYuSRQHu9dZtbjenblleOLHM=",
)
INFERENCE_EXTENSION = (
    "sigs.k8s.io/gateway-api-inference-extension",
    "v1.0.0",
    "h1:GsHvlu1Cn1t6+vrHoPdNNlpwKxf/y1HuQSlUjd58Ds8=",
)
ENVOY_API = (
    "github.com/envoyproxy/go-control-plane/envoy",
    "v1.36.0",
    "h1:yg/JjO5E7ubRyKX3m07GF3reDNEnfOboJ0QySbH736g=",
)
PROMETHEUS_OPERATOR = (
    "github.com/prometheus-operator/prometheus-operator",
    "v0.79.2",
    "h1:H/HCiMS4dXQyiFHw28PFlWMh15YUraL3MFe8u7k7dGA=",
)
KEDA = (
    "github.com/kedacore/keda/v2",
    "v2.20.2",
    "h1:SR60v8uIcelbveS8n/1jcl8tLdBBIbHMxmdOHw8tKqA=",
)


def module_directory(path: str, version: str, checksum: str) -> Path:
    """The directory of a module, downloaded through GOPROXY unless Go's module cache has it.

    Raises HarnessError when it cannot be had or is not the one that `checksum` (h1) is of.
    """
    environment = {"GOFLAGS": "-mod=mod", "GOTOOLCHAIN": "local", "GOSUMDB": "off"}
    with tempfile.TemporaryDirectory() as outside:
        try:
            printed = run(
                *(go(), "mod", "download", "-json", f"{path}@{version}"),
                cwd=Path(outside),
                env=environment,
                timeout=_SECONDS,
            )
        except HarnessError as error:
            raise HarnessError(
                f"{path}@{version} is not in Go's module cache and cannot be downloaded; set"
                f" GOPROXY to a proxy that has it ({error})"
            ) from None
    module = json.loads(printed)
    if module["Sum"] != checksum:
        raise HarnessError(f"{path}@{version} has the checksum {module['Sum']}, not {checksum}")
    return Path(module["Dir"])
