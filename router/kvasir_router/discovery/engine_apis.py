"""The API of an engine behind an address: its kind's traits, or what its replica's spec says."""

import re

from kvasir.resource.engines.engine_types import CUSTOM, KVASIR, SGLANG, VLLM
from kvasir.resource.engines.traits import CustomAPI, EngineTraits, MetricNames
from kvasir_router.discovery.specs import EngineKind, ReplicaSpec

_TRAITS = {
    EngineKind.KVASIR: KVASIR,
    EngineKind.KVASIR_OPEN: KVASIR,
    EngineKind.VLLM: VLLM,
    EngineKind.SGLANG: SGLANG,
    EngineKind.OPENAI: CUSTOM,
}
MODELS_PATH = "/v1/models"
"""Path that engines answer of which only OpenAI's API is known."""
_PATH = re.compile(r"/[-A-Za-z0-9._~/]{0,255}")
_METRIC = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,127}")
_MAX_NAMES = 4


def traits_of(kind: EngineKind) -> EngineTraits:
    """Return what is known of a kind of engine."""
    return _TRAITS[kind]


def ready_path(spec: ReplicaSpec) -> str:
    """Return the path that answers 200 once the engine serves. Of OpenAI's API, where nothing else
    is known, it is the list of models."""
    if spec.custom is not None:
        return spec.custom.ready_path
    return MODELS_PATH if spec.engine is EngineKind.OPENAI else traits_of(spec.engine).ready_path


def load_metrics(spec: ReplicaSpec) -> tuple[str, MetricNames] | None:
    """Return the path of the engine's metrics, and the names of those that tell its load; None =
    nothing tells it, and the requests in flight there have to do."""
    if spec.custom is not None:
        names = spec.custom.metrics
        return None if names is None else (spec.custom.metrics_path, names)
    traits = traits_of(spec.engine)
    return (traits.metrics_path, traits.metrics) if traits.metrics.running else None


def is_safe(given: CustomAPI) -> bool:
    """Return whether its paths and names are such, and can be nothing else in a request."""
    paths = (given.ready_path, given.metrics_path)
    names = given.metrics or MetricNames()
    series = (names.running, names.waiting, names.kv_usage)
    single = (names.prompt_tokens, names.ttft, names.capacity, names.cache_info)
    return (
        all(_PATH.fullmatch(path) for path in paths)
        and all(len(several) <= _MAX_NAMES for several in series)
        and all(_METRIC.fullmatch(name) for several in series for name in several)
        and all(_METRIC.fullmatch(name) for name in single if name)
    )
