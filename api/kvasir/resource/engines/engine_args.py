"""The engine's command line that an LLMDeployment means, with a cluster and without."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kvasir.resource.engines.engine_types import EVENTS, REPLAY
from kvasir.resource.engines.traits import EngineTraits
from kvasir.resource.llmdeployment import LLMDeployment
from kvasir.resource.spec import Spec

_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_]*)\)")


def engine_command(
    deployment: LLMDeployment,
    *,
    host: str,
    port: int,
    model: str | None = None,
    tensor: int | None = None,
    program: Sequence[str] | None = None,
) -> list[str]:
    """The command that starts one replica, listening on `host`:`port`.

    `model` replaces the URI where the weights already lie in a directory. `tensor` is the number of
    GPUs where the deployment leaves it open; else as many as it asks for. `program` is what runs
    the type's program, in place of its first word; of type custom the command is the user's.
    """
    spec = deployment.spec
    if spec.engine.type == "custom":
        return [*spec.engine.command, *spec.engine.args]
    traits = spec.engine.traits
    first, *rest = traits.program
    command = [*((first,) if program is None else program), *rest]
    command += [*((traits.model,) if traits.model else ()), model or model_argument(spec)]
    settings = _settings(deployment, host, port, tensor, revision=model is None)
    flags = [word for name, value in settings for word in _flag(traits, name, value)]
    return [*command, *flags, *traits.always, *_lora_flags(spec), *spec.engine.args]


def model_argument(spec: Spec) -> str:
    """Return the model as its engine takes it where nothing is mounted: others than Kvasir's know
    no schemes, but ids of the Hub and directories."""
    if spec.engine.type == "kvasir":
        return spec.model.uri
    parsed = spec.model.parsed_uri
    return parsed.name if parsed.scheme in ("hf", "file") else spec.model.uri


def event_flags(traits: EngineTraits, events: str, replay: str) -> list[str]:
    """Return the flags with which an engine publishes its KV events at these two addresses."""
    return [word.replace(EVENTS, events).replace(REPLAY, replay) for word in traits.events]


def lora_variables(spec: Spec) -> Mapping[str, str]:
    """Return the variables without which the engine loads no LoRA adapters."""
    return spec.engine.traits.lora.variables if spec.adapters is not None else {}


def engine_variables(
    deployment: LLMDeployment, *, host: str, port: int, model: str, tensor: int
) -> dict[str, str]:
    """Return the variables that tell an engine of type custom what the others are told by flags."""
    return {
        "KVASIR_MODEL": model,
        "KVASIR_SERVED_NAME": deployment.served_names[0],
        "KVASIR_HOST": host,
        "KVASIR_PORT": str(port),
        "KVASIR_TENSOR_PARALLEL_SIZE": str(tensor),
    }


def expand(words: Sequence[str], variables: Mapping[str, str]) -> list[str]:
    """Put variables in place of $(NAME), as a kubelet does: $$ is a dollar sign, and the name of an
    unknown one stays."""

    def value(found: re.Match[str]) -> str:
        name = found.group(1)
        return "$" if name is None else variables.get(name, found.group())

    return [_REFERENCE.sub(value, word) for word in words]


def _settings(
    deployment: LLMDeployment, host: str, port: int, tensor: int | None, *, revision: bool
) -> Iterator[tuple[str, Any]]:
    """Yield what is set to something else than its default, in the order of the command line."""
    spec = deployment.spec
    names = deployment.served_names
    yield from (("host", host), ("port", port))
    yield "served_model_name", names if spec.engine.traits.several_names else names[:1]
    if revision and (wanted_revision := _revision(spec)) is not None:
        yield "revision", wanted_revision
    if spec.model.quantization != "auto":
        yield "quantization", spec.model.quantization
    if spec.engine.kv_cache_dtype != "auto":
        yield "kv_cache_dtype", spec.engine.kv_cache_dtype
    if spec.model.trust_remote_code:
        yield "trust_remote_code", True
    wanted = spec.parallelism.tensor
    size = wanted if isinstance(wanted, int) else tensor or spec.resources.gpus
    if size > 1:
        yield "tensor_parallel_size", size
    yield "drain_timeout", spec.lifecycle.drain_seconds
    yield from spec.engine.config.model_dump(exclude_defaults=True).items()


def _lora_flags(spec: Spec) -> list[str]:
    """Return the flags by which the engine takes LoRA adapters, the same whichever there are, so
    that it need not be restarted for one. What the user gives replaces ours."""
    if spec.adapters is None:
        return []
    lora, given = spec.engine.traits.lora, {it.partition("=")[0] for it in spec.engine.args}
    found = [each for each in lora.enabling if each not in given]
    return found if given & set(lora.sizes[::2]) else [*found, *lora.sizes]


def _revision(spec: Spec) -> str | None:
    """Return the revision that a flag names; Kvasir's engine reads the URI's own by itself."""
    own = None if spec.engine.type == "kvasir" else spec.model.parsed_uri.revision
    return spec.model.revision or own


def _flag(traits: EngineTraits, name: str, value: Any) -> Iterator[str]:
    """Yield the words that set `name`; none where the type has no flag for it."""
    flag = traits.flags.get(name, "")
    if isinstance(flag, tuple):
        flag = flag[0 if value else 1]
        yield from (flag,) if flag else ()
    elif flag:
        yield flag
        values = value if isinstance(value, list) else [value]
        yield from (traits.values.get((name, each), str(each)) for each in values)
