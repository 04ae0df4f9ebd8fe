"""Read a Hugging Face config.json into a ModelShape, without transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvasir.models.config_error import ConfigError
from kvasir.models.hf_families import FAMILIES, Family
from kvasir.models.model_shape import ModelShape
from kvasir.models.quantization_config import parse_quantization

__all__ = ["MAX_CONFIG_BYTES", "ConfigError", "load_config", "parse_shape", "read_shape"]

MAX_CONFIG_BYTES = 8 * 1024 * 1024
_MAX_SIZE = 2**31 - 1
_MAX_LAYERS = 4096

_ALIASES = {
    "hidden_size": ("n_embd", "d_model"),
    "num_hidden_layers": ("n_layer", "num_layers", "n_layers"),
    "num_attention_heads": ("n_head", "n_heads"),
    "intermediate_size": ("n_inner", "ffn_dim", "ffn_hidden_size"),
    "max_position_embeddings": ("n_positions", "n_ctx", "max_seq_len"),
    "num_experts": ("num_local_experts", "n_routed_experts"),
    "dtype": ("torch_dtype",),
}
"""Older names of the same sizes."""

_UNSUPPORTED = {
    "kv_lora_rank": "multi-head latent attention",
    "is_encoder_decoder": "an encoder-decoder model",
    "ssm_cfg": "a state-space model",
}
_MODELOPT_FILE = "hf_quant_config.json"
"""File beside config.json in which ModelOpt's older versions leave the `quantization_config`."""


def load_config(path: Path) -> dict[str, Any]:
    """The config.json at `path`, a file or a model directory. Raises ConfigError.

    Where it has no `quantization_config`, and ModelOpt's file lies beside it, that is put there.
    """
    file = path / "config.json" if path.is_dir() else path
    config = _load_object(file)
    beside = file.with_name(_MODELOPT_FILE)
    if config.get("quantization_config") is None and beside.is_file():
        config["quantization_config"] = _load_object(beside)
    return config


def _load_object(file: Path) -> dict[str, Any]:
    try:
        if file.stat().st_size > MAX_CONFIG_BYTES:
            raise ConfigError(f"{file} is larger than {MAX_CONFIG_BYTES} bytes; is it a config?")
        config = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise ConfigError(
            f"{file} does not exist; name a Hugging Face model directory or its config.json"
        ) from None
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{file} is not valid JSON: {error}") from error
    if not isinstance(config, dict):
        raise ConfigError(f"{file} must hold a JSON object, not a {type(config).__name__}")
    return config


def read_shape(path: Path) -> ModelShape:
    """The shape of the model at `path`, a directory or its config.json. Raises ConfigError."""
    return parse_shape(load_config(path))


def parse_shape(config: Mapping[str, Any]) -> ModelShape:
    """The shape a config.json's object describes. Raises ConfigError.

    The text part of a multimodal config (`text_config`) is read, with the outer object's dtype,
    quantisation, end-of-sequence ids and tying where the text part says nothing.
    """
    return _Reader(config).shape()


class _Reader:
    """Reader of one config's fields: its text part's, then the outer object's, then the family's
    default."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        text = config.get("text_config")
        self.outer = config
        self.text: Mapping[str, Any] = text if isinstance(text, dict) else config
        self.model_type = str(self.text.get("model_type", config.get("model_type", "")))
        self.known = self.model_type in FAMILIES
        self.family = FAMILIES.get(self.model_type, Family())
        for name, what in _UNSUPPORTED.items():
            if self.get(name):
                raise ConfigError(f"config field {name!r}: {what} is not supported")

    def get(self, name: str) -> Any:
        return _first(name, self.text, self.family.defaults)

    def get_outer(self, name: str) -> Any:
        return _first(name, self.text, self.outer, self.family.defaults)

    def size(
        self, name: str, default: int | None = None, *, least: int = 1, limit: int = _MAX_SIZE
    ) -> int:
        value = self.get(name)
        if value is None:
            if default is None:
                raise ConfigError(
                    f"config field {name!r} is missing; is this the config.json of a decoder?"
                )
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= limit:
            raise ConfigError(f"config field {name!r} must be {least} to {limit}, not {value!r}")
        return value

    def flag(self, name: str) -> bool:
        return bool(self.get(name))

    def shape(self) -> ModelShape:
        hidden = self.size("hidden_size")
        heads = self.size("num_attention_heads")
        family = self.family
        names = self.get_outer("architectures") or [""]
        tied = self.get_outer("tie_word_embeddings")
        return ModelShape(
            architecture=str(names[0] if isinstance(names, list) else names),
            model_type=self.model_type,
            hidden_size=hidden,
            intermediate_size=self.size("intermediate_size", 4 * hidden),
            num_layers=self.size("num_hidden_layers", limit=_MAX_LAYERS),
            num_heads=heads,
            num_kv_heads=self._kv_heads(heads),
            head_dim=self.size("head_dim", hidden // heads),
            vocab_size=self.size("vocab_size"),
            max_position_embeddings=self.size("max_position_embeddings"),
            layer_windows=self._windows(),
            dtype=self._dtype(),
            tie_word_embeddings=bool(tied),
            **self._experts(),
            quantization=parse_quantization(self.outer),
            eos_token_ids=_token_ids(self.get_outer("eos_token_id")),
            qkv_bias=family.qkv_bias
            or any(map(self.flag, (*family.attention_bias_fields, *family.qkv_bias_fields))),
            output_bias=any(map(self.flag, family.attention_bias_fields)),
            mlp_bias=any(map(self.flag, family.mlp_bias_fields)),
            gated_mlp=family.gated_mlp,
            qk_norm="full" if self.flag("use_qk_norm") else family.qk_norm,
            norms_per_layer=family.norms_per_layer,
            norm_bias=family.norm_bias,
            expert_bias=family.expert_bias,
            attention_sinks=family.attention_sinks,
            parameters_exact=self.known,
        )

    def _kv_heads(self, heads: int) -> int:
        kv_heads = self.size("num_key_value_heads", heads)
        if heads % kv_heads:
            raise ConfigError(
                f"config field 'num_key_value_heads' {kv_heads} does not divide"
                f" 'num_attention_heads' {heads}"
            )
        return kv_heads

    def _dtype(self) -> str:
        value = self.get_outer("dtype") or "float32"
        return str(value).removeprefix("torch.")

    def _windows(self) -> tuple[int | None, ...]:
        layers = self.size("num_hidden_layers", limit=_MAX_LAYERS)
        kinds = self.get("layer_types")
        if self.get("sliding_window") is None or self.get("use_sliding_window") is False:
            window = None
        else:
            window = self.size("sliding_window")
        if kinds is not None:
            return _windows_of_kinds(kinds, layers, window)
        sliding = self.family.sliding
        if window is None or sliding == "none":
            return (None,) * layers
        if sliding == "all":
            return (window,) * layers
        if sliding == "tail":
            first = self.size("max_window_layers", least=0)
            return tuple(window if i >= first else None for i in range(layers))
        period = self.size("sliding_window_pattern")
        return tuple(window if (i + 1) % period else None for i in range(layers))

    def _experts(self) -> dict[str, Any]:
        experts = self.size("num_experts", 0, least=0)
        if not experts:
            return {}
        layers = self.size("num_hidden_layers", limit=_MAX_LAYERS)
        dense = self.get("mlp_only_layers") or []
        if not isinstance(dense, list):
            raise ConfigError(f"config field 'mlp_only_layers' must be a list, not {dense!r}")
        step = self.size("decoder_sparse_step", 1)
        sparse = [i for i in range(layers) if i not in dense and (i + 1) % step == 0]
        return {
            "num_experts": experts,
            "experts_per_token": self.size("num_experts_per_tok"),
            "moe_intermediate_size": self.size(
                "moe_intermediate_size", self.size("intermediate_size")
            ),
            "num_sparse_layers": len(sparse),
        }


def _first(name: str, *sources: Mapping[str, Any]) -> Any:
    """The field in the first source that names it, under its name or an older one."""
    for source in sources:
        for key in (name, *_ALIASES.get(name, ())):
            if key in source:
                return source[key]
    return None


def _windows_of_kinds(kinds: Any, layers: int, window: int | None) -> tuple[int | None, ...]:
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise ConfigError(f"config field 'layer_types' must be a list of {layers} names")
    for kind in kinds:
        if kind not in ("full_attention", "sliding_attention"):
            raise ConfigError(f"config field 'layer_types': {kind!r} layers are not supported")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _token_ids(value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    ids = value if isinstance(value, list) else [value]
    if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
        raise ConfigError(f"config field 'eos_token_id' must be token ids, not {value!r}")
    return tuple(ids)
