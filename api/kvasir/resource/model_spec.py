"""`spec.model`: what is served and where it comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Self

from pydantic import Field, model_validator

from kvasir.engine_values import QuantizationName
from kvasir.model_uri import ModelURI, parse_model_uri
from kvasir.models.cache.layout import CACHED_SCHEMES
from kvasir.resource.field_types import ObjectName, Revision, SecretKey, ServedName, SourceURI
from kvasir.resource.strict_model import StrictModel, rule, rules

_IS_HUB = "(self.uri.startsWith('hf://') || !self.uri.contains('://'))"


def source_rule(*schemes: str) -> str:
    """Return the CEL condition that `uri` has one of these schemes, is a directory by `file://`, or
    is an id of the Hub."""
    return (
        rf"self.uri.matches('^({'|'.join(schemes)})://[^ ]+$|^file:///[^ ]+$"
        r"|^[A-Za-z0-9_][-A-Za-z0-9_.]*(/[A-Za-z0-9_][-A-Za-z0-9_.]*)?"
        r"(@[A-Za-z0-9_][-A-Za-z0-9_./]*)?$')"
    )


class Sourced:
    """Files that a URI names: a model's, or an adapter's."""

    if TYPE_CHECKING:  # else it would be a field, before those of its resource
        uri: str

    @property
    def parsed_uri(self) -> ModelURI:
        """`uri`, parsed; a model that servers of others serve has none."""
        return parse_model_uri(self.uri)

    @property
    def downloaded(self) -> bool:
        """True if they have to be fetched before an engine can read them."""
        return bool(self.uri) and self.parsed_uri.scheme in CACHED_SCHEMES


class DownloadSecret(StrictModel):
    """A Secret in the deployment's namespace."""

    name: ObjectName
    """The Secret's name."""

    key: SecretKey | None = None
    """The key in it: token by default, .dockerconfigjson with `oci://`; with `s3://` all keys are
    taken."""


class Model(StrictModel, Sourced):
    """The model to serve and the names it is served under."""

    model_config = rules(
        rule(
            "self.uri == '' || " + source_rule("hf", "s3", "oci", "https", "pvc", "builtin"),
            "uri must be hf://ORG/NAME[@REVISION], s3://BUCKET/PREFIX, pvc://CLAIM[/DIRECTORY],"
            " oci://REGISTRY/NAME[:TAG], https://HOST/PATH, builtin://NAME or"
            " file:///DIRECTORY",
        ),
        rule(
            "self.uri != '' || !(has(self.revision) || has(self.secretRef))",
            "revision and secretRef are of a model with uri; remove them",
        ),
        rule(
            f"!has(self.revision) || {_IS_HUB}",
            "revision has a meaning only with hf://; remove it",
        ),
        rule(
            "!has(self.revision) || !self.uri.contains('@')"
            " || self.uri.endsWith('@' + self.revision)",
            "revision and the revision in uri differ; give one",
        ),
        rule(
            "!has(self.secretRef) || self.uri.matches('^(hf|s3|oci|https)://')"
            " || !self.uri.contains('://')",
            "secretRef is for downloads; remove it where nothing is downloaded",
        ),
        rule(
            "!has(self.name) || !has(self.aliases) || !(self.name in self.aliases)",
            "name is among the aliases too; remove it there",
        ),
    )

    uri: SourceURI = ""
    """URI of the model's source: `hf://ORG/NAME[@REVISION]`,
    `s3://BUCKET/PREFIX`, `oci://REGISTRY/NAME[:TAG]`, `https://HOST/PATH`, `pvc://CLAIM/DIRECTORY`
    (a volume that holds it already), `builtin://kvasir-tiny`, or `file:///DIRECTORY` (on a cluster:
    inside engine.image). On one machine also a plain path. What is downloaded is kept in
    `spec.cache`. Absent with `spec.external`."""

    revision: Revision | None = None
    """Branch, tag or commit of an `hf://` model; the repository's default branch if absent."""

    name: ServedName | None = None
    """Name that clients put into `model`; by default the deployment's. A name or alias
    belongs to the deployment that claims it first, in all namespaces of its class."""

    aliases: Annotated[
        list[ServedName], Field(max_length=16, json_schema_extra={"x-kubernetes-list-type": "set"})
    ] = []
    """Further names of the same model."""

    secret_ref: DownloadSecret | None = None
    """Secret that the download needs: a token for `hf://` and `https://`, a Docker configuration
    for `oci://`, and for `s3://` environment variables (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,
    AWS_ENDPOINT_URL). Only the download's pod has it, never an engine."""

    quantization: QuantizationName = "auto"
    """Format of the linear layers' weights: auto is as the checkpoint is, fp8 also quantises plain
    weights as they are loaded; another one than the checkpoint's is refused."""

    trust_remote_code: bool = False
    """Allow Python code from the model's repository to run in the engine."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.uri:
            if self.revision is not None or self.secret_ref is not None:
                raise ValueError("revision and secretRef are of a model with uri; remove them")
            return self
        parsed = self.parsed_uri
        if self.revision is not None:
            if parsed.scheme != "hf":
                raise ValueError(f"revision has a meaning only with hf://, not with {self.uri!r}")
            if parsed.revision not in (None, self.revision):
                raise ValueError(
                    f"revision {self.revision!r} and the uri's {parsed.revision!r} differ; give one"
                )
        if self.secret_ref is not None and not self.downloaded:
            raise ValueError(f"secretRef is for downloads, and {self.uri!r} needs none; remove it")
        return self
