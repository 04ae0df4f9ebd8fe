"""Build and fill a model through transformers, or say why it cannot run that way."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.initialization import no_init_weights
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from kvasir.models.model_shape import ModelShape
from kvasir_engine.device.collectives import tensor_parallel
from kvasir_engine.layers.weights import WeightSlot
from kvasir_engine.loader.checkpoint import Checkpoint
from kvasir_engine.loader.load_error import ModelLoadError
from kvasir_engine.models.transformers_backend import ATTENTION_NAME, TransformersForCausalLM

log = logging.getLogger(__name__)


def build_with_transformers(
    model_dir: Path,
    fields: Mapping[str, Any],
    shape: ModelShape,
    *,
    dtype: torch.dtype,
    device: torch.device,
    trust_remote_code: bool,
    with_weights: bool,
) -> TransformersForCausalLM:
    """The model of `model_dir` on the device; uninitialised unless `with_weights`.

    Raises ModelLoadError with the reason when its class cannot run over paged KV.
    """
    refuse_unless_supported(fields, shape.architecture, trust_remote_code=trust_remote_code)
    options = {
        "dtype": dtype,
        "attn_implementation": ATTENTION_NAME,
        "trust_remote_code": trust_remote_code,
    }
    try:
        config = _config(model_dir, fields, trust_remote_code=trust_remote_code)
        model = _build(config, device, options)
        _refuse_class(type(model))
        if with_weights and not _fill(model, Checkpoint(model_dir)):
            del model
            model = _convert(model_dir, {**options, "config": config}).to(device)
        made = TransformersForCausalLM(model.eval(), shape.layer_windows)
    except ModelLoadError:
        raise
    except (ValueError, ImportError, OSError) as error:
        raise _refused(shape.architecture, str(error)) from error
    log.info(
        "%s runs through transformers' modelling code, with Kvasir's attention%s.",
        shape.architecture,
        f"; without CUDA graphs, since {made.waits}" if made.waits else "",
    )
    return made


def refuse_unless_supported(
    fields: Mapping[str, Any], architecture: str, *, trust_remote_code: bool
) -> None:
    """Raise ModelLoadError unless transformers can run `architecture` as a text decoder."""
    if tensor_parallel().size > 1:
        raise _refused(
            architecture, "it runs through transformers, which takes tensor-parallel-size 1 only"
        )
    remote = "AutoModelForCausalLM" in (fields.get("auto_map") or {})
    cls = getattr(transformers, architecture, None)
    if cls is None and remote and trust_remote_code:
        return
    if cls is None and remote:
        raise _refused(
            architecture,
            "its modelling code comes with the model; read it, then pass --trust-remote-code",
        )
    if cls is None:
        raise _refused(architecture, f"transformers {transformers.__version__} does not know it")
    if fields.get("is_encoder_decoder"):
        raise _refused(architecture, "it is an encoder-decoder model")
    if any(name in fields for name in ("vision_config", "audio_config")):
        raise _refused(architecture, "it is a multimodal model")
    if architecture not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
        raise _refused(architecture, "it is not a causal language model")
    _refuse_class(cls)


def _refuse_class(cls: Any) -> None:
    if getattr(cls, "_is_stateful", False):
        raise _refused(cls.__name__, "its layers keep state other than attention's keys and values")
    if not cls.is_backend_compatible():
        raise _refused(cls.__name__, "its class does not support transformers' attention interface")


def _refused(architecture: str, reason: str) -> ModelLoadError:
    return ModelLoadError(f"architecture {architecture!r} cannot be served: {reason}")


def _config(model_dir: Path, fields: Mapping[str, Any], *, trust_remote_code: bool) -> Any:
    """The config of `model_dir`'s class, with these fields."""
    read = transformers.AutoConfig.from_pretrained(
        model_dir, trust_remote_code=trust_remote_code, local_files_only=True
    )
    return type(read).from_dict(deepcopy(dict(fields)), name_or_path=str(model_dir))


def _build(config: Any, device: torch.device, options: Mapping[str, Any]) -> Any:
    """The model on the device: buffers computed, parameters tied but not initialised."""
    with torch.device(device), no_init_weights():
        model = transformers.AutoModelForCausalLM.from_config(config, **options)
    model.tie_weights()
    return model


def _fill(model: Any, checkpoint: Checkpoint) -> bool:
    """Fill the model, unless the checkpoint has other names than its class: then return False.

    Of a tied tensor's names the one that the checkpoint has is taken.
    """
    slots: dict[int, tuple[str, WeightSlot]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in slots or name in checkpoint.tensors:
            slots[id(tensor)] = (name, WeightSlot.whole(tensor.data))
    by_name = dict(slots.values())
    if not by_name.keys() <= checkpoint.tensors.keys():
        return False
    checkpoint.fill(by_name)
    return True


def _convert(model_dir: Path, options: Mapping[str, Any]) -> Any:
    """Let transformers rename, split or merge the weights of a checkpoint that needs it."""
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        model_dir, local_files_only=True, output_loading_info=True, **options
    )
    missing = sorted(report["missing_keys"])
    if missing:
        raise ModelLoadError(
            f"{model_dir} lacks {len(missing)} weights that its config.json asks for, such as"
            f" {', '.join(missing[:5])}; the config and the weights do not belong together"
        )
    return model
