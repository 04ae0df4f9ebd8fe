"""Addresses of the clients behind a gateway, as far as somebody who is believed tells them.

A gateway is believed what it says of itself: the attribute `source.address`. An X-Forwarded-For is
believed where the router's trusted proxies have the address that it came from: the attribute's, or
without it the gateway's own.
"""

from collections.abc import Iterable
from urllib.parse import unquote

from kvasir.wire.proto.ext_proc.v3 import external_processor_pb2 as pb
from kvasir_router.wire.forwarding.client_address import TrustedProxies, hop_address
from kvasir_router.wire.http_request import RequestError

ATTRIBUTES = "envoy.filters.http.ext_proc"
"""Key under which Envoy sends attributes."""
SOURCE = "source.address"
"""Attribute: the address that the gateway got the request from, with its port."""
_MAX_TEXT = 64


def source_of(message: pb.ProcessingRequest) -> str:
    """Return the address that the gateway says the request came from; empty if it says none."""
    if ATTRIBUTES not in message.attributes:
        return ""
    fields = message.attributes[ATTRIBUTES].fields
    return _address(fields[SOURCE].string_value) if SOURCE in fields else ""


def gateway_of(peer: str) -> str:
    """Return the gateway's address from gRPC's name of a connection's other end, as
    `ipv4:192.0.2.1:4711`; empty for one that has none."""
    kind, _, rest = unquote(peer).partition(":")
    return _address(rest) if kind in ("ipv4", "ipv6") else ""


def client_of(
    proxies: TrustedProxies, source: str, gateway: str, headers: Iterable[tuple[bytes, bytes]]
) -> str:
    """Return the client's address; empty if nobody who is believed tells it. Raises
    RequestError for an X-Forwarded-For that should be believed and is none."""
    peer = source or gateway
    if not proxies.trusts(peer):
        return source
    lines = (b"%b:%b" % header for header in headers)
    return proxies.client_of(lines, peer)


def _address(text: str) -> str:
    try:
        return hop_address(text) if len(text) <= _MAX_TEXT else ""
    except RequestError:
        return ""
