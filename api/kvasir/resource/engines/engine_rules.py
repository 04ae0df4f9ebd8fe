"""Rules between `spec.engine.type` and the rest of a spec, each for API servers and for files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from kvasir.resource.strict_model import rule


class _EngineRule(NamedTuple):
    expression: str
    """CEL, over the spec."""
    message: str
    holds: Callable[[Any], bool]
    """The same over the model of the spec."""


_CUSTOM = "self.engine.type != 'custom'"

_ENGINE_RULES = (
    _EngineRule(
        "self.engine.type == 'kvasir' || !self.model.uri.startsWith('builtin://')",
        "builtin:// models are in Kvasir's own engine; with another engine.type use hf://, s3://,"
        " pvc://, oci://, https:// or file://",
        lambda spec: spec.engine.type == "kvasir" or spec.model.parsed_uri.scheme != "builtin",
    ),
    _EngineRule(
        f"{_CUSTOM} || type(self.parallelism.tensor) != string",
        "parallelism.tensor auto has no meaning with engine.type custom, whose memory is not known;"
        " write a number",
        lambda spec: spec.engine.type != "custom" or spec.parallelism.tensor != "auto",
    ),
    _EngineRule(
        f"{_CUSTOM} || self.model.quantization == 'auto'",
        "model.quantization has no meaning with engine.type custom; use engine.args",
        lambda spec: spec.engine.type != "custom" or spec.model.quantization == "auto",
    ),
    _EngineRule(
        f"{_CUSTOM} || !self.model.trustRemoteCode",
        "model.trustRemoteCode has no meaning with engine.type custom; use engine.args",
        lambda spec: spec.engine.type != "custom" or not spec.model.trust_remote_code,
    ),
    _EngineRule(
        "!has(self.router.tokenizer) || self.engine.type in ['vllm', 'sglang']"
        f" || (!({_CUSTOM}) && has(self.engine.ports) && has(self.engine.ports.events))",
        "router.tokenizer is for engines that publish KV events and report no prompts: engine.type"
        " vllm, sglang, or custom with ports.events; remove it",
        lambda spec: (
            spec.router.tokenizer is None
            or spec.engine.type in ("vllm", "sglang")
            or (spec.engine.ports is not None and spec.engine.ports.events is not None)
        ),
    ),
    _EngineRule(
        f"{_CUSTOM} || !has(self.autoscaling) || !has(self.autoscaling.targets)"
        " || !has(self.autoscaling.targets.kvUsage)"
        " || (has(self.engine.metrics) && has(self.engine.metrics.kvUsage))",
        "autoscaling.targets.kvUsage needs engine.metrics.kvUsage with engine.type custom; give it,"
        " or another target",
        lambda spec: not _lacks_kv_usage(spec),
    ),
)

ENGINE_RULES = tuple(rule(each.expression, each.message) for each in _ENGINE_RULES)
"""CEL rules of the spec."""


def engine_problems(spec: Any) -> Iterator[str]:
    """Yield a sentence for each rule that `spec` breaks."""
    return (each.message for each in _ENGINE_RULES if not each.holds(spec))


def _lacks_kv_usage(spec: Any) -> bool:
    targets = spec.autoscaling.targets if spec.autoscaling is not None else None
    if spec.engine.type != "custom" or targets is None or targets.kv_usage is None:
        return False
    return spec.engine.metrics is None or spec.engine.metrics.kv_usage is None
