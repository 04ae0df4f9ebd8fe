"""Cross-origin requests: which web pages may call the API from a browser.

Off unless origins are configured. Only what the Fetch standard asks of a server that is used with
keys in `Authorization` and without cookies: https://fetch.spec.whatwg.org/#http-cors-protocol.
"""

import re
from collections.abc import Sequence

from kvasir_router.wire.http_request import Request
from kvasir_router.wire.responses import Answer

ANY = "*"

# How long a browser may remember a preflight's answer; more than two hours none does.
_MAX_AGE_SECONDS = 7200

_HEADER_NAMES = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~, -]{1,2048}")


class Cors:
    """`origins` as browsers send them (`https://app.example.com`), or `*` for every one."""

    def __init__(self, origins: Sequence[str]) -> None:
        self._any = ANY in origins
        self._origins = frozenset(origin.encode() for origin in origins)

    def see(self, request: Request) -> Answer | None:
        """Give the request the lines its answer needs; the answer itself if it is a preflight.

        The Origin header is taken out: an engine that answered it too would double the lines.
        """
        origin = _take(request, b"origin")
        if origin is None:
            return None
        if not (self._any or origin in self._origins):
            request.answer_lines += b"Vary: Origin\r\n"
            return None
        request.answer_lines += (
            b"Access-Control-Allow-Origin: %b\r\nAccess-Control-Expose-Headers: *\r\n%b"
        ) % ((b"*", b"") if self._any else (origin, b"Vary: Origin\r\n"))
        asked = _take(request, b"access-control-request-method")
        if request.method != b"OPTIONS" or asked is None:
            return None
        names = _take(request, b"access-control-request-headers") or b""
        lines = b"Access-Control-Allow-Methods: GET, HEAD, POST, DELETE\r\n"
        lines += b"Access-Control-Max-Age: %d\r\n"
        lines %= _MAX_AGE_SECONDS
        if _HEADER_NAMES.fullmatch(names):
            # Named, because `*` does not stand for Authorization.
            lines += b"Access-Control-Allow-Headers: %b\r\n" % names
        return Answer(200, b"", lines=lines)


def _take(request: Request, name: bytes) -> bytes | None:
    """Remove a header, and return its value."""
    for line in request.lines:
        key, _, value = line.partition(b":")
        if key.lower() == name:
            request.lines.remove(line)
            return value.strip()
    return None
