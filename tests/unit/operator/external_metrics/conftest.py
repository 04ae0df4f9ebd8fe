"""Hand on the fixtures of tests/support."""

from support.external_metrics import deployment_fixture, routers, settings

__all__ = [
    "deployment_fixture",
    "routers",
    "settings",
]
