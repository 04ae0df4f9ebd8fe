"""Settings of what happens to a request whose replica fails or is late."""

from dataclasses import dataclass

from kvasir.cli.flags import flag
from kvasir_router.options.router_panels import FAILURES


@dataclass(frozen=True, slots=True)
class Failover:
    """Retries, migration and hedging of requests whose replica fails or is late."""

    request_timeout: float | None = flag(
        None,
        "Seconds for a whole answer where the request has no x-request-timeout header; without "
        "it, no limit.",
        FAILURES,
        min=0.001,
    )
    first_byte_timeout: float = flag(
        120.0,
        "Seconds in which an engine that is not Kvasir's has to send the first data of a stream, "
        "beside four times what its measured prefill speed says for the prompts in flight there; "
        "0 = no limit. Comments of server-sent events (`: ping`) and Anthropic's `event: ping` are "
        "no data.",
        FAILURES,
        min=0.0,
    )
    stream_idle_timeout: float = flag(
        120.0,
        "Seconds in which such an engine has to send more data of a stream; 0 = no limit.",
        FAILURES,
        min=0.0,
    )
    migration: bool = flag(
        True,
        "Let another replica go on with a stream whose replica broke (Kvasir engines only).",
        FAILURES,
    )
    max_moves: int = flag(
        3,
        "Times that one request goes elsewhere because its replica ended or fell silent.",
        FAILURES,
        min=0,
    )
    """Requests that an engine hands over at the end of its drain do not count, unless this is 0."""
    stream_bytes: int = flag(
        4 * 1024 * 1024,
        "Bytes kept of one stream so that another replica can continue it.",
        FAILURES,
        "migration_stream_bytes",
        min=0,
    )
    """A larger stream cannot migrate."""
    streams_bytes: int = flag(
        256 * 1024 * 1024,
        "The same for all streams together.",
        FAILURES,
        "migration_total_bytes",
        min=0,
    )
    hedging: bool = flag(
        False, "Ask a second replica when a unary answer takes longer than 95 % of them.", FAILURES
    )
