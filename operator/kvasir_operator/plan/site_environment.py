"""Certificates, proxies and mirrors of a class, for which an LLMDeployment has no field."""

from __future__ import annotations

from kvasir.kube.objects import Object
from kvasir.models.sources.registry_mirrors import MIRRORS
from kvasir.resource import labels
from kvasir.resource.class_defaults.defaults_spec import CABundle, Defaults, Proxy
from kvasir_operator.plan.step import PlanInputs

_VOLUME = "kvasir-ca"
_BUNDLE = "ca.crt"
_TRUST = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "AWS_CA_BUNDLE")
"""Variables by which OpenSSL, requests, curl and AWS' libraries find certificates."""
_IN_CLUSTER = ("localhost", "127.0.0.1", "::1", ".svc", ".cluster.local")
"""Names that no proxy can reach: this pod's own and the cluster's."""


def engine_variables_of(inputs: PlanInputs) -> dict[str, str]:
    """Return the variables of engines. A mirror of the Hub is not theirs: they are offline, and
    another one is no reason to restart them."""
    defaults = inputs.defaults
    return {**_certificates(defaults.ca_bundle), **_proxies(defaults.proxy)}


def download_variables(inputs: PlanInputs) -> dict[str, str]:
    """Return the variables of downloads."""
    found, scheme = engine_variables_of(inputs), inputs.spec.model.parsed_uri.scheme
    defaults = inputs.defaults
    if defaults.hub_endpoint is not None and scheme == "hf":
        found["HF_ENDPOINT"] = defaults.hub_endpoint
    if defaults.image_mirrors and scheme == "oci":
        found[MIRRORS] = _mirrors(defaults)
    return found


def site_volumes(inputs: PlanInputs) -> list[Object]:
    """Return the volumes of engines and downloads."""
    bundle = inputs.defaults.ca_bundle
    if bundle is None:
        return []
    named, items = bundle.ref, [{"key": bundle.ref.key, "path": _BUNDLE}]
    if bundle.kind == "Secret":
        return [{"name": _VOLUME, "secret": {"secretName": named.name, "items": items}}]
    return [{"name": _VOLUME, "configMap": {"name": named.name, "items": items}}]


def site_mounts(inputs: PlanInputs) -> list[Object]:
    """Return the mounts of those volumes. A folder: its file changes with the object."""
    if inputs.defaults.ca_bundle is None:
        return []
    return [{"name": _VOLUME, "mountPath": labels.CA_DIRECTORY, "readOnly": True}]


def _mirrors(defaults: Defaults) -> str:
    return ",".join(f"{each.source}={each.mirror}" for each in defaults.image_mirrors)


def _certificates(bundle: CABundle | None) -> dict[str, str]:
    if bundle is None:
        return {}
    return dict.fromkeys(_TRUST, f"{labels.CA_DIRECTORY}/{_BUNDLE}")


def _proxies(proxy: Proxy | None) -> dict[str, str]:
    """Return the proxies in both spellings: curl reads http_proxy, others HTTP_PROXY."""
    if proxy is None:
        return {}
    given = {
        "HTTP_PROXY": proxy.http_proxy,
        "HTTPS_PROXY": proxy.https_proxy,
        "NO_PROXY": ",".join(dict.fromkeys((*_IN_CLUSTER, *proxy.no_proxy))),
    }
    found = {name: value for name, value in given.items() if value is not None}
    return {**found, **{name.lower(): value for name, value in found.items()}}
