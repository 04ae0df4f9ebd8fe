"""Settings of the proxies that tell whose requests they pass on."""

from dataclasses import dataclass

from kvasir.cli.flags import flag
from kvasir_router.options import option_values as parse
from kvasir_router.options.router_panels import CLIENTS
from kvasir_router.wire.forwarding.client_address import Networks


@dataclass(frozen=True, slots=True)
class ProxySettings:
    """Networks of proxies in front of a router, and what is believed of them."""

    trusted: Networks = flag(
        (),
        "Network of proxies whose X-Forwarded-For is believed, as 10.0.0.0/8; several times for "
        "several. Without it, a client's address is that of its connection.",
        CLIENTS,
        "trusted_proxy",
        type=list[str] | None,
        parse=parse.trusted_networks,
        metavar="CIDR",
    )
    protocol: Networks = flag(
        (),
        "Network of proxies whose connections begin with a PROXY header (version 1 or 2); several "
        "times for several. One without it is closed. Without this, none is expected.",
        CLIENTS,
        "proxy_protocol",
        type=list[str] | None,
        parse=parse.proxy_protocol_networks,
        metavar="CIDR",
    )
    client_connections: int = flag(
        0,
        "Connections of one client's address to each worker, other than of a proxy; one more is "
        "answered 429. 0 = no limit.",
        CLIENTS,
        "max_client_connections",
        min=0,
    )
