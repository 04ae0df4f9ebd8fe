"""Manifest of the Job that downloads a model onto the cache's volume."""

from __future__ import annotations

from kvasir.kube.objects import Object
from kvasir.resource import labels
from kvasir_operator.plan.engine.scheduling import CONTAINER_SECURITY, pod_base
from kvasir_operator.plan.model_download.job_state import SECRET_ANNOTATION, secret_version
from kvasir_operator.plan.model_download.storage import has_own_claim
from kvasir_operator.plan.step import PlanInputs
from kvasir_operator.spec_facts import image_of

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
    spec = inputs.spec
    uri, revision = str(spec.model.parsed_uri), spec.model.revision
    args = ["download", uri, "--to", labels.MODELS_DIRECTORY]
    if revision is not None:
        args += ["--revision", revision]
    if spec.model.trust_remote_code:
        args += ["--include", "*.py"]
    if not has_own_claim(spec):
        # Nobody else's models are there: those of earlier revisions go when there is no room
        args.append("--evict")
    env, volumes, mounts = _credentials(inputs)
    own = {variable["name"] for variable in env.get("env", ())}
    general = {"HOME": "/tmp", **inputs.settings.download_env}  # noqa: S108
    container: Object = {
        "name": labels.DOWNLOAD,
        "image": image_of(spec, inputs.settings.images),
        "args": [*args, "--progress-port", str(labels.HTTP_PORT)],
        "env": [
            *({"name": name, "value": each} for name, each in general.items() if name not in own),
            *env.get("env", ()),
        ],
        "ports": [{"name": "progress", "containerPort": labels.HTTP_PORT, "protocol": "TCP"}],
        "securityContext": CONTAINER_SECURITY,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "models", "mountPath": labels.MODELS_DIRECTORY},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108
            *mounts,
        ],
    }
    if "envFrom" in env:
        container["envFrom"] = env["envFrom"]
    pod: Object = {
        **pod_base(inputs),
        "restartPolicy": "Never",
        "containers": [container],
        "volumes": [
            {"name": "models", "persistentVolumeClaim": {"claimName": inputs.storage.claim}},
            {"name": "tmp", "emptyDir": {}},
            *volumes,
        ],
    }
    return _job(inputs, name, pod)


def _job(inputs: PlanInputs, name: str, pod: Object) -> Object:
    template = inputs.spec.pod_template
    own = labels.common_labels(inputs.name, labels.DOWNLOAD)
    job = inputs.child(
        "batch/v1",
        "Job",
        name,
        component=labels.DOWNLOAD,
        spec={
            "backoffLimit": _ATTEMPTS,
            "podFailurePolicy": {"rules": list(_FAILURE_RULES)},
            "template": {
                "metadata": {
                    "labels": {**template.labels, **own},
                    "annotations": dict(template.annotations),
                },
                "spec": pod,
            },
        },
    )
    job["metadata"]["annotations"] = {SECRET_ANNOTATION: secret_version(inputs)}
    return job


def _credentials(inputs: PlanInputs) -> tuple[Object, list[Object], list[Object]]:
    """Return environment, volumes and mounts by which the download gets its secret."""
    model = inputs.spec.model
    if model.secret_ref is None:
        return {}, [], []
    secret, scheme = model.secret_ref, model.parsed_uri.scheme
    if scheme == "s3":
        return {"envFrom": [{"secretRef": {"name": secret.name}}]}, [], []
    if scheme == "oci":
        key = secret.key or ".dockerconfigjson"
        source = {"secretName": secret.name, "items": [{"key": key, "path": "config.json"}]}
        volume: Object = {"name": "credentials", "secret": source}
        mount: Object = {"name": "credentials", "mountPath": "/credentials", "readOnly": True}
        path = {"name": "REGISTRY_AUTH_FILE", "value": "/credentials/config.json"}
        return {"env": [path]}, [volume], [mount]
    variable = "HF_TOKEN" if scheme == "hf" else "KVASIR_HTTP_TOKEN"
    reference = {"secretKeyRef": {"name": secret.name, "key": secret.key or "token"}}
    return {"env": [{"name": variable, "valueFrom": reference}]}, [], []
