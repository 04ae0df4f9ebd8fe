"""`spec.defaults` and `spec.profiles` of an LLMDeploymentClass."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, StringConstraints, model_validator

from kvasir.resource.external.external_spec import BaseURLText
from kvasir.resource.field_types import (
    DNSLabel,
    Image,
    LabelKey,
    LabelValue,
    ObjectName,
    SecretKey,
    Text,
)
from kvasir.resource.gpus.resources_spec import Resources
from kvasir.resource.pod_template import Affinity, PullSecret, Toleration
from kvasir.resource.strict_model import RULES, ExactlyOne, StrictModel, list_map, rule, rules

_ONE_BUNDLE = ExactlyOne("caBundle", "object", "configMapRef", "secretRef")
_USER_IN_PROXY = (
    "write a proxy as http://HOST:PORT, without user and password: everybody who reads classes"
    " would see them"
)
_NO_PROXY_GIVEN = "proxy names no proxy; give httpProxy or httpsProxy"

Repository = Annotated[
    str,
    StringConstraints(
        pattern=r"^[a-zA-Z0-9]([-a-zA-Z0-9.]*[a-zA-Z0-9])?(:[0-9]{1,5})?"
        r"(/[a-z0-9]([-a-z0-9._]*[a-z0-9])?)*$",
        max_length=255,
    ),
]
"""A registry, as HOST[:PORT], and the beginning of repositories' names in it."""


def _without_user(value: object) -> object:
    if isinstance(value, str) and "@" in value:
        raise ValueError(_USER_IN_PROXY)
    return value


ProxyURL = Annotated[
    str,
    BeforeValidator(_without_user),
    StringConstraints(
        pattern=r"^https?://([A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])"
        r"(:[0-9]{1,5})?/?$",
        max_length=300,
    ),
    Field(json_schema_extra={RULES: [rule("!self.contains('@')", _USER_IN_PROXY)]}),
]
"""Address of a proxy."""


class ImageMirror(StrictModel):
    """Another place of the images of one registry, or of some of its repositories."""

    source: Annotated[
        str,
        StringConstraints(
            pattern=r"^(\*|[a-zA-Z0-9]([-a-zA-Z0-9.]*[a-zA-Z0-9])?(:[0-9]{1,5})?"
            r"(/[a-z0-9]([-a-z0-9._]*[a-z0-9])?)*)$",
            max_length=255,
        ),
    ]
    """Registry, or registry and path, that is replaced, such as docker.io or ghcr.io/org; * stands
    for every registry. Of several that match the longest counts. An image without a registry is of
    docker.io."""

    mirror: Repository
    """Registry, and path in it, that takes its place, such as registry.example.com/hub."""


class BundleKey(StrictModel):
    """One key of a ConfigMap or Secret that has the same name in every namespace."""

    name: ObjectName
    """The object's name."""

    key: SecretKey = "ca.crt"
    """The key in it."""


class CABundle(StrictModel):
    """Certificates of authorities (PEM), in each namespace that has LLMDeployments of the class."""

    model_config = rules(_ONE_BUNDLE.rule)

    config_map_ref: BundleKey | None = None
    """A key of a ConfigMap, such as trust-manager makes in all namespaces."""

    secret_ref: BundleKey | None = None
    """A key of a Secret."""

    @property
    def kind(self) -> Literal["ConfigMap", "Secret"]:
        """Kind of the object."""
        return "Secret" if self.config_map_ref is None else "ConfigMap"

    @property
    def ref(self) -> BundleKey:
        """The object, and the key in it."""
        found = self.config_map_ref or self.secret_ref
        if found is None:
            raise ValueError(_ONE_BUNDLE.message)
        return found

    @model_validator(mode="after")
    def _check(self) -> Self:
        _ONE_BUNDLE.check(self)
        return self


class Proxy(StrictModel):
    """HTTP proxies of downloads and engines. What is in the cluster is reached without them."""

    model_config = rules(rule("has(self.httpProxy) || has(self.httpsProxy)", _NO_PROXY_GIVEN))

    http_proxy: ProxyURL | None = None
    """Proxy of http:// addresses (HTTP_PROXY)."""

    https_proxy: ProxyURL | None = None
    """Proxy of https:// addresses (HTTPS_PROXY); it is asked by CONNECT."""

    no_proxy: Annotated[
        list[Annotated[str, StringConstraints(pattern=r"^[-A-Za-z0-9.:/*\[\]]+$", max_length=253)]],
        Field(max_length=64, json_schema_extra={"x-kubernetes-list-type": "set"}),
    ] = []
    """Further hosts, domains (.example.com) and addresses that are reached without a proxy
    (NO_PROXY), beside the cluster's own names."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.http_proxy is None and self.https_proxy is None:
            raise ValueError(_NO_PROXY_GIVEN)
        return self


class EngineImages(StrictModel):
    """Images of engines by `spec.engine.type`, for LLMDeployments without `spec.engine.image`."""

    kvasir: Image | None = None
    """Image of Kvasir's own engine, in the place of the operator's, whatever the device."""

    vllm: Image | None = None
    """Image of vLLM."""

    sglang: Image | None = None
    """Image of SGLang."""


class Defaults(StrictModel):
    """Values for all LLMDeployments of the class. What an LLMDeployment says itself, and then what
    its profile says, counts more; what a class does not say is the operator's."""

    profile: DNSLabel | None = None
    """Profile of LLMDeployments without `spec.profile`, but for those with engine.config.device cpu
    or sim, and models that servers of others serve."""

    images: EngineImages = EngineImages()
    """Images of engines."""

    image_pull_secrets: Annotated[
        list[PullSecret],
        Field(
            max_length=8,
            json_schema_extra=list_map("name"),
        ),
    ] = []
    """Secrets, in the LLMDeployments' namespaces, that images of engines and downloads are pulled
    with, beside their own."""

    image_mirrors: Annotated[
        list[ImageMirror],
        Field(
            max_length=32,
            json_schema_extra=list_map("source"),
        ),
    ] = []
    """Mirrors of registries, for the images of engine and download pods, those of sidecars and init
    containers too, and for models at oci://."""

    hub_endpoint: BaseURLText | None = None
    """Mirror of the Hugging Face Hub, from which hf:// models are downloaded (HF_ENDPOINT)."""

    ca_bundle: CABundle | None = None
    """Certificates that downloads and engines trust in the place of their images' own
    (SSL_CERT_FILE, REQUESTS_CA_BUNDLE and the like). Its pods do not start where it is missing."""

    proxy: Proxy | None = None
    """HTTP proxies of downloads and engines."""


class Profile(StrictModel):
    """A kind of place for replicas, chosen by `spec.profile`: GPUs, and the nodes that have
    them."""

    name: DNSLabel
    """Name of the profile."""

    description: Annotated[Text, Field(max_length=1024)] = ""
    """Words for those who choose."""

    images: EngineImages = EngineImages()
    """Images of engines."""

    resources: Resources = Resources()
    """Resources of one replica. Its GPUs are those of an LLMDeployment that asks for none, and set
    parallelism.tensor, unless that is more than 1 or auto: then it is the number of GPUs, or
    chooses it. Of cpu, memory and ephemeral-storage each counts where the LLMDeployment says
    nothing of it."""

    node_selector: Annotated[dict[LabelKey, LabelValue], Field(max_length=32)] = {}
    """Labels that a node must have, beside those of podTemplate."""

    tolerations: Annotated[list[Toleration], Field(max_length=32)] = []
    """Taints that pods may run in spite of, beside those of podTemplate."""

    affinity: Affinity | None = None
    """Rules on nodes and neighbours, where podTemplate has none."""

    priority_class_name: ObjectName | None = None
    """Priority class of the pods, where podTemplate names none."""

    runtime_class_name: ObjectName | None = None
    """Container runtime, such as nvidia, where podTemplate names none."""

    scheduler_name: ObjectName | None = None
    """Another scheduler than the cluster's default, where podTemplate names none."""


_UNKNOWN_PROFILE = "defaults.profile is none of profiles; correct it, or add that profile"
KNOWN_PROFILE = rule(
    "!has(self.defaults.profile)"
    " || (has(self.profiles) && self.profiles.exists(it, it.name == self.defaults.profile))",
    _UNKNOWN_PROFILE,
)
"""Rule of a class: its default profile exists."""


class ClassSettings(StrictModel):
    """The part of a class that people write: `class.settings` of the chart."""

    model_config = rules(KNOWN_PROFILE)

    defaults: Defaults = Defaults()
    """Values for all LLMDeployments of the class."""

    profiles: Annotated[
        list[Profile],
        Field(
            max_length=32,
            json_schema_extra=list_map("name"),
        ),
    ] = []
    """Kinds of places for replicas, chosen by `spec.profile` of LLMDeployments."""

    def profile(self, name: str) -> Profile | None:
        """Return the profile of a name; None = there is none."""
        return next((each for each in self.profiles if each.name == name), None)

    @model_validator(mode="after")
    def _check_profiles(self) -> Self:
        names = [each.name for each in self.profiles]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"profiles has {', '.join(sorted(twice))} more than once")
        wanted = self.defaults.profile
        if wanted is not None and wanted not in names:
            raise ValueError(_UNKNOWN_PROFILE)
        return self
