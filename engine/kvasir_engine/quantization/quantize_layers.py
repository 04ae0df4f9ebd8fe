"""Choice of each layer's method, as a checkpoint or a user has it quantised."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

from torch import nn

from kvasir.models.quantization import Activations, Numbers, Quantization, Scales
from kvasir_engine.device.collectives import tensor_parallel
from kvasir_engine.kernels.int4.int4_weights import UNIT
from kvasir_engine.layers.clamped_moe import ClampedMoE
from kvasir_engine.quantization.fp8 import Fp8Linear
from kvasir_engine.quantization.fp8_block import Fp8BlockLinear
from kvasir_engine.quantization.int4 import Int4Linear
from kvasir_engine.quantization.linear_method import LinearMethod
from kvasir_engine.quantization.mxfp4 import Mxfp4Experts
from kvasir_engine.quantization.plain import PLAIN

# By token is at least as exact as by all tokens of a step.
_FP8_ACTIVATIONS = (Activations.PER_TOKEN, Activations.PER_TENSOR, Activations.STATIC)

_SMALL_GROUPS = (32, 64)
"""Groups of 4-bit weights that are part of a unit of their layout; others are made of units."""

HEAD = "lm_head"
PLAIN_INPUTS = "that stay plain"


class UnsupportedQuantizationError(ValueError):
    """A format that no method is for; the message is a sentence."""


@runtime_checkable
class Quantizable(Protocol):
    """A layer whose weights a method stores."""

    def use(self, method: LinearMethod) -> None:
        """Have weights of this method, uninitialised."""

    def modules_in_checkpoint(self, path: str) -> list[str]:
        """Return the names of the modules that a checkpoint has of it; `path` is its own here."""
        ...


def quantize_layers(model: nn.Module, quantization: Quantization) -> None:
    """Give each linear layer of `model` its method and memory for its weights.

    Raises UnsupportedQuantizationError when nothing here multiplies such weights, or when only some
    of the matrices that are merged in a layer are quantised, or the head is.
    """
    method = method_for(quantization)
    # Of a multimodal checkpoint its name may be longer.
    plain_head = not quantization.applies_to(HEAD) or any(HEAD in n for n in quantization.ignored)
    if getattr(model, HEAD, None) is not None and not plain_head:
        raise UnsupportedQuantizationError(
            f"config field 'quantization_config': {HEAD} is quantised, which is not supported; use"
            f" a checkpoint that leaves the output projection plain"
        )
    for path, layer in _layers(model):
        kept_plain = {
            name: not quantization.applies_to(name) for name in layer.modules_in_checkpoint(path)
        }
        if len({*kept_plain.values()}) > 1:
            plain = ", ".join(name for name, is_plain in kept_plain.items() if is_plain)
            raise UnsupportedQuantizationError(
                f"config field 'quantization_config': {plain} stays plain while other matrices of"
                f" the merged layer {path} are quantised, which is not supported"
            )
        if all(kept_plain.values()):
            layer.use(PLAIN)
            continue
        if isinstance(method, Mxfp4Experts) and not isinstance(layer, ClampedMoE):
            raise _unsupported(quantization, f"mxfp4 weights outside gpt-oss' experts, in {path}")
        layer.use(method)


def method_for(quantization: Quantization) -> LinearMethod:
    """Return the method for such weights. Raises UnsupportedQuantizationError."""
    if quantization.numbers == Numbers.INT4:
        return _int4_method(quantization)
    if quantization.numbers is Numbers.MXFP4:
        return Mxfp4Experts()
    if quantization.numbers != Numbers.FP8:
        raise _unsupported(quantization, f"{quantization.numbers} weights")
    if quantization.scales == Scales.BLOCK:
        if quantization.activations != Activations.PER_GROUP:
            raise _unsupported(quantization, f"inputs {quantization.activations or PLAIN_INPUTS}")
        # transformers' and DeepSeek's name says that it is what weights are multiplied by.
        inverse = quantization.method == "fp8"
        return Fp8BlockLinear("weight_scale_inv" if inverse else "weight_scale")
    if quantization.scales not in (Scales.TENSOR, Scales.CHANNEL):
        raise _unsupported(quantization, f"float8 scales of a {quantization.scales}")
    if quantization.activations not in _FP8_ACTIVATIONS:
        raise _unsupported(quantization, f"inputs {quantization.activations or PLAIN_INPUTS}")
    return Fp8Linear(quantization)


def _int4_method(quantization: Quantization) -> LinearMethod:
    group, ranks = quantization.group, tensor_parallel().size
    if group not in _SMALL_GROUPS and group % UNIT:
        raise UnsupportedQuantizationError(
            f"config field 'quantization_config.group_size': groups of {group} inputs are not"
            f" supported; use a checkpoint with groups of {_SMALL_GROUPS[0]}, {_SMALL_GROUPS[1]} or"
            f" {UNIT}, or -1 for one of all inputs"
        )
    if quantization.reordered and ranks > 1:
        raise UnsupportedQuantizationError(
            f"config field 'quantization_config': inputs that were quantised in another order"
            f" (desc_act, actorder) cannot be divided among {ranks} ranks; set"
            f" --tensor-parallel-size 1, or use a checkpoint without it"
        )
    return Int4Linear(quantization)


def _unsupported(quantization: Quantization, what: str) -> UnsupportedQuantizationError:
    return UnsupportedQuantizationError(
        f"config field 'quantization_config': method {quantization.method!r} has {what}, which is"
        f" not supported; use a checkpoint in float8 with quantised inputs, one"
        f" in int4, or one that is not quantised"
    )


def _layers(model: nn.Module) -> Iterator[tuple[str, Quantizable]]:
    """The outermost of them: experts' layers are their block's."""
    inside = None
    for path, module in model.named_modules():
        if inside is not None and path.startswith(f"{inside}."):
            continue
        if isinstance(module, Quantizable):
            inside = path
            yield path, module
