"""Metrics of the responses that the router keeps."""

from collections.abc import Iterator

from prometheus_client.core import Metric

from kvasir_router.kept_responses.kept_responses import KeptResponses
from kvasir_router.telemetry.router_metrics import counter


def response_families(kept: KeptResponses) -> Iterator[Metric]:
    """Yield what became of the responses that were to be kept: `kept` or `failed`."""
    text = "Responses that were to be kept, by what became of them."
    yield counter("responses_kept", text, kept.outcomes, "outcome")
