"""Metrics of tokenising."""

from collections.abc import Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from kvasir_router.telemetry.router_metrics import counter
from kvasir_router.tokenizing.tokenizing import Tokenizing


class TokenizingCollector(Collector):
    """Collector of what became of prompts: `made` in time or not, `late` ones among them once more;
    `refused`, `failed`, `outdated` or `not_taken`."""

    def __init__(self, tokenizing: Tokenizing) -> None:
        self._tokenizing = tokenizing

    def collect(self) -> Iterator[Metric]:
        """Collector.collect."""
        prompts = counter(
            "tokenized_prompts",
            "Prompts for the exact index, by what became of them.",
            "model",
            "outcome",
        )
        for labels, count in self._tokenizing.outcomes.items():
            prompts.add_metric(labels, count)
        yield prompts
