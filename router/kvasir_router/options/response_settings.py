"""Settings of the responses that the router keeps."""

from dataclasses import dataclass

from kvasir.cli.flags import flag
from kvasir_router.options import option_values as parse
from kvasir_router.options.router_panels import RESPONSES

DAY_SECONDS = 86400.0


@dataclass(frozen=True, slots=True)
class ResponseSettings:
    """Settings of responses that are kept for `previous_response_id`."""

    url: str | None = flag(
        None,
        "Where responses of /v1/responses are kept, so that previous_response_id goes on with "
        "them: sqlite:///PATH, a file of one router, or redis://HOST:PORT/DATABASE (rediss:// with "
        "TLS) for several. Without it none are kept.",
        RESPONSES,
        "response_store",
        parse=parse.response_store,
        envvar="KVASIR_RESPONSE_STORE",
        shown=False,
    )
    days: float = flag(
        30.0, "Days after which a response is forgotten.", RESPONSES, "response_days", min=0.001
    )
    total_bytes: int = flag(
        2**30,
        "Bytes of all responses in a file, compressed; the oldest of the key that has most go "
        "first. Redis has its own `maxmemory`.",
        RESPONSES,
        "response_bytes",
        min=2**20,
    )
    per_key: int = flag(
        10_000,
        "Responses kept of one API key; the oldest go first.",
        RESPONSES,
        "responses_per_key",
        min=1,
    )
