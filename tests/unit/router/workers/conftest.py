"""Hand on the fixtures of tests/support."""

from support.router_workers import until_fixture

__all__ = [
    "until_fixture",
]
