"""Hand on the fixtures of tests/support."""

from support.helm import charts, find, helm, helm_error, render, value_sets, values_name

__all__ = [
    "charts",
    "find",
    "helm",
    "helm_error",
    "render",
    "value_sets",
    "values_name",
]
