"""Check of one token: form, issuer, key, signature, times, audience, and what it gives.

RFC 7519 with the rules of RFC 8725: the algorithm is one that the issuer's entry allows, the key is
found by the key id among the issuer's own, and nothing that the token names (`jku`, `x5u`) is
fetched.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jwt

from kvasir_router.admission.access_tokens.issuers import Issuer
from kvasir_router.admission.access_tokens.token_rights import (
    check_required,
    rights_of,
    tenant_of,
)
from kvasir_router.admission.access_tokens.token_source import Reason, TokenError
from kvasir_router.admission.keyring import Rights


class Verified(NamedTuple):
    """Claims of a good token."""

    issuer: Issuer
    tenant: str
    """Its name among those of the issuer."""
    subject: str
    """`sub`; empty without."""
    expires: float
    """Unix seconds from which on it is refused, leeway included."""
    rights: Rights = Rights()
    """Permissions by its scopes, roles and groups."""


Keys = Callable[[Issuer, str | None, str], jwt.PyJWK]
"""Return an issuer's key by key id and algorithm. Raises TokenError."""


def check_token(token: bytes, max_bytes: int, issuers: dict[str, Issuer], keys: Keys) -> Verified:
    """Return what the token says; `issuers` by their URLs. Raises TokenError."""
    if len(token) > max_bytes:
        raise TokenError(Reason.TOO_LONG, f"The access token is longer than {max_bytes} bytes.")
    try:
        text = token.decode("ascii")
        opened = jwt.decode_complete(text, options={"verify_signature": False})
        header, claims = opened["header"], opened["payload"]
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
        raise _malformed() from None
    issuer = _issuer(claims, issuers)
    algorithm, key_id = _named(header, issuer)
    key = keys(issuer, key_id, algorithm)
    claims = _verified(text, key, algorithm, issuer)
    check_required(claims, issuer)
    return Verified(
        issuer,
        tenant_of(claims, issuer),
        claims.get("sub") or "",
        int(claims["exp"]) + issuer.leeway_seconds,
        rights_of(claims, issuer),
    )


def _malformed() -> TokenError:
    return TokenError(Reason.MALFORMED, "The access token is no signed JWT.")


def _issuer(claims: dict[str, Any], issuers: dict[str, Issuer]) -> Issuer:
    named = claims.get("iss")
    issuer = issuers.get(named) if isinstance(named, str) else None
    if issuer is None:
        raise TokenError(Reason.ISSUER, "The access token is of an issuer that is not known here.")
    return issuer


def _named(header: dict[str, Any], issuer: Issuer) -> tuple[str, str | None]:
    """Return the algorithm and the key id that the token names."""
    if "crit" in header or "b64" in header:  # what must be understood, and is not
        raise _malformed()
    algorithm, key_id = header.get("alg"), header.get("kid")
    if algorithm not in issuer.algorithms:
        allowed = ", ".join(issuer.algorithms)
        raise TokenError(Reason.ALGORITHM, f"The access token must be signed with {allowed}.")
    if key_id is not None and not isinstance(key_id, str):
        raise _malformed()
    return algorithm, key_id


def _verified(text: str, key: jwt.PyJWK, algorithm: str, issuer: Issuer) -> dict[str, Any]:
    try:
        claims: dict[str, Any] = jwt.decode(
            text,
            key,
            algorithms=[algorithm],
            audience=issuer.audiences,
            issuer=issuer.issuer,
            leeway=issuer.leeway_seconds,
            options={"require": ["exp", "iss", "aud"]},
        )
    except jwt.InvalidSignatureError:
        raise TokenError(Reason.SIGNATURE, "The access token's signature is not good.") from None
    except jwt.ExpiredSignatureError:
        raise TokenError(Reason.EXPIRED, "The access token has expired; get a new one.") from None
    except jwt.ImmatureSignatureError:
        raise TokenError(Reason.NOT_YET, "The access token is not valid yet.") from None
    except jwt.InvalidAudienceError:
        raise _audience(issuer) from None
    except jwt.MissingRequiredClaimError as error:
        if error.claim == "aud":
            raise _audience(issuer) from None
        raise TokenError(Reason.MALFORMED, f"The access token lacks `{error.claim}`.") from None
    except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError):
        raise _malformed() from None
    return claims


def _audience(issuer: Issuer) -> TokenError:
    wanted = ", ".join(issuer.audiences)
    return TokenError(Reason.AUDIENCE, f"The access token must be for the audience {wanted}.")
