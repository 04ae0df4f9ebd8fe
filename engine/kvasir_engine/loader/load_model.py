"""Loading of a model directory into a model with its weights on the device."""

from __future__ import annotations

import logging
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from kvasir.engine_values import LoadFormat
from kvasir.models.config_overrides import ConfigOverrides
from kvasir.models.fit.estimate import weight_bytes
from kvasir.models.hf_config import ConfigError, load_config
from kvasir.models.model_shape import ModelShape
from kvasir.models.quantization import Numbers
from kvasir_engine.device import out_of_memory
from kvasir_engine.device.capability import unsupported_dtype, unsupported_fp8
from kvasir_engine.device.collectives import tensor_parallel
from kvasir_engine.kv.cache_spec import CacheSpec
from kvasir_engine.layers.linear import ParallelLinear
from kvasir_engine.layers.weights import deferred_weights, model_slots
from kvasir_engine.loader.checkpoint import Checkpoint
from kvasir_engine.loader.load_error import ModelLoadError
from kvasir_engine.models.causal_lm import CausalLM
from kvasir_engine.models.config import ModelConfig, model_config
from kvasir_engine.models.decoder import DecoderForCausalLM
from kvasir_engine.models.registry import NATIVE, build_native
from kvasir_engine.quantization.plain import DUMMY_RANGE
from kvasir_engine.quantization.quantize_layers import quantize_layers
from kvasir_engine.settings import ModelImpl

if TYPE_CHECKING:
    from kvasir_engine.models.transformers_backend import TransformersForCausalLM

log = logging.getLogger(__name__)

WeightFill = LoadFormat | Literal["none"]
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run, with what its config.json says."""

    model: CausalLM
    shape: ModelShape
    dtype: torch.dtype
    device: torch.device

    @property
    def cache_specs(self) -> list[CacheSpec]:
        """Cache layout of each attention layer, in layer order."""
        return [spec.cache for spec in self.model.attention_specs]


def load_model(
    model_dir: Path,
    *,
    dtype: str = "auto",
    device: torch.device | str = "cpu",
    load_format: WeightFill = "auto",
    model_impl: ModelImpl = "auto",
    trust_remote_code: bool = False,
    max_model_len: int | None = None,
    seed: int = 0,
    overrides: ConfigOverrides | None = None,
) -> LoadedModel:
    """Build the model that `model_dir`/config.json names and fill it with its weights.

    `dtype` "auto" is the config's on a GPU and float32 on a CPU. `load_format` "dummy" needs no
    weights: small random ones, the same for the same `seed`; "none" leaves them as they are, which
    is for tensors without values. `model_impl` "auto" takes our own code where there is some, else
    transformers'. `max_model_len` decides which factors LongRoPE uses. `overrides` are put into the
    config. Raises ModelLoadError with what is wrong and what to do about it.
    """
    device = torch.device(device)
    fields = _read_config(model_dir, overrides or ConfigOverrides())
    try:
        config = model_config(fields, max_model_len)
    except ConfigError as error:
        raise ModelLoadError(f"{model_dir}: {error}") from error
    kind = resolve_dtype(dtype, config.shape.dtype, device)
    fault = unsupported_dtype(kind, device)
    if fault is not None:
        raise ModelLoadError(fault)
    source = _Source(model_dir, fields, config, kind, device, trust_remote_code)
    begin = time.monotonic()
    native = _is_native(config.shape.architecture, model_impl)
    _require_quantized_layers(config.shape, device, native=native)
    make = source.native if native else source.transformers
    with out_of_memory.raise_on_out_of_memory(lambda: _too_large(config.shape, kind, device)):
        model = make(with_weights=load_format in ("auto", "safetensors"))
        if load_format == "dummy":
            fill_randomly(model, seed)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    seconds = time.monotonic() - begin
    amount = sum(p.nbytes for p in model.parameters()) / 1e9
    if load_format != "none":
        log.info("%.2f GB of weights in %.2f s (%.1f GB/s).", amount, seconds, amount / seconds)
    return LoadedModel(model.eval(), config.shape, kind, device)


def resolve_dtype(asked: str, of_config: str, device: torch.device) -> torch.dtype:
    """The dtype to run in; "auto" is the config's on a GPU, float32 on a CPU."""
    name = asked
    if asked == "auto":
        name = "float32" if device.type == "cpu" else of_config
    if name not in _DTYPES:
        raise ModelLoadError(f"dtype {name!r} is not supported; one of {', '.join(_DTYPES)} is")
    return _DTYPES[name]


def fill_randomly(model: nn.Module, seed: int) -> None:
    """Small uniform weights; each depends on the seed and its name alone."""

    def generator(name: str, device: torch.device) -> torch.Generator:
        return torch.Generator(device).manual_seed(seed ^ zlib.crc32(name.encode()))

    for name, tensor in model.named_parameters():
        if tensor.dtype in _DTYPES.values():
            drawn_by = generator(name, tensor.device)
            tensor.data.uniform_(-DUMMY_RANGE, DUMMY_RANGE, generator=drawn_by)
    for path, module in model.named_modules():
        if isinstance(module, ParallelLinear):
            module.method.fill_randomly(module, generator(f"{path}.weight", module.weight.device))


def _is_native(architecture: str, model_impl: ModelImpl) -> bool:
    if model_impl == "native" and architecture not in NATIVE:
        raise ModelLoadError(
            f"architecture {architecture!r} has no native code; use --model-impl auto,"
            f" or one of {', '.join(NATIVE)}"
        )
    return model_impl != "transformers" and architecture in NATIVE


def _require_quantized_layers(shape: ModelShape, device: torch.device, *, native: bool) -> None:
    quantization = shape.quantization
    if quantization is None:
        return
    if not native:
        remedy = "leave out --quantization" if quantization.online else "use its plain weights"
        raise ModelLoadError(
            f"{shape.architecture} runs through transformers' code, and {quantization.summary}"
            f" weights are multiplied by native code alone; {remedy}"
        )
    fault = unsupported_fp8(device) if quantization.numbers is Numbers.FP8 else None
    if fault is not None:
        raise ModelLoadError(fault)


@dataclass(frozen=True, slots=True)
class _Source:
    """Inputs that both ways of building a model need."""

    model_dir: Path
    fields: Mapping[str, Any]
    config: ModelConfig
    dtype: torch.dtype
    device: torch.device
    trust_remote_code: bool

    def native(self, *, with_weights: bool) -> DecoderForCausalLM:
        try:
            with torch.device(self.device), _default_dtype(self.dtype):
                model = self._build_native()
        except ValueError as error:
            raise ModelLoadError(f"{self.config.shape.architecture}: {error}") from error
        if with_weights:
            _fill_native(model, self.model_dir)
        return model

    def _build_native(self) -> DecoderForCausalLM:
        shape = self.config.shape
        if shape.quantization is None:
            return build_native(shape.architecture, self.config)
        with deferred_weights():
            model = build_native(shape.architecture, self.config)
        quantize_layers(model, shape.quantization)
        return model

    def transformers(self, *, with_weights: bool) -> TransformersForCausalLM:
        from kvasir_engine.loader.transformers_loader import build_with_transformers

        return build_with_transformers(
            self.model_dir,
            self.fields,
            self.config.shape,
            dtype=self.dtype,
            device=self.device,
            trust_remote_code=self.trust_remote_code,
            with_weights=with_weights,
        )


def _fill_native(model: DecoderForCausalLM, model_dir: Path) -> None:
    checkpoint = Checkpoint(model_dir, model.slot_name)
    try:
        unused = checkpoint.fill(model_slots(model))
        for module in model.modules():
            if isinstance(module, ParallelLinear):
                module.method.finish(module)
    except ModelLoadError:
        raise
    except ValueError as error:
        raise ModelLoadError(f"{model_dir}: {error}") from error
    unused = [name for name in unused if not name.startswith(model.unused_prefixes)]
    if unused:
        log.warning("%s: %d weights are not used: %s", model_dir, len(unused), unused[:5])


def _read_config(model_dir: Path, overrides: ConfigOverrides) -> dict[str, Any]:
    if not model_dir.is_dir():
        raise ModelLoadError(f"{model_dir} is not a directory; name a Hugging Face model directory")
    try:
        return overrides.apply(load_config(model_dir))
    except ConfigError as error:
        raise ModelLoadError(str(error)) from error


def _too_large(shape: ModelShape, dtype: torch.dtype, device: torch.device) -> ModelLoadError:
    ranks = tensor_parallel().size
    asked = weight_bytes(shape, ranks, str(dtype).removeprefix("torch.")) / 2**30
    # None of it is free by now, and what was before is not the engine's to tell
    total = torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else None
    has = "which has less free" if total is None else f"of {total / 2**30:.1f} GiB in all"
    smaller = " set --dtype bfloat16," if dtype.itemsize > 2 else ""
    return ModelLoadError(
        f"--tensor-parallel-size {ranks}, --dtype {str(dtype).removeprefix('torch.')}: the model's"
        f" weights need about {asked:.1f} GiB on {device}, {has};"
        f" raise --tensor-parallel-size to {2 * ranks},{smaller} or free the device's memory"
    )


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    previous = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(previous)
