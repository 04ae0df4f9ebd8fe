"""Settings of the spend that is kept."""

from dataclasses import dataclass

from kvasir.cli.flags import flag
from kvasir_router.options import option_values as parse
from kvasir_router.options.router_panels import KEYS


@dataclass(frozen=True, slots=True)
class SpendSettings:
    """A place where daily budgets and what keys have used outlive the router."""

    url: str | None = flag(
        None,
        "Where the tokens that keys and tenants use are kept by day: sqlite:///PATH, a file of one "
        "router, or redis://HOST:PORT/DATABASE (rediss:// with TLS) for several. Daily budgets "
        "then outlive a restart and are one for all routers; /spend on the admin port has the "
        "amounts as CSV.",
        KEYS,
        "spend_store",
        parse=parse.spend_store,
        envvar="KVASIR_SPEND_STORE",
        shown=False,
    )
    days: int = flag(
        62, "Days after which spend is forgotten.", KEYS, "spend_days", min=1, max=3660
    )
