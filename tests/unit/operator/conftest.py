"""Hand on the fixtures of tests/support."""

from support.operator_world import make, world

__all__ = [
    "make",
    "world",
]
