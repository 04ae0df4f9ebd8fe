"""A tenant's cache salt: what keeps its prompts from being found in another tenant's cache.

Whether a prompt was in a cache shows in how soon its answer begins, so a cache that tenants share
tells one of them what others have asked. Engines (Kvasir, vLLM, SGLang) hash the body's
`cache_salt` into the prefix, and the router's own text chains hold it, too.
"""

from hashlib import blake2b

import msgspec

from kvasir_router.wire.envelope import Envelope
from kvasir_router.wire.http_request import Request
from kvasir_router.wire.long_bodies.body_edit import add_member
from kvasir_router.wire.long_bodies.body_scan import BodyError

_SALTED = ("messages", "prompt", "system", "items")
"""Prompts of endpoints that take a `cache_salt`."""
_MAX_GIVEN = 1024
_MAX_WRITTEN = 12 * _MAX_GIVEN + len('""')
"""Bytes of a salt in JSON: a character beyond U+FFFF can be written as two escapes of six."""


class TenantSalt:
    """Adds each tenant's salt to its requests."""

    def __init__(self, secret: str) -> None:
        """`secret`: the fleet's, by which no client knows another tenant's salt."""
        self._key = blake2b(secret.encode(), digest_size=32, person=b"kvasir.salt").digest()

    def add(self, request: Request, envelope: Envelope, tenant: str) -> None:
        """Salt the request, with the client's own salt as a part of it. Raises BodyError when that
        is no string."""
        if request.endpoint.prompt not in _SALTED:
            return
        given = _given(request, envelope)
        salt = self._salt(tenant, given)
        value = msgspec.json.encode(salt)
        envelope.cache_salt = salt
        # Behind all others: of several members of a name the last one counts.
        add_member(request, "cache_salt", value)

    def _salt(self, tenant: str, given: str) -> str:
        made = blake2b(tenant.encode() + b"\0", digest_size=16, key=self._key)
        made.update(given.encode("utf-8", "surrogatepass"))
        return made.hexdigest()


def _given(request: Request, envelope: Envelope) -> str:
    given = envelope.cache_salt
    if request.outline is not None:
        raw = request.outline.raw(request.body, "cache_salt")
        given = msgspec.json.decode(raw) if 0 < len(raw) <= _MAX_WRITTEN else raw or None
    if given is None:
        return ""
    if not isinstance(given, str) or len(given) > _MAX_GIVEN:
        raise BodyError(
            f"`cache_salt` must be a string of up to {_MAX_GIVEN} characters.", "cache_salt"
        )
    return given
