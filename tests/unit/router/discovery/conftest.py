"""Hand on the fixtures of tests/support."""

from support.kubernetes_api import deployment_fixture, leaving_fixture, pod_fixture, start_api

__all__ = [
    "deployment_fixture",
    "leaving_fixture",
    "pod_fixture",
    "start_api",
]
