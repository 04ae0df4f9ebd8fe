"""Targets of requests."""

from dataclasses import dataclass

from kvasir_router.options.flag import WATCHING, flag


@dataclass(frozen=True, slots=True)
class Slo:
    """Targets of one request, in seconds."""

    ttft: float = flag(
        2.0, WATCHING, "Target for a stream's first byte, in seconds.", "slo_ttft", min=0.001
    )
    """From a whole request to the first byte of its answer, waiting included."""

    itl: float = flag(
        0.1, WATCHING, "Target between two tokens of a stream, in seconds.", "slo_itl", min=0.0001
    )
    """Between two tokens of a stream, on average over the stream."""
