"""The file of issuers: whose tokens are taken, and what each tenant in them may do.

    issuers:
      - name: sso
        issuer: https://login.example.com/realms/ml
        audiences: [kvasir]
        tenant_claim: groups
        tenants:
          - {tenant: team-a, values: [/teams/a], models: [llama, "qwen*"], tokens_per_day: 50000000}
          - {tenant: "*", requests_per_minute: 60}
        permissions:
          - {value: "llm:small", models: ["llama-8b*"]}
          - {claim: realm_access.roles, value: ml-admin, models: ["*"], admin: true}

Only signatures by public keys are taken: with a shared secret, whoever can check a token could make
one, and a public key would be taken for a secret (RFC 8725, 2.1).
"""

from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from kvasir_router.admission.keys import EVERY_MODEL, Grant, ModelPatterns
from kvasir_router.yaml_file import read_yaml

MAX_FILE_BYTES = 4 * 1024 * 1024
MAX_ISSUERS = 32
MAX_GRANTS = 10_000
MAX_VALUES = 1000
MAX_PERMISSIONS = 256
EVERY_TENANT = "*"
TENANT = r"^[A-Za-z0-9][A-Za-z0-9._@/-]{0,63}$"

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})

Algorithm = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"
]
Text = Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^[^\x00-\x1f\x7f]+$")]
"""Text of one line: refusals of tokens quote it, also in a header."""


class TenantGrant(Grant):
    """One tenant of an issuer. A limit that is left out is none; limits are those of all its tokens
    together."""

    tenant: Annotated[str, Field(pattern=TENANT + r"|^\*$")]
    """Tenant as the claim has it, or `*` for each one that is not listed: each has the limits by
    itself."""
    values: Annotated[tuple[Text, ...], Field(max_length=MAX_VALUES)] = ()
    """Further values of the claim that mean this tenant, as Entra ID's ids of groups, or paths of
    groups in Keycloak (`/teams/a`)."""

    @model_validator(mode="after")
    def _one_tenant(self) -> Self:
        if self.values and self.tenant == EVERY_TENANT:
            raise ValueError("`*` is each tenant under its own name; give `values` to a named one")
        return self


class Permission(BaseModel):
    """Permissions of tokens whose claim has a value: a scope, a role, a group. Several add up."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    claim: Text = "scope"
    """Claim that has the value, named as `tenant_claim` is: a text of words with spaces between
    them (`scope`, `scp`), or a list (`scp`, `roles`, `realm_access.roles`, `permissions`)."""
    value: Text
    """Value that it has to have."""
    models: ModelPatterns = (EVERY_MODEL,)
    """Models that may be used, as far as the tenant may: names, or beginnings of names with `*`
    after them."""
    admin: bool = False
    """True = policies may be set on the admin port, as with the fleet secret."""


class Issuer(BaseModel):
    """An OpenID Connect issuer. Its keys are found by discovery, at
    `ISSUER/.well-known/openid-configuration`, unless `jwks_url` is given."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$")]
    """Name in logs, metrics and the ids of limits, `NAME:TENANT`."""
    issuer: Text
    """URL that is in the tokens' `iss`, letter by letter; https."""
    audiences: Annotated[tuple[Text, ...], Field(min_length=1, max_length=32)]
    """Values of `aud`, of which a token must have one."""
    tenant_claim: Text = "tenant"
    """Name of the claim that holds the tenant, a text, or a list of which `tenants` lists one.
    Where there is no claim of the name its dots lead into objects, as "realm_access.roles"; with a
    `/` in front it is a JSON Pointer, as "/kubernetes.io/namespace"."""
    tenant_prefix: Annotated[str, Field(max_length=32)] = ""
    """Text before each tenant's name in the router, so that no token can name a tenant of API keys
    or of another issuer."""
    tenants: Annotated[tuple[TenantGrant, ...], Field(min_length=1, max_length=MAX_GRANTS)]
    """Tenants whose tokens are taken."""
    permissions: Annotated[tuple[Permission, ...], Field(max_length=MAX_PERMISSIONS)] = ()
    """Permissions by scopes, roles or groups: a token needs one of them, and may use the models of
    those that it has. Without any, those of its tenant."""
    required_claims: Annotated[dict[Text, Text | bool], Field(max_length=32)] = {}
    """Claims that a token must have, by their names as in `tenant_claim`: with this value, or as a
    list or words that have it; as {hd: example.com, email_verified: true}."""
    at_expiry: Literal["finish", "end"] = "finish"
    """Fate of what runs or waits when its token expires: it goes on to its end (`finish`), or ends
    with an error (`end`), a stream by an error event."""
    algorithms: Annotated[tuple[Algorithm, ...], Field(min_length=1)] = ("RS256", "ES256")
    """Signatures that are taken."""
    leeway_seconds: Annotated[float, Field(ge=0, le=300)] = 30.0
    """Seconds by which clocks may differ, for `exp`, `nbf` and `iat`."""
    jwks_url: Text | None = None
    """URL of the keys (JWKS), instead of discovery."""
    allow_http: bool = False
    """Takes URLs without TLS, other than those of this machine: whoever is on the way can then
    forge tokens."""
    ca_file: Path | None = None
    """Certificate authorities (PEM) of the issuer's server; without it the system's."""
    bearer_file: Path | None = None
    """File with a token that is sent for the keys, as a Kubernetes API server wants it; to no other
    server than that of `issuer` or `jwks_url`."""
    refresh_seconds: Annotated[float, Field(ge=10, le=86400)] = 300.0
    """Seconds after which the keys are fetched again. A token with an unknown key id has them
    fetched at once, every 10 s at most."""
    keep_seconds: Annotated[float, Field(ge=60, le=604800)] = 14400.0
    """Seconds for which keys stay in use while they cannot be fetched."""

    @field_validator("issuer", "jwks_url")
    @classmethod
    def _is_url(cls, value: str | None) -> str | None:
        if value is not None and not is_url(value):
            raise ValueError("must be a URL of the form https://HOST[:PORT][/PATH]")
        return value

    @model_validator(mode="after")
    def _checked(self) -> Self:
        if len({grant.tenant for grant in self.tenants}) < len(self.tenants):
            raise ValueError("a tenant is listed twice; leave one of the two out")
        seen: dict[str, str] = {}
        for grant in self.tenants:
            for value in {grant.tenant, *grant.values}:
                if value in seen:
                    both = f"{seen[value]} and {grant.tenant}"
                    raise ValueError(f"the value {value!r} means the tenants {both}; let it be one")
                seen[value] = grant.tenant
        for url in (self.issuer, self.jwks_url):
            if url is not None and not self.may_fetch(url):
                raise ValueError(
                    "a URL without TLS lets others forge tokens: use https, or set allow_http"
                )
        return self

    def may_fetch(self, url: str) -> bool:
        """Return whether keys may come from there."""
        parts = urlsplit(url)
        return self.allow_http or parts.scheme == "https" or parts.hostname in _LOOPBACK

    @cached_property
    def by_value(self) -> dict[str, TenantGrant]:
        """Tenants that are listed, by each value of the claim that means one."""
        return {
            value: grant
            for grant in self.tenants
            if grant.tenant != EVERY_TENANT
            for value in (grant.tenant, *grant.values)
        }

    @cached_property
    def others(self) -> TenantGrant | None:
        """Permissions of a tenant that is not listed; None for nothing."""
        return next((each for each in self.tenants if each.tenant == EVERY_TENANT), None)

    def grant(self, tenant: str) -> Grant | None:
        """Return what a tenant, by its name, may do; None for nothing."""
        return self.by_value.get(tenant) or self.others


class IssuerFile(BaseModel):
    """The whole file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_token_bytes: Annotated[int, Field(ge=256, le=16384)] = 8192
    """Bytes of a token; longer ones are refused unread."""
    issuers: Annotated[tuple[Issuer, ...], Field(max_length=MAX_ISSUERS)] = ()
    """Issuers whose tokens are taken."""

    @model_validator(mode="after")
    def _unique(self) -> Self:
        for what in ("name", "issuer"):
            if len({getattr(each, what) for each in self.issuers}) < len(self.issuers):
                raise ValueError(f"two issuers have the same {what}")
        return self


def is_url(text: str) -> bool:
    """Return whether this is an absolute URL of HTTP without a user, query or fragment."""
    try:
        parts = urlsplit(text)
        return (
            parts.scheme in ("http", "https")
            and bool(parts.hostname)
            and parts.port != 0
            and not (parts.username or parts.query or parts.fragment)
            and text.isascii()
            and text.isprintable()
        )
    except ValueError:  # a port that is none
        return False


def read_issuers(path: Path) -> IssuerFile:
    """Raises YamlFileError."""
    return read_yaml(path, "issuer file", IssuerFile, MAX_FILE_BYTES)
