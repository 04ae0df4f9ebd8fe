"""Claims of a token, where issuers put them: at the top, in objects, as texts, words or lists."""

from typing import Any


def find_claim(claims: dict[str, Any], name: str) -> Any:
    """Return the claim of a name, None for none: a JSON Pointer (RFC 6901) if it begins with `/`;
    otherwise the claim called so (names may be URLs), or what its dots lead to."""
    if name[0] == "/":
        steps = [each.replace("~1", "/").replace("~0", "~") for each in name[1:].split("/")]
    elif name in claims:
        return claims[name]
    else:
        steps = name.split(".")
    found: Any = claims
    for step in steps:
        found = found.get(step) if isinstance(found, dict) else None
    return found


def has_value(claim: Any, value: str | bool) -> bool:
    """Return whether a claim is the value, is a list that has it, or a text in which it is a word,
    as `scope` is written (RFC 8693, 4.2)."""
    if isinstance(value, bool):
        return claim is value
    if isinstance(claim, str):
        return claim == value or value in claim.split(" ")
    return isinstance(claim, list) and value in claim


def is_left_out(claims: dict[str, Any], name: str) -> bool:
    """Return whether the issuer says that it has left the claim out for its size, as Entra ID does
    with the groups of who is in many (OpenID Connect Core 1.0, 5.6.2: distributed claims)."""
    elsewhere = claims.get("_claim_names")
    return isinstance(elsewhere, dict) and name in elsewhere
