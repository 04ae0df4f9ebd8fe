"""Addresses of clients behind gateways, and who is believed to tell them."""

import pytest

from kvasir.wire.proto.ext_proc.v3 import external_processor_pb2 as pb
from kvasir_router.picker.gateway_address import ATTRIBUTES, client_of, gateway_of, source_of
from kvasir_router.wire.forwarding.client_address import TrustedProxies, parse_networks
from kvasir_router.wire.http_request import RequestError

GATEWAY, CLIENT = "10.0.0.1", "192.0.2.7"


def message(value: object, name: str = "source.address", key: str = ATTRIBUTES):
    made = pb.ProcessingRequest()
    made.attributes[key].update({name: value})
    return made


@pytest.mark.parametrize(
    ("told", "address"),
    [
        (message("192.0.2.7:4711"), "192.0.2.7"),
        (message("192.0.2.7"), "192.0.2.7"),
        (message("[2001:db8::1]:80"), "2001:db8::1"),
        (message("::ffff:192.0.2.7"), "192.0.2.7"),
        (message("/run/socket"), ""),
        (message("x" * 1000), ""),
        (message(5), ""),
        (message("192.0.2.7:1", name="source.port"), ""),
        (message("192.0.2.7:1", key="other"), ""),
        (pb.ProcessingRequest(), ""),
    ],
)
def test_the_attribute_of_the_gateways_own(told, address) -> None:
    assert source_of(told) == address


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:10.0.0.1:4711", "10.0.0.1"),
        ("ipv6:%5B2001:db8::1%5D:4711", "2001:db8::1"),
        ("ipv6:[::1]:4711", "::1"),
        ("unix:/run/socket", ""),
        ("", ""),
    ],
)
def test_the_gateway_by_grpcs_name_of_it(peer, address) -> None:
    assert gateway_of(peer) == address


@pytest.mark.parametrize(
    ("trusted", "source", "forwarded", "client"),
    [
        ((), "", None, ""),
        ((), "", "1.2.3.4", ""),  # anybody could have written it
        ((), CLIENT, "1.2.3.4", CLIENT),
        ((GATEWAY,), "", f"1.2.3.4, {CLIENT}", CLIENT),
        ((GATEWAY,), "", None, GATEWAY),
        ((GATEWAY,), CLIENT, "1.2.3.4", CLIENT),  # the gateway saw no proxy
        (("10.0.0.0/8",), "10.0.0.9", f"1.2.3.4, {CLIENT}", CLIENT),  # it saw a load balancer
        (("10.0.0.0/8",), "10.0.0.9", f"{CLIENT}, 10.0.0.9", CLIENT),
    ],
)
def test_who_is_believed(trusted, source, forwarded, client) -> None:
    proxies = TrustedProxies(parse_networks(trusted))
    headers = [] if forwarded is None else [(b"X-Forwarded-For", forwarded.encode())]
    assert client_of(proxies, source, GATEWAY, headers) == client


def test_what_should_be_believed_and_is_no_address_is_refused() -> None:
    proxies = TrustedProxies(parse_networks([GATEWAY]))
    with pytest.raises(RequestError, match="X-Forwarded-For must be a list of addresses"):
        client_of(proxies, "", GATEWAY, [(b"x-forwarded-for", b"somebody")])
