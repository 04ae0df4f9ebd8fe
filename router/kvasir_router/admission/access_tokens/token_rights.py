"""Rights of a good token: its tenant, and what its scopes, roles and groups permit."""

import re
from math import inf
from typing import Any

from kvasir_router.admission.access_tokens.claims import find_claim, has_value, is_left_out
from kvasir_router.admission.access_tokens.issuers import TENANT, Issuer
from kvasir_router.admission.access_tokens.token_source import Reason, TokenError
from kvasir_router.admission.keyring import Rights

_TENANT = re.compile(TENANT)
_MAX_NAME = 256
_MAX_NAMES = 8


def check_required(claims: dict[str, Any], issuer: Issuer) -> None:
    """Raises TokenError for a claim that lacks the value that it must have."""
    for name, value in issuer.required_claims.items():
        if not has_value(find_claim(claims, name), value):
            wanted = str(value).lower() if isinstance(value, bool) else value
            raise TokenError(
                Reason.CLAIM,
                f"The access token's claim `{name[:_MAX_NAME]}` must be `{wanted[:_MAX_NAME]}`.",
            )


def tenant_of(claims: dict[str, Any], issuer: Issuer) -> str:
    """Return the tenant's name: what the claim says, or of a list the only one that is listed in
    the issuer's tenants. Raises TokenError, also where a list leaves a choice."""
    name = issuer.tenant_claim
    found = find_claim(claims, name)
    if isinstance(found, list) and all(isinstance(each, str) for each in found):
        values = dict.fromkeys(found)  # in their order, each once
        names = {issuer.by_value[value].tenant for value in values if value in issuer.by_value}
        if len(names) > 1:
            raise _several(name, names)
        if not names and len(values) > 1:
            raise _none_listed(name, len(values))
        tenant = next(iter(names or values), None)
    else:
        listed = issuer.by_value.get(found) if isinstance(found, str) else None
        tenant = found if listed is None else listed.tenant
    if not isinstance(tenant, str) or not _TENANT.fullmatch(issuer.tenant_prefix + tenant):
        raise _no_tenant(claims, name)
    return tenant


def rights_of(claims: dict[str, Any], issuer: Issuer) -> Rights:
    """Return what the issuer's permissions give. Raises TokenError where they give nothing."""
    ends = inf
    if issuer.at_expiry == "end":
        ends = int(claims["exp"]) + issuer.leeway_seconds
    if not issuer.permissions:
        return Rights(ends=ends)
    given = [
        each for each in issuer.permissions if has_value(find_claim(claims, each.claim), each.value)
    ]
    if not given:
        wanted = [f"`{each.value[:64]}` in `{each.claim[:64]}`" for each in issuer.permissions]
        more = " or others" if len(wanted) > _MAX_NAMES else ""
        listed = ", ".join(wanted[:_MAX_NAMES]) + more
        raise TokenError(
            Reason.SCOPE, f"The access token permits nothing here: it must have one of {listed}."
        )
    models = dict.fromkeys(pattern for each in given for pattern in each.models)
    return Rights(tuple(models), any(each.admin for each in given), ends)


def _several(claim: str, names: set[str]) -> TokenError:
    listed = ", ".join(f"`{each}`" for each in sorted(names)[:_MAX_NAMES])
    return TokenError(
        Reason.TENANT,
        f"The access token's claim `{claim[:_MAX_NAME]}` names {len(names)} tenants ({listed}) and "
        "must name one: get a token for one of them.",
    )


def _none_listed(claim: str, count: int) -> TokenError:
    return TokenError(
        Reason.TENANT,
        f"None of the {count} values of the access token's claim `{claim[:_MAX_NAME]}` is a tenant "
        "that is listed here.",
    )


def _no_tenant(claims: dict[str, Any], claim: str) -> TokenError:
    named = f"The access token's claim `{claim[:_MAX_NAME]}`"
    if is_left_out(claims, claim):
        return TokenError(
            Reason.TENANT,
            f"{named} was left out by its issuer for its size: have it write only the groups that "
            "are assigned to the application, or use roles.",
        )
    return TokenError(Reason.TENANT, f"{named} must be the name of a tenant.")
