"""PROXY headers: what they say, in pieces of any size, and what is none."""

import struct
from ipaddress import ip_address

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvasir_router.wire.forwarding.proxy_header import (
    MAX_V2_BYTES,
    SIGNATURE,
    ProxyHeader,
    ProxyHeaderError,
    address_text,
)


def block(
    command=0x21, family=0x11, source="1.2.3.4", destination="5.6.7.8", tlvs=b"", length=None
) -> bytes:
    """A header of version 2."""
    content = b"".join(ip_address(each).packed for each in (source, destination) if each)
    content += struct.pack("!HH", 1234, 443) + tlvs
    size = len(content) if length is None else length
    return SIGNATURE + struct.pack("!BBH", command, family, size) + content


GOOD = [
    (b"PROXY TCP4 192.0.2.1 198.51.100.1 56324 443\r\n", "192.0.2.1"),
    (b"PROXY TCP6 2001:DB8::1 ::1 0 65535\r\n", "2001:db8::1"),
    (b"PROXY TCP6 ::ffff:192.0.2.1 ::1 1 2\r\n", "192.0.2.1"),
    (b"PROXY UNKNOWN\r\n", ""),
    (b"PROXY UNKNOWN ffff:f...f:ffff ffff:f...f:ffff 65535 65535\r\n", ""),
    (block(), "1.2.3.4"),
    (block(family=0x21, source="2001:db8::1", destination="::1"), "2001:db8::1"),
    (block(family=0x21, source="::ffff:1.2.3.4", destination="::1"), "1.2.3.4"),
    (block(tlvs=b"\x03\0\4abcd" + b"x" * 500), "1.2.3.4"),
    (block(command=0x20), ""),
    (block(command=0x20, family=0xFF, source="", destination=""), ""),
    (block(family=0x00, source="", destination=""), ""),
    (SIGNATURE + struct.pack("!BBH", 0x21, 0x31, 216) + b"/run/x".ljust(216, b"\0"), ""),
]
BAD = [
    (b"GET / HTTP/1.1\r\n", "signature"),
    (b"\x16\x03\x01\x02\0", "signature"),
    (b"PROXY\tTCP4", "signature"),
    (b"proxy TCP4", "signature"),
    (b"\r\n\r\n\0\r\nQUIT ", "signature"),
    (b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\n", "line"),
    (b"PROXY TCP4 1.2.3.4 5.6.7.8 1\r\n", "line"),
    (b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2 3\r\n", "line"),
    (b"PROXY TCP4 1.2.3.4  5.6.7.8 1 2\r\n", "line"),
    (b"PROXY TCP4 1.2.3.4 5.6.7.8 01 2\r\n", "line"),
    (b"PROXY TCP4 1.2.3.4 5.6.7.8 1 65536\r\n", "line"),
    (b"PROXY TCP4 ::1 ::2 1 2\r\n", "line"),
    (b"PROXY TCP6 1.2.3.4 5.6.7.8 1 2\r\n", "line"),
    (b"PROXY TCP6 fe80::1%eth0 ::1 1 2\r\n", "line"),
    (b"PROXY UDP4 1.2.3.4 5.6.7.8 1 2\r\n", "line"),
    (b"PROXY TCP4 1.2.3.4 5.6.7.\xb2 1 2\r\n", "line"),
    (b"PROXY \r\n", "line"),
    (b"PROXY UNKNOWN " + b"x" * 92 + b"\r\n", "too_long"),
    (b"PROXY UNKNOWN " + b"x" * 200, "too_long"),
    (block(command=0x11), "version"),
    (block(command=0x22), "version"),
    (block(family=0x41), "family"),
    (block(length=11), "addresses"),
    (block(family=0x21, length=12), "addresses"),
    (SIGNATURE + struct.pack("!BBH", 0x21, 0x31, 12) + b"x" * 12, "addresses"),
    (block(length=MAX_V2_BYTES + 1), "too_long"),
]


def read(data: bytes, cuts: list[int]) -> tuple[ProxyHeader, int]:
    """Feed `data` in pieces, as a reader does that keeps what was not taken."""
    header, taken, seen = ProxyHeader(), 0, 0
    for cut in [*sorted(cuts), len(data)]:
        seen = max(seen, min(cut, len(data)))
        while not header.complete and taken < seen:
            size = header.feed(data[taken:seen])
            assert 0 < size <= seen - taken
            taken += size
    return header, taken


CUTS = st.lists(st.integers(0, 600), max_size=12)


@pytest.mark.parametrize(("data", "client"), GOOD)
def test_a_header_says_the_client_and_ends_where_it_ends(data, client) -> None:
    assert read(data, []) != (None, 0)
    header, taken = read(data + b"GET / HTTP/1.1\r\n", [])
    assert (header.complete, header.client, taken) == (True, client, len(data))
    for end in range(len(data)):
        assert not read(data[:end], [])[0].complete


@given(st.sampled_from(GOOD), st.binary(max_size=40), CUTS)
def test_cuts_and_what_follows_change_nothing(good, after, cuts) -> None:
    data, client = good
    header, taken = read(data + after, cuts)
    assert (header.complete, header.client, taken) == (True, client, len(data))


@pytest.mark.parametrize(("data", "reason"), BAD)
def test_what_is_none_is_refused_with_its_reason(data, reason) -> None:
    with pytest.raises(ProxyHeaderError, match=f"^{reason}$"):
        read(data, [])


@given(st.sampled_from(BAD), CUTS)
def test_cuts_do_not_change_the_refusal(bad, cuts) -> None:
    with pytest.raises(ProxyHeaderError, match=f"^{bad[1]}$"):
        read(bad[0], cuts)


@given(
    st.sampled_from([b"", b"PROXY ", b"PROXY TCP4 ", SIGNATURE, SIGNATURE + b"\x21\x11\0"]),
    st.binary(max_size=300),
    CUTS,
)
@example(b"PROXY ", b"\r", [1])
def test_whatever_comes_is_a_header_or_refused_or_incomplete(begin, rest, cuts) -> None:
    try:
        header, taken = read(begin + rest, cuts)
    except ProxyHeaderError:
        return
    assert taken <= len(begin + rest)
    if header.client:
        assert address_text(header.client) == header.client


@given(st.ip_addresses(), st.ip_addresses(), st.integers(0, 65535))
def test_each_address_is_read_in_both_versions(source, destination, port) -> None:
    if source.version != destination.version:
        destination = source
    client = address_text(str(source))
    line = f"PROXY TCP{source.version} {source} {destination} {port} {port}\r\n".encode()
    family = 0x11 if source.version == 4 else 0x21
    for data in (line, block(family=family, source=str(source), destination=str(destination))):
        header, taken = read(data, [])
        assert (header.client, taken) == (client, len(data))
