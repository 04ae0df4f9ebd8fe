"""`spec.external`: a model that servers of others serve, for which no engine is made."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from kvasir.base_url import parse_base_url
from kvasir.resource.engines.environment_spec import SecretKeyRef
from kvasir.resource.field_types import EnvName, LabelKey, LabelValue
from kvasir.resource.strict_model import StrictModel, rule, rules


def _base_url(text: str) -> str:
    parse_base_url(text)
    return text


BaseURLText = Annotated[
    str,
    StringConstraints(
        pattern=r"^https?://([A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])"
        r"(:[0-9]{1,5})?(/[A-Za-z0-9._~!$&'()*+,;=:@-]+)*/?$",
        max_length=2048,
    ),
    AfterValidator(_base_url),
]
_KEY_SOURCES = ("secretRef", "env", "file")
_NO_SERVER = "external names no server; give urls or pods"
_ONE_SOURCE = "give one of secretRef, env and file"


class UpstreamKey(StrictModel):
    """Source of the key that a server asks for."""

    model_config = rules(
        rule(
            "!has(self.env) && !has(self.file)",
            "env and file are for one machine (kvasir up); on a cluster use secretRef",
        ),
        rule("has(self.secretRef) || has(self.env) || has(self.file)", _ONE_SOURCE),
    )

    secret_ref: SecretKeyRef | None = None
    """A key of a Secret in the deployment's namespace, on a cluster; routers take a new one within
    seconds. The chart's router.readableSecrets names the Secrets that they may read."""

    env: EnvName | None = None
    """Variable in the environment of `kvasir up`, on one machine."""

    file: Annotated[str, StringConstraints(pattern=r"^/[^\x00]+$", max_length=1024)] | None = None
    """File that holds it, on one machine; read again when it changes."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if sum(each is not None for each in (self.secret_ref, self.env, self.file)) != 1:
            raise ValueError(_ONE_SOURCE)
        return self


class UpstreamURL(StrictModel):
    """A server that speaks OpenAI's protocol."""

    model_config = rules(
        rule(
            "self.url.startsWith('https://') || !(has(self.caBundle) || has(self.serverName))",
            "caBundle and serverName are for TLS; write https:// in url, or remove them",
        ),
        rule(
            "self.url.startsWith('https://') || !has(self.key) || self.allowPlainKey",
            "the key would be sent without TLS; write https:// in url, or set allowPlainKey",
        ),
    )

    url: BaseURLText
    """Base URL as OpenAI's clients take it, such as `https://api.example.com/v1`: its path stands
    in the place of a request's `/v1`. Every connection looks its host up again; a certificate is
    always checked, and no redirect is followed."""

    model: Annotated[str, StringConstraints(pattern=r"^[!-~]+$", max_length=256)] | None = None
    """The server's own name of the model, which routers write into requests; by default they stay
    as they are."""

    key: UpstreamKey | None = None
    """Key that the server asks for. A client's own key never gets there."""

    key_header: Literal["authorization", "x-api-key", "api-key"] = "authorization"
    """Header of the key: authorization is a bearer token; x-api-key is Anthropic's."""

    allow_plain_key: bool = False
    """Allow the key to be sent without TLS, as to a server of the same cluster."""

    ca_bundle: (
        Annotated[
            str,
            StringConstraints(
                pattern=r"^\s*-----BEGIN CERTIFICATE-----[\x09\x0A\x0D\x20-\x7E]*$",
                max_length=65536,
            ),
        ]
        | None
    ) = None
    """Certificates of authorities (PEM) that may have signed the server's; by default those of the
    router's system."""

    server_name: (
        Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]+$", max_length=253)] | None
    ) = None
    """Name in the server's certificate, where it is not the URL's host."""

    health_path: Annotated[str, StringConstraints(pattern=r"^/[!-~]*$", max_length=1024)] | None = (
        None
    )
    """Path that answers 200 while the server serves, asked every ten seconds; by default only what
    it answers to requests tells."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.url.startswith("https://"):
            return self
        if self.ca_bundle is not None or self.server_name is not None:
            raise ValueError(
                "caBundle and serverName are for TLS; write https:// in url, or remove them"
            )
        if self.key is not None and not self.allow_plain_key:
            raise ValueError(
                "the key would be sent without TLS; write https:// in url, or set allowPlainKey"
            )
        return self


class ExternalPods(StrictModel):
    """Pods that the operator has not made."""

    match_labels: Annotated[dict[LabelKey, LabelValue], Field(min_length=1, max_length=16)]
    """Labels of the pods, in the deployment's namespace."""

    port: Annotated[int, Field(ge=1, le=65535)] = 8000
    """Port of the API in each of them."""

    engine: Literal["openai", "vllm", "sglang"] = "openai"
    """Kind of engine in them: of vllm and sglang load is read too; openai is anything with that
    API."""

    model: Annotated[str, StringConstraints(pattern=r"^[!-~]+$", max_length=256)] | None = None
    """Their own name of the model, which routers write into requests; by default they stay as they
    are, and vllm has to serve the name."""


class External(StrictModel):
    """Servers of others that serve the model; the operator makes no engines for it."""

    model_config = rules(rule("size(self.urls) > 0 || has(self.pods)", _NO_SERVER))

    urls: Annotated[list[UpstreamURL], Field(max_length=16)] = []
    """Servers by their URLs, each a replica of the model."""

    pods: ExternalPods | None = None
    """Pods by their labels, each a replica of the model, on a cluster."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.urls and self.pods is None:
            raise ValueError(_NO_SERVER)
        return self
