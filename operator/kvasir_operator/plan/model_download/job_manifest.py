"""Manifest of the Job that downloads a model onto the cache's volume."""

from __future__ import annotations

from dataclasses import replace

from kvasir.kube.objects import Object
from kvasir.model_uri import ModelURI
from kvasir.resource import labels
from kvasir.resource.cache_spec import Cache, DownloadPod, DownloadResources
from kvasir.resource.class_defaults.image_mirrors import mirror_pod
from kvasir_operator.load_protection import ANNOTATIONS
from kvasir_operator.objects import short_hash
from kvasir_operator.plan.engine.scheduling import CONTAINER_SECURITY, near_volume, pod_base
from kvasir_operator.plan.model_download.job_state import (
    POD_ANNOTATION,
    SECRET_ANNOTATION,
    secret_version,
)
from kvasir_operator.plan.model_download.storage import has_own_claim
from kvasir_operator.plan.site_environment import download_variables, site_mounts, site_volumes
from kvasir_operator.plan.step import PlanInputs
from kvasir_operator.spec_facts import download_image_of, revision_of

PERMANENT_EXIT = 2
"""Exit code of `kvasir download` when another attempt cannot succeed."""
_ATTEMPTS = 4
_PERMANENT = {"containerName": labels.DOWNLOAD, "operator": "In", "values": [PERMANENT_EXIT]}
_FAILURE_RULES: tuple[Object, ...] = (
    {"action": "FailJob", "onExitCodes": _PERMANENT},
    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
)


def job_manifest(inputs: PlanInputs, name: str) -> Object:
    """Return the Job called `name` that downloads the model."""
    model = inputs.spec.model
    args = [str(model.parsed_uri), "--to", labels.MODELS_DIRECTORY]
    if model.revision is not None:
        args += ["--revision", model.revision]
    if model.trust_remote_code:
        args += ["--include", "*.py"]
    return _download_job(inputs, name, [*args, *_evicting(inputs)], _credentials(inputs))


def adapter_job(inputs: PlanInputs, name: str, uri: ModelURI) -> Object:
    """Return the Job called `name` that downloads a LoRA adapter beside the model, with the model's
    secret where it is one for such URIs."""
    args = [str(uri), "--to", labels.MODELS_DIRECTORY, "--adapter", *_evicting(inputs)]
    model = inputs.spec.model.parsed_uri
    same = uri.scheme == model.scheme
    if uri.scheme in ("https", "oci"):  # another host must not see the model's
        same = same and uri.name.partition("/")[0] == model.name.partition("/")[0]
    return _download_job(inputs, name, args, _credentials(inputs) if same else ({}, [], []))


def _evicting(inputs: PlanInputs) -> list[str]:
    """Return the flags by which what is not wanted any more makes room, on a volume where nothing
    of others is."""
    spec = inputs.spec
    if has_own_claim(spec):
        return []
    adapters = [each.parsed_uri for each in spec.adapters or () if each.downloaded]
    if not adapters:
        return ["--evict"]
    model = replace(spec.model.parsed_uri, revision=revision_of(spec))
    kept = sorted({str(model), *map(str, adapters)})
    return ["--evict", *(word for uri in kept for word in ("--in-use", uri))]


def _download_job(
    inputs: PlanInputs,
    name: str,
    args: list[str],
    credentials: tuple[Object, list[Object], list[Object]],
) -> Object:
    spec = inputs.spec
    env, volumes, mounts = credentials
    own = {variable["name"] for variable in env.get("env", ())}
    given = {**inputs.settings.download_env, **download_variables(inputs)}
    general = {"HOME": "/tmp", **given}  # noqa: S108
    container: Object = {
        "name": labels.DOWNLOAD,
        "image": download_image_of(spec, inputs.settings.images),
        "args": ["download", *args, "--progress-port", str(labels.HTTP_PORT)],
        "env": [
            *({"name": name, "value": each} for name, each in general.items() if name not in own),
            *env.get("env", ()),
        ],
        "ports": [{"name": "progress", "containerPort": labels.HTTP_PORT, "protocol": "TCP"}],
        "resources": _resources(_settings(inputs).resources),
        "securityContext": CONTAINER_SECURITY,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "models", "mountPath": labels.MODELS_DIRECTORY},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108
            *mounts,
            *site_mounts(inputs),
        ],
    }
    if "envFrom" in env:
        container["envFrom"] = env["envFrom"]
    pod: Object = {
        **_placement(inputs),
        "restartPolicy": "Never",
        "containers": [container],
        "volumes": [
            {"name": "models", "persistentVolumeClaim": {"claimName": inputs.storage.claim}},
            {"name": "tmp", "emptyDir": {}},
            *volumes,
            *site_volumes(inputs),
        ],
    }
    return _job(inputs, name, mirror_pod(pod, inputs.defaults.image_mirrors))


def account_manifest(inputs: PlanInputs) -> Object | None:
    """Return the ServiceAccount of the downloads alone; None = they need none of their own."""
    annotations = _settings(inputs).service_account.annotations
    if not annotations:
        return None
    name = account_of(inputs)
    account = inputs.child(
        "v1",
        "ServiceAccount",
        name,
        component=labels.DOWNLOAD,
        automountServiceAccountToken=False,
    )
    account["metadata"]["annotations"] = dict(annotations)
    return account


def account_of(inputs: PlanInputs) -> str:
    """Return the name of the ServiceAccount of the download's pod."""
    given = _settings(inputs).service_account
    own = f"{inputs.name}-download" if given.annotations else inputs.name
    return given.name or own


def _settings(inputs: PlanInputs) -> DownloadPod:
    return (inputs.spec.cache or Cache()).download


def _placement(inputs: PlanInputs) -> Object:
    """Return the fields of a PodSpec that say as whom and where it runs: not where the GPUs are."""
    base, given = pod_base(inputs), _settings(inputs)
    found: Object = {name: base[name] for name in _COMMON if name in base}
    places = {name: it for name, it in base.get("nodeSelector", {}).items() if name in _PLACES}
    found["serviceAccountName"] = account_of(inputs)
    if selector := {**places, **given.node_selector}:
        found["nodeSelector"] = selector
    if given.tolerations is not None:
        found["tolerations"] = [
            each.model_dump(by_alias=True, exclude_none=True) for each in given.tolerations
        ]
    if near := near_volume(inputs):
        wished = "preferredDuringSchedulingIgnoredDuringExecution"
        found["affinity"] = {"podAffinity": {wished: near}}
    return found


_COMMON = (
    "automountServiceAccountToken",
    "enableServiceLinks",
    "securityContext",
    "imagePullSecrets",
    "tolerations",
)
"""Fields that downloads have in common with engines; tolerations, which draw a pod nowhere, since a
volume of one node may be mounted on an engine's."""
_PLACES = (
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "kubernetes.io/hostname",
    "kubernetes.io/arch",
)
"""Labels of nodes that say where a volume can be mounted, and what runs there."""


def _resources(given: DownloadResources) -> Object:
    amounts = given.model_dump(by_alias=True, exclude_none=True)
    return {name: each for name, each in amounts.items() if each}


def _job(inputs: PlanInputs, name: str, pod: Object) -> Object:
    template = inputs.spec.pod_template
    own = labels.common_labels(inputs.name, labels.DOWNLOAD)
    deadline = _settings(inputs).deadline_seconds
    limit = {} if deadline is None else {"activeDeadlineSeconds": deadline}
    job = inputs.child(
        "batch/v1",
        "Job",
        name,
        component=labels.DOWNLOAD,
        spec={
            "backoffLimit": _ATTEMPTS,
            **limit,
            "podFailurePolicy": {"rules": list(_FAILURE_RULES)},
            "template": {
                "metadata": {
                    "labels": {**template.labels, **own},
                    # What it has fetched stays, but a node that goes costs minutes all the same
                    "annotations": {**ANNOTATIONS, **template.annotations},
                },
                "spec": pod,
            },
        },
    )
    job["metadata"]["annotations"] = {
        SECRET_ANNOTATION: secret_version(inputs),
        POD_ANNOTATION: short_hash(job["spec"]),
    }
    return job


def _credentials(inputs: PlanInputs) -> tuple[Object, list[Object], list[Object]]:
    """Return environment, volumes and mounts by which the download gets its secret."""
    model = inputs.spec.model
    if model.secret_ref is None:
        return {}, [], []
    secret = model.secret_ref
    match model.parsed_uri.scheme:
        case "s3":
            return {"envFrom": [{"secretRef": {"name": secret.name}}]}, [], []
        case "oci":
            return _registry_credentials(secret.name, secret.key or ".dockerconfigjson")
        case "hf":
            variable = "HF_TOKEN"
        case _:
            variable = "KVASIR_HTTP_TOKEN"
    reference = {"secretKeyRef": {"name": secret.name, "key": secret.key or "token"}}
    return {"env": [{"name": variable, "valueFrom": reference}]}, [], []


def _registry_credentials(secret: str, key: str) -> tuple[Object, list[Object], list[Object]]:
    source = {"secretName": secret, "items": [{"key": key, "path": "config.json"}]}
    volume: Object = {"name": "credentials", "secret": source}
    mount: Object = {"name": "credentials", "mountPath": "/credentials", "readOnly": True}
    path = {"name": "REGISTRY_AUTH_FILE", "value": "/credentials/config.json"}
    return {"env": [path]}, [volume], [mount]
