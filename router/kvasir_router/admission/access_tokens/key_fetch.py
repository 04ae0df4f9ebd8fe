"""Fetch an issuer's keys: discovery (OpenID Connect Discovery 1.0, section 4), then its JWKS.

Answers are bounded and redirects are not followed: each URL was checked, and the next one was not.
"""

import asyncio
import json
import ssl
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from kvasir.regular_files import read_regular_file
from kvasir_router.admission.access_tokens.issuers import Issuer, is_url
from kvasir_router.admission.access_tokens.signing_keys import SigningKeys

MAX_BYTES = 512 * 1024
_TIMEOUT_SECONDS = 10.0
_MAX_BEARER_BYTES = 64 * 1024


class KeyFetchError(Exception):
    """Keys that cannot be had; one sentence on why."""


async def fetch_keys(issuer: Issuer) -> SigningKeys:
    """Return the issuer's keys. Raises KeyFetchError."""
    try:
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            return await _fetch(issuer)
    except TimeoutError:
        raise KeyFetchError(f"no answer within {_TIMEOUT_SECONDS:g} s") from None
    except (OSError, aiohttp.ClientError) as error:
        raise KeyFetchError(str(error) or type(error).__name__) from None


async def _fetch(issuer: Issuer) -> SigningKeys:
    bearer, trust = await asyncio.to_thread(_read_files, issuer)
    async with aiohttp.ClientSession(
        headers={"Accept": "application/json"},
        connector=aiohttp.TCPConnector(ssl=trust),
        trust_env=True,
    ) as session:
        url = issuer.jwks_url
        if url is None:
            url = await _discover(session, issuer, bearer)
            if urlsplit(url)[:2] != urlsplit(issuer.issuer)[:2]:
                bearer = {}  # another server's business is to hand out public keys
        document = await _get(session, url, bearer)
    try:
        return SigningKeys(document, issuer.algorithms)
    except ValueError as error:
        raise KeyFetchError(f"{url}: {error}") from None


def _read_files(issuer: Issuer) -> tuple[dict[str, str], ssl.SSLContext]:
    """Return the credentials to send and whom to trust. Raises OSError or KeyFetchError."""
    headers = {}
    if issuer.bearer_file is not None:
        token = read_regular_file(issuer.bearer_file, _MAX_BEARER_BYTES).strip()
        if not token.isascii() or not token.decode("ascii").isprintable():
            raise KeyFetchError(f"{issuer.bearer_file} holds no token")
        headers["Authorization"] = f"Bearer {token.decode()}"
    return headers, ssl.create_default_context(cafile=issuer.ca_file)


async def _discover(session: aiohttp.ClientSession, issuer: Issuer, bearer: dict[str, str]) -> str:
    url = issuer.issuer.rstrip("/") + "/.well-known/openid-configuration"
    document = await _get(session, url, bearer)
    named = document.get("issuer") if isinstance(document, dict) else None
    if named != issuer.issuer:
        raise KeyFetchError(f"{url} is of another issuer, {str(named)[:256]!r}")
    found = document.get("jwks_uri")
    if not isinstance(found, str) or not is_url(found.split("?", 1)[0]):
        raise KeyFetchError(f"{url} has no `jwks_uri`")
    if not issuer.may_fetch(found):
        raise KeyFetchError(f"{url} names a `jwks_uri` without TLS; set allow_http to take it")
    return found


async def _get(session: aiohttp.ClientSession, url: str, headers: dict[str, str]) -> Any:
    async with session.get(url, headers=headers, allow_redirects=False) as answer:
        if answer.status != 200:
            raise KeyFetchError(f"{url} answers {answer.status}")
        text = bytearray()
        async for part in answer.content.iter_any():
            text += part
            if len(text) > MAX_BYTES:
                raise KeyFetchError(f"{url} answers more than {MAX_BYTES} bytes")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise KeyFetchError(f"{url} answers no JSON") from None
