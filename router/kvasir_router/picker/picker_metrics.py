"""Counts of the streams of gateways."""

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import Metric

from kvasir_router.telemetry.router_metrics import counter, gauge


class PickerCounts:
    """Counts of one process."""

    def __init__(self) -> None:
        self.streams = 0
        """Under way."""
        self.ended: Counter[str] = Counter()
        """By how they ended: `complete`, or `broken` by the gateway."""

    def families(self) -> Iterator[Metric]:
        """Yield them as metrics."""
        text = "Requests that gateways have under way."
        yield gauge("picker_streams", text, self.streams)
        text = "Streams of gateways that ended, by how: complete, or broken off."
        yield counter("picker_streams_ended", text, self.ended, "end")
