"""Reading files over HTTP: ranges, validators, and what each refusal means."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import httpx

from kvasir import __version__
from kvasir.models.download_errors import DownloadError, PermanentError

LOOPBACK = ("localhost", "127.0.0.1", "::1")
_TIMEOUT = httpx.Timeout(60, connect=15)
_MAX_REDIRECTS = 5
_TRANSIENT = (408, 425, 429)


def new_client() -> httpx.Client:
    """A client that follows redirects; HTTPS_PROXY, NO_PROXY and SSL_CERT_FILE are honoured."""
    return httpx.Client(
        timeout=_TIMEOUT,
        follow_redirects=True,
        max_redirects=_MAX_REDIRECTS,
        headers={"user-agent": f"kvasir/{__version__}", "accept-encoding": "identity"},
        limits=httpx.Limits(max_connections=64),
    )


def is_private(url: str) -> bool:
    """True when credentials may be sent to `url`: it has TLS, or is on this machine."""
    parsed = httpx.URL(url)
    return parsed.scheme == "https" or parsed.host in LOOPBACK


@contextmanager
def reading(
    client: httpx.Client,
    url: str,
    *,
    what: str,
    start: int = 0,
    version: str | None = None,
    headers: Mapping[str, str] | None = None,
    credentials: str = "",
) -> Iterator[tuple[int, Iterator[bytes]]]:
    """The body of `url` from byte `start` on, or from 0 where the server has no ranges or holds
    another `version` (an ETag or date). `credentials` is the remedy when access is refused."""
    sent = dict(headers or {})
    if start:
        sent["range"] = f"bytes={start}-"
        if version:
            sent["if-range"] = version
    with failures_explained(what), client.stream("GET", url, headers=sent) as response:
        check(response, what, credentials)
        ranged = response.status_code == httpx.codes.PARTIAL_CONTENT
        yield (start if ranged else 0), response.iter_raw()


@contextmanager
def failures_explained(what: str) -> Iterator[None]:
    """Turn what the HTTP library raises into DownloadError."""
    try:
        yield
    except (httpx.InvalidURL, httpx.UnsupportedProtocol, httpx.TooManyRedirects) as error:
        raise PermanentError(f"{what} cannot be read: {error}") from error
    except httpx.HTTPError as error:
        why = str(error) or type(error).__name__
        raise DownloadError(f"{what} cannot be read: {why}; check the network") from error


def check(response: httpx.Response, what: str, credentials: str = "") -> None:
    """Raise DownloadError unless `response` is a success."""
    status = response.status_code
    if response.is_success:
        return
    if status == httpx.codes.NOT_FOUND:
        raise PermanentError(f"{what} does not exist (404); check the model's URI")
    if status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        raise PermanentError(f"{what} is refused ({status}): {credentials}")
    said = f"{what} answered {status}"
    if status >= 500 or status in _TRANSIENT:
        raise DownloadError(f"{said}; it is asked again later")
    raise PermanentError(said)
