"""Targets of requests."""

from dataclasses import dataclass

from kvasir.cli.flags import flag
from kvasir_router.options.router_panels import WATCHING


@dataclass(frozen=True, slots=True)
class Slo:
    """Targets of one request, in seconds."""

    ttft: float = flag(
        2.0, "Target for a stream's first byte, in seconds.", WATCHING, "slo_ttft", min=0.001
    )
    """From a whole request to the first byte of its answer, waiting included."""

    itl: float = flag(
        0.1, "Target between two tokens of a stream, in seconds.", WATCHING, "slo_itl", min=0.0001
    )
    """Between two tokens of a stream, on average over the stream."""
