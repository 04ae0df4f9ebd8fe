"""Hand on the fixtures of tests/support."""

from support.kubernetes_api import (
    claims_fixture,
    deployment_fixture,
    leaving_fixture,
    pod_fixture,
    start_api,
)

__all__ = [
    "claims_fixture",
    "deployment_fixture",
    "leaving_fixture",
    "pod_fixture",
    "start_api",
]
