"""Whose a request is, by what trusted proxies say."""

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir_router.wire.forwarding.client_address import (
    MAX_HOPS,
    TrustedProxies,
    contains,
    parse_networks,
    peer_of,
)
from kvasir_router.wire.http_request import RequestError

TRUSTED = parse_networks(["10.0.0.0/8", "2001:db8::/32", "192.0.2.7"])
PEER = "10.0.0.1"


def client_of(*values: str) -> str:
    lines = [b"Accept: */*\r\n"]
    lines += [f"X-Forwarded-For: {value}\r\n".encode() for value in values]
    return TrustedProxies(TRUSTED).client_of(lines, PEER)


@pytest.mark.parametrize(
    ("values", "client"),
    [
        ([], PEER),
        (["203.0.113.5"], "203.0.113.5"),
        (["203.0.113.5, 10.0.0.9"], "203.0.113.5"),
        (["6.6.6.6, 203.0.113.5 ,10.0.0.9,\t192.0.2.7"], "203.0.113.5"),
        (["nonsense, 203.0.113.5"], "203.0.113.5"),
        (["6.6.6.6", "203.0.113.5", "10.0.0.9"], "203.0.113.5"),
        (["10.0.0.8, 10.0.0.9"], "10.0.0.8"),
        (["203.0.113.5:4711"], "203.0.113.5"),
        (["[2001:db9::1]:4711, [2001:db8::5]"], "2001:db9::1"),
        (["2001:DB9::0:1"], "2001:db9::1"),
        (["::ffff:203.0.113.5"], "203.0.113.5"),
        (["203.0.113.5, ::ffff:10.0.0.9"], "203.0.113.5"),
    ],
)
def test_the_last_address_that_is_no_proxys_is_the_clients(values, client) -> None:
    assert client_of(*values) == client


@pytest.mark.parametrize(
    "values",
    [
        [""],
        ["203.0.113.5,"],
        ["unknown"],
        ["203.0.113.5, _hidden, 10.0.0.9"],
        ["203.0.113"],
        ["fe80::1%eth0"],
        ["203.0.113.5 10.0.0.9"],
        ["203.0.113.5\xe9"],
        [", ".join(["10.0.0.9"] * (MAX_HOPS + 1))],
    ],
)
def test_what_a_proxy_cannot_have_meant_is_refused(values) -> None:
    with pytest.raises(RequestError) as error:
        client_of(*values)
    assert error.value.status == 400


def test_so_many_proxies_are_followed() -> None:
    assert client_of(", ".join(["203.0.113.5", *["10.0.0.9"] * (MAX_HOPS - 1)])) == "203.0.113.5"


@given(st.text(alphabet="0123456789abcdef.:,[] \tx%", max_size=60))
def test_whatever_it_says_the_client_is_an_address_or_it_is_refused(value) -> None:
    try:
        found = client_of(value)
    except RequestError:
        return
    assert contains(parse_networks(["0.0.0.0/0", "::/0"]), found)


def test_nobody_is_trusted_without_a_list() -> None:
    assert not TrustedProxies(()).trusts(PEER)
    assert TrustedProxies(TRUSTED).trusts("192.0.2.7")
    assert not TrustedProxies(TRUSTED).trusts("192.0.2.8")
    assert not TrustedProxies(TRUSTED).trusts("")


@pytest.mark.parametrize("name", ["10.0.0.1/8", "10.0.0.0/33", "x", ""])
def test_what_is_no_network_is_named(name) -> None:
    with pytest.raises(ValueError, match=f"^{name}$"):
        parse_networks([name])


def test_the_other_end_of_a_socket() -> None:
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as server:
        port = server.getsockname()[1]
        for host in ("127.0.0.1", "::1"):
            with socket.create_connection((host, port)):
                accepted, _ = server.accept()
                with accepted:
                    assert peer_of(accepted) == host
                assert peer_of(accepted) == ""
    one, other = socket.socketpair()
    with one, other:
        assert peer_of(one) == ""
