"""Addresses of clients behind proxies that are trusted to tell them."""

import socket
from collections.abc import Iterable, Sequence
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any

from kvasir_router.wire.forwarding.proxy_header import address_text
from kvasir_router.wire.http_request import RequestError

BAD_FORWARDED = "bad_forwarded_for"
"""Code of the refusal of an X-Forwarded-For."""
MAX_HOPS = 32
"""Proxies that a request may have come through."""
_HEADER = b"x-forwarded-for:"
_BAD = (
    "X-Forwarded-For must be a list of addresses, the last of which the proxy in front of this "
    "router has added; let it write the client's address."
)

Networks = tuple[IPv4Network | IPv6Network, ...]


class TrustedProxies:
    """Networks whose X-Forwarded-For is believed. Of anybody else's nothing is: a client could
    write what it likes."""

    def __init__(self, networks: Networks) -> None:
        self._trusted = lru_cache(maxsize=4096)(lambda text: contains(networks, text))
        self._some = bool(networks)

    def trusts(self, address: str) -> bool:
        """Return whether a connection from this address is a proxy's."""
        return self._some and self._trusted(address)

    def client_of(self, lines: Iterable[bytes], peer: str) -> str:
        """Return the client of a request with these header lines on a connection from `peer`, which
        is trusted: read from the end, the first address that is not a trusted proxy's, as each
        proxy adds the one that it saw. Raises RequestError."""
        values = [line[len(_HEADER) :] for line in lines if line[:16].lower() == _HEADER]
        if not values:
            return peer
        hops = b",".join(values).decode("latin-1").rsplit(",", MAX_HOPS)
        address = peer
        for hop in reversed(hops[-MAX_HOPS:]):
            address = hop_address(hop.strip())
            if not self._trusted(address):
                return address
        if len(hops) > MAX_HOPS:
            raise RequestError(400, _BAD, BAD_FORWARDED)
        return address


def contains(networks: Networks, address: str) -> bool:
    """Return whether the address is in one of the networks; that of no internet is in none."""
    try:
        found = ip_address(address)
    except ValueError:
        return False
    return any(found in network for network in networks)


def parse_networks(names: Sequence[str]) -> Networks:
    """Return the networks of CIDRs and single addresses. Raises ValueError, with the bad one."""
    found: list[IPv4Network | IPv6Network] = []
    for name in names:
        try:
            found.append(ip_network(name))
        except ValueError:
            raise ValueError(name) from None
    return tuple(found)


def peer_of(sock: Any) -> str:
    """Return the address at a socket's other end; empty for one that is gone, or no internet's."""
    try:
        family, name = sock.family, sock.getpeername()
    except OSError:
        return ""
    if family not in (socket.AF_INET, socket.AF_INET6):
        return ""
    return address_text(name[0].partition("%")[0])


def hop_address(text: str) -> str:
    """Return the address of `ADDRESS`, `ADDRESS:PORT` or `[ADDRESS]:PORT`. Raises
    RequestError."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        if "%" in text:
            raise ValueError
        return address_text(text)
    except ValueError:
        raise RequestError(400, _BAD, BAD_FORWARDED) from None
