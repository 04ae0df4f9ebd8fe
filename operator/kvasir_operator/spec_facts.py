"""Facts that follow from a spec alone: device, image, secrets, and where the model lies."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import lru_cache

from kvasir.kube.objects import Object, annotation, container_run
from kvasir.models.cache.layout import claim_and_path, model_directory
from kvasir.resource import labels
from kvasir.resource.cache_spec import Cache
from kvasir.resource.engines.served_api_spec import CustomPorts
from kvasir.resource.lora.lora_held import HeldAdapters, read_held
from kvasir.resource.spec import Spec
from kvasir_operator.settings import Images

_read_held = lru_cache(maxsize=4096)(read_held)
"""Each pod is asked at every look, of each adapter; what it says changes seldom."""
_NAMED = "KVASIR_SERVED_NAME"
"""Variable that tells an engine of type custom its name."""


@dataclass(frozen=True, slots=True)
class Storage:
    """Storage from which engines read the model."""

    model: str
    """Model argument of `kvasir serve`: a directory, or a model that is in the image."""
    claim: str | None = None
    """The claim that is mounted; None = no volume."""
    cached: bool = False
    """True if a download fills the volume, so that it may be written to."""


def storage_of(spec: Spec, name: str) -> Storage:
    """The storage of the model of the deployment called `name`."""
    uri = spec.model.parsed_uri
    if uri.scheme == "builtin":
        return Storage(str(uri))
    if uri.scheme == "file":
        return Storage(uri.name)
    directory = model_directory(uri, spec.model.revision)
    path = f"{labels.MODELS_DIRECTORY}/{directory}".removesuffix("/.")
    if uri.scheme == "pvc":
        return Storage(path, claim_and_path(uri)[0])
    return Storage(path, (spec.cache or Cache()).pvc.claim_name or f"{name}-models", cached=True)


def revision_of(spec: Spec) -> str | None:
    """The revision of the model that is downloaded, wherever it is said."""
    return spec.model.parsed_uri.revision or spec.model.revision


def image_of(spec: Spec, images: Images) -> str:
    """The engine's image; "" when none is known."""
    own = getattr(images, device_of(spec)) if spec.engine.type == "kvasir" else ""
    return spec.engine.image or own


def ports_of(spec: Spec) -> dict[str, int]:
    """Return the engine's ports by the names they have in its pod and its Service."""
    engine = spec.engine
    if engine.type == "kvasir":
        return dict(labels.ENGINE_PORTS)
    if engine.type == "custom":
        given: dict[str, int] = (engine.ports or CustomPorts()).model_dump(exclude_none=True)
        return given
    names = ("http", "events", "replay") if spec.router.tokenizer else ("http",)
    return {name: labels.ENGINE_PORTS[name] for name in names}


def download_image_of(spec: Spec, images: Images) -> str:
    """The image of the model's download; "" when none is known."""
    own = (spec.cache or Cache()).download.image
    engine = image_of(spec, images) if spec.engine.type == "kvasir" else images.cpu
    return own or images.download or engine


def device_of(spec: Spec) -> str:
    """cpu, cuda or sim: what the engine will run on."""
    if spec.engine.config.device != "auto":
        return spec.engine.config.device
    return "cuda" if spec.resources.gpus or spec.parallelism.tensor == "auto" else "cpu"


def secrets_of(spec: Spec) -> set[str]:
    """Names of all Secrets that a deployment refers to."""
    if spec.external is not None:
        keys = (each.key.secret_ref for each in spec.external.urls if each.key is not None)
        return {each.name for each in keys if each is not None}
    names = mounted_secrets(spec)
    return names | {spec.model.secret_ref.name} if spec.model.secret_ref else names


def mounted_secrets(spec: Spec) -> set[str]:
    """Names of the Secrets that engines see: a change of theirs restarts engines."""
    return spec.engine.secrets()


def required_secrets(spec: Spec) -> set[str]:
    """Names of the Secrets without which engines or the download cannot start."""
    if spec.external is not None:
        return secrets_of(spec)
    names = spec.engine.secrets(required=True)
    return names | {spec.model.secret_ref.name} if spec.model.secret_ref else names


def names_served_by(pod: Object) -> set[str]:
    """Names under which an engine's pod answers: those that its command was given, and of the
    adapters that it holds; none once it has ended."""
    if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return set()
    for container in pod["spec"]["containers"]:
        if container["name"] == labels.ENGINE_CONTAINER:
            words = [*(container.get("command") or ()), *(container.get("args") or ())]
            told = {it.get("value") for it in container.get("env") or () if it["name"] == _NAMED}
            own = set(_values_of("--served-model-name", words)) | (told - {None})
            return own | set(held.held if (held := held_by_pod(pod)) is not None else ())
    return set()


def held_by_pod(pod: Object) -> HeldAdapters | None:
    """The LoRA adapters that this run of a pod's engine holds; None = it was not asked yet."""
    run = container_run(pod, labels.ENGINE_CONTAINER)
    return _read_held(annotation(pod, labels.ADAPTERS), run)


def _values_of(flag: str, words: list[str]) -> list[str]:
    """Return the words behind `flag`, up to the next flag."""
    if flag not in words:
        return []
    behind = words[words.index(flag) + 1 :]
    return list(itertools.takewhile(lambda word: not word.startswith("-"), behind))
