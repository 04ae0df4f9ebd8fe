"""The header by which a proxy says whose connection it passes on: PROXY protocol, versions 1 and 2.

https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt. It comes once, before all else, TLS's
handshake included. Checksums and other additions (TLVs) of version 2 are skipped.
"""

import struct
from ipaddress import ip_address

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
MAX_V1_BYTES = 107
"""Longest line of version 1, its end included."""
MAX_V2_BYTES = 4096
"""Longest addresses and additions of version 2 that are taken."""

_V2_HEAD = struct.Struct("!12sBBH")
_FAMILIES = {0x11: 4, 0x12: 4, 0x21: 16, 0x22: 16}
"""Bytes of an address, by family and transport: TCP and UDP over IPv4 and IPv6."""
_UNIX_BYTES = 216


class ProxyHeaderError(Exception):
    """Bytes that are no PROXY header; its text is one of a few reasons."""


class ProxyHeader:
    """Reads a header from pieces of any size, and not a byte more."""

    def __init__(self) -> None:
        self._read = bytearray()
        self.complete = False
        self.client = ""
        """Address of the client; empty where the connection is the proxy's own, or the header does
        not say."""

    def feed(self, data: bytes) -> int:
        """Take what belongs to the header of the next bytes; return how many these are. Raises
        ProxyHeaderError."""
        taken = 0
        while not self.complete and taken < len(data):
            step = min(self._wanted(), len(data) - taken)
            part = data[taken : taken + step]
            if self._is_line and b"\n" in part:
                part = part[: part.index(b"\n") + 1]
            self._read += part
            taken += len(part)
            self._look()
        return taken

    @property
    def _is_line(self) -> bool:
        return self._read[:1] == b"P"

    def _wanted(self) -> int:
        """Return how many bytes may follow that are surely the header's, or its line's."""
        size = len(self._read)
        if not size:
            return 1
        if self._is_line:
            return MAX_V1_BYTES + 1 - size
        if size < _V2_HEAD.size:
            return _V2_HEAD.size - size
        return _V2_HEAD.size + int.from_bytes(self._read[14:16], "big") - size

    def _look(self) -> None:
        read = self._read
        if self._is_line:
            if not read.startswith(b"PROXY "[: len(read)]):
                raise ProxyHeaderError("signature")
            if read.endswith(b"\n"):
                self._line(bytes(read))
            elif len(read) > MAX_V1_BYTES:
                raise ProxyHeaderError("too_long")
            return
        if not read.startswith(SIGNATURE[: len(read)]):
            raise ProxyHeaderError("signature")
        if len(read) >= _V2_HEAD.size:
            self._block(bytes(read))

    def _line(self, line: bytes) -> None:
        """Version 1: `PROXY TCP4 SOURCE DESTINATION PORT PORT`."""
        if not line.endswith(b"\r\n") or len(line) > MAX_V1_BYTES:
            raise ProxyHeaderError("too_long" if len(line) > MAX_V1_BYTES else "line")
        try:
            words = line[:-2].decode("ascii").split(" ")
            if words[1] != "UNKNOWN":
                _, protocol, source, destination, *ports = words
                version = {"TCP4": 4, "TCP6": 6}[protocol]
                addresses = ip_address(source), ip_address(destination)
                good = (
                    all(each.version == version for each in addresses) and "%" not in line.decode()
                )
                if not good or len(ports) != 2 or not all(map(_is_port, ports)):
                    raise ValueError
                self.client = address_text(source)
        except (ValueError, KeyError, IndexError):
            raise ProxyHeaderError("line") from None
        self.complete = True

    def _block(self, block: bytes) -> None:
        """Version 2: a fixed head, and so many bytes as it says."""
        _, command, family, length = _V2_HEAD.unpack_from(block)
        if command not in (0x20, 0x21):
            raise ProxyHeaderError("version")
        if length > MAX_V2_BYTES:
            raise ProxyHeaderError("too_long")
        if len(block) < _V2_HEAD.size + length:
            return
        size = _FAMILIES.get(family)
        if command == 0x21 and size is not None:
            if length < 2 * size + 4:
                raise ProxyHeaderError("addresses")
            source = block[_V2_HEAD.size : _V2_HEAD.size + size]
            self.client = address_text(str(ip_address(source)))
        elif command == 0x21 and family in (0x31, 0x32):
            if length < _UNIX_BYTES:
                raise ProxyHeaderError("addresses")
        elif command == 0x21 and family != 0:
            raise ProxyHeaderError("family")
        self.complete = True


def address_text(text: str) -> str:
    """Return an address in the one form that it has in logs: an IPv4 address as such also where it
    came as IPv6. Raises ValueError."""
    address = ip_address(text)
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


def _is_port(text: str) -> bool:
    return text.isdigit() and len(text) <= 5 and int(text) <= 65535 and str(int(text)) == text
