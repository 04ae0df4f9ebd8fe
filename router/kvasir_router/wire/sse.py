"""Cutting a server-sent event stream at the ends of its events."""

_MAX_HELD = 256 * 1024
_ENDS = (b"\n\n", b"\r\n\r\n")


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
