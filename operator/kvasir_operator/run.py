"""One run of the operator: from its settings until it is told to stop or loses its Lease."""

from __future__ import annotations

from kvasir_operator.settings import OperatorSettings


class OperatorError(Exception):
    """The operator cannot go on; one sentence on why."""


async def run(settings: OperatorSettings) -> None:
    """Raises OperatorError."""
    raise OperatorError(f"nothing is watched yet in {settings.watch_namespaces or 'any namespace'}")
