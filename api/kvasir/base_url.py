"""Base URLs of servers that speak OpenAI's protocol, as its clients take them."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import urlsplit

MAX_BASE_URL = 2048
_PATH = re.compile(r"(/[A-Za-z0-9._~!$&'()*+,;=:@-]+)*")
_DOT_SEGMENT = re.compile(r"/\.{1,2}(/|$)")


class BaseURL(NamedTuple):
    """A server, and the path under which it has the API."""

    host: str
    port: int
    tls: bool
    prefix: str
    """Path that stands in the place of a request's `/v1`, without a slash at its end."""


def parse_base_url(text: str) -> BaseURL:
    """Return the parts of `http(s)://HOST[:PORT][/PATH]`; one without a path has the API under
    `/v1`, as OpenAI's own has. Raises ValueError with a sentence."""
    wrong = ValueError(
        f"url {text[:200]!r} must be of the form http(s)://HOST[:PORT][/PATH], as"
        " https://api.example.com/v1, without user, query or fragment"
    )
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:  # brackets without an address, or a port that is none
        raise wrong from None
    path = parts.path.rstrip("/")
    beside = parts.query or parts.fragment or "@" in parts.netloc or "?" in text or "#" in text
    is_path = _PATH.fullmatch(path) and not _DOT_SEGMENT.search(path)
    known = parts.scheme in ("http", "https") and text.isascii() and text.isprintable()
    if not known or not parts.hostname or " " in text or port == 0 or beside or not is_path:
        raise wrong
    tls = parts.scheme == "https"
    return BaseURL(parts.hostname, port or (443 if tls else 80), tls, path or "/v1")
