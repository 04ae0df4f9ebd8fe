"""Metrics of tokenising."""

from collections.abc import Iterator

from prometheus_client.core import Metric

from kvasir_router.telemetry.router_metrics import counter
from kvasir_router.tokenizing.tokenizing import Tokenizing


def tokenizing_families(tokenizing: Tokenizing) -> Iterator[Metric]:
    """Yield what became of prompts: `made` in time or not, `late` ones among them once more;
    `refused`, `failed`, `outdated` or `not_taken`."""
    text = "Prompts for the exact index, by what became of them."
    yield counter("tokenized_prompts", text, tokenizing.outcomes, "model", "outcome")
