"""Parts of a PodSpec, as the platforms have them, in an LLMDeployment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kvasir.cli.kubectl.convert.draft import Draft, Source

_GPU = "nvidia.com/gpu"
_KNOWN = ("cpu", "memory", "ephemeral-storage")
_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_KEYS = ("VLLM_API_KEY",)
_DOWNLOADED = ("hf://", "s3://", "oci://", "https://")

POD_TEMPLATE = (
    "nodeSelector",
    "tolerations",
    "affinity",
    "priorityClassName",
    "runtimeClassName",
    "schedulerName",
    "imagePullSecrets",
)
"""Fields of a PodSpec that spec.podTemplate has under the same name."""


def take_pod_template(draft: Draft, source: Source) -> None:
    """Take where pods may run."""
    for name in POD_TEMPLATE:
        draft.set(f"spec.podTemplate.{name}", source.take(name))


def take_resources(draft: Draft, resources: Source) -> None:
    """Take requests and limits; of GPUs NVIDIA's alone."""
    for kind in ("limits", "requests"):
        part = resources.part(kind)
        for name in _KNOWN:
            value = part.take(name)
            if value is not None:
                where = draft.document["spec"].setdefault("resources", {}).setdefault(kind, {})
                where[name] = str(value)
        gpus = part.take(_GPU)
        if gpus is not None and (count := whole(gpus)) is not None:
            draft.gpus = count
        draft.lose_rest(part)
    draft.lose_rest(resources)


def whole(value: Any) -> int | None:
    """Return a whole number, also one that is written as text; None for anything else."""
    try:
        return int(value)
    except (TypeError, ValueError):
        return None


def take_env(draft: Draft, variables: Iterable[Any], path: str) -> None:
    """Take variables; the Hub's token becomes that of the download, which alone may have it."""
    kept = []
    for each in variables:
        name = each.get("name") if isinstance(each, Mapping) else None
        if name in _TOKENS:
            _take_token(draft, each, f"{path}.{name}")
        elif name in _KEYS:
            draft.lose(
                f"{path}.{name}", "routers check keys (kvasir keys create), engines need none"
            )
        elif name is not None:
            kept.append({key: each[key] for key in ("name", "value", "valueFrom") if key in each})
    draft.set("spec.engine.env", [*(draft.get("spec.engine.env") or ()), *kept])


def _take_token(draft: Draft, variable: Mapping[str, Any], path: str) -> None:
    reference = (variable.get("valueFrom") or {}).get("secretKeyRef")
    if reference is None:
        draft.lose(path, "write the token into a Secret and name it in spec.model.secretRef")
    else:
        set_secret(draft, str(reference.get("name")), reference.get("key"), path)


def set_secret(draft: Draft, name: str, key: Any, path: str) -> None:
    """Let the download have the Secret."""
    if str(draft.get("spec.model.uri")).startswith(_DOWNLOADED):
        draft.set("spec.model.secretRef", {"name": name, **({"key": key} if key else {})})
    else:
        draft.lose(path, "nothing is downloaded, so no token is needed")


def set_uri(draft: Draft, uri: str, field: str) -> None:
    """Set the model's URI; a plain name is one of the Hub. What the scheme brings beside it is
    lost."""
    text, question, query = str(uri).partition("?")
    if "://" not in text and not text.startswith("/"):
        text = f"hf://{text}"
    if question:
        draft.lose(f"{field} ?{query}", "parameters of a URI have no counterpart")
    draft.set("spec.model.uri", text)


def set_scale(draft: Draft, low: Any, high: Any, target: Any = None) -> None:
    """Set bounds of replicas, or their number where it is fixed."""
    least = whole(low)
    most = whole(high)
    if most is None or most == least:
        if least is not None and least != 1:
            draft.set("spec.replicas", least)
        return
    scaling = {"minReplicas": 1 if least is None else least, "maxReplicas": most}
    if (amount := whole(target)) is not None:
        scaling["target"] = amount
    draft.set("spec.autoscaling", scaling)
