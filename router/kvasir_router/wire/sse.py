"""Server-sent event streams: where events end, and whether a part of one has data."""

_MAX_HELD = 256 * 1024
_ENDS = (b"\n\n", b"\r\n\r\n")
_DATA = b"data:"
_EVENT = b"event:"
_PING = b"ping"
_START_BYTES = 32
"""Bytes of an unfinished line that are kept; one as long names no ping."""


class EventCutter:
    """Hold back an event until it is whole, so that an error event can follow at any time.

    What engines write ends with an event nearly always and passes as it is. An event larger than
    256 KiB is passed in parts: memory stays bounded.
    """

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = b""

    def whole(self, data: bytes, last: bool) -> bytes:
        """The bytes that may be sent on, now that `data` has come."""
        if self._held:
            data = self._held + data
            self._held = b""
        if last or data.endswith(_ENDS):
            return data
        cut = max(data.rfind(end) + len(end) if end in data else 0 for end in _ENDS)
        if len(data) - cut > _MAX_HELD:
            return data
        self._held = data[cut:]
        return data[:cut]


class DataLines:
    """Tell parts that have some of a `data:` line from those that only keep a connection open:
    comments, blank lines, other fields, and events with the name `ping`, which Anthropic's protocol
    has. A name counts from where it stands in its event; servers write it first."""

    __slots__ = ("_in_ping", "_start")

    def __init__(self) -> None:
        self._start = b""
        """First bytes of the line that the last part ended in."""
        self._in_ping = False

    def found_in(self, data: bytes) -> bool:
        """Return whether `data`, the stream's next bytes, begins a `data:` line or goes on with
        one."""
        if not data:
            return False
        data = self._start + data
        line = data.rfind(b"\n") + 1
        self._start = data[line : line + _START_BYTES] if line < len(data) else b""
        if self._in_ping or _PING in data:
            return self._found_outside_pings(data)
        return data.startswith(_DATA) or b"\n" + _DATA in data

    def _found_outside_pings(self, data: bytes) -> bool:
        found = False
        *lines, unfinished = data.split(b"\n")
        for line in lines:
            if line.startswith(_DATA):
                found = found or not self._in_ping
            elif line.startswith(_EVENT):
                name = line[len(_EVENT) :].strip()
                self._in_ping = name == _PING and len(line) < _START_BYTES
            elif line in (b"", b"\r"):
                self._in_ping = False
        return found or (unfinished.startswith(_DATA) and not self._in_ping)
