"""Build a simulated runner from the settings: sizes from config.json, speed from a profile."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kvasir.models.hf_config import ConfigError, load_config, parse_shape
from kvasir.models.kv_cache_dtype import (
    FP8_KV,
    FP8_KV_CAPABILITY,
    resolve_kv_cache_dtype,
)
from kvasir.models.model_shape import ModelShape
from kvasir_engine.kv.cache_spec import KVCacheSpec
from kvasir_engine.kv.groups import group_layers
from kvasir_engine.settings import EngineSettings, SettingsError
from kvasir_engine.sim.latency_model import BLOCK_TOKENS, SpeedProfile
from kvasir_engine.sim.sim_runner import SimRunner
from kvasir_engine.startup.built_runner import BuiltRunner, StartupTimer, context_length

MAX_TOKENIZER_BYTES = 128 << 20


def build_sim_runner(settings: EngineSettings, model_dir: Path) -> BuiltRunner:
    """A simulated runner for the model whose config.json lies in `model_dir`.

    Its KV pool has the profile's size unless `settings.cache.num_blocks` says otherwise. Raises
    SettingsError.
    """
    timer = StartupTimer()
    with timer.phase("profile"):
        profile = SpeedProfile.load(settings.speed_profile)
        profile = profile.over_ranks(settings.tensor_parallel_size)
    with timer.phase("config"):
        try:
            shape = parse_shape(settings.overrides.apply(load_config(model_dir)))
        except ConfigError as error:
            raise SettingsError(str(error)) from error
        ordinary = ordinary_tokens(model_dir, shape)
    specs = [KVCacheSpec(shape.num_kv_heads, shape.head_dim, w) for w in shape.layer_windows]
    dtype = shape.dtype if settings.dtype == "auto" else settings.dtype
    kv_dtype = resolve_kv_cache_dtype(
        settings.cache.kv_cache_dtype, shape.quantization, dtype, FP8_KV_CAPABILITY
    )
    if kv_dtype == FP8_KV:
        profile = profile.with_fp8_cache()
    groups = group_layers(specs, settings.cache.block_size, kv_dtype)
    blocks = settings.cache.num_blocks or max(
        2, profile.num_kv_blocks * BLOCK_TOKENS // settings.cache.block_size
    )
    runner = SimRunner(
        profile,
        num_rows=settings.scheduler.max_num_seqs,
        vocab_size=shape.vocab_size,
        ordinary=ordinary,
    )
    return BuiltRunner(
        runner,
        groups,
        [blocks] * len(groups),
        _fit_context(settings, shape, blocks),
        shape.vocab_size,
        timer.seconds,
        dtype=dtype,
        quantization=shape.quantization_method,
    )


def _fit_context(settings: EngineSettings, shape: ModelShape, blocks: int) -> int:
    """The context asked for, or the longest that the pool holds when none was."""
    wanted = context_length(settings, shape)
    fitting = (blocks - 1) * settings.cache.block_size
    if settings.max_model_len is not None and wanted > fitting:
        raise SettingsError(
            f"--max-model-len {wanted} does not fit: the simulated KV cache holds {fitting} "
            "tokens. Lower it, or use a speed profile with a larger num_kv_blocks."
        )
    return min(wanted, fitting)


def ordinary_tokens(model_dir: Path, shape: ModelShape) -> range:
    """The longest run of token ids that are plain text: no added, special or end token.

    Known from tokenizer.json where there is one; otherwise only the end tokens are avoided.
    Raises SettingsError for a vocabulary with no such id.
    """
    reserved = set(shape.eos_token_ids)
    size = shape.vocab_size
    tokenizer = _read_tokenizer(model_dir / "tokenizer.json")
    if tokenizer is not None:
        vocabulary = tokenizer["model"]["vocab"]
        size = min(size, len(vocabulary))
        reserved |= {int(token["id"]) for token in tokenizer.get("added_tokens", ())}
    longest = max(_gaps(reserved, size), key=len, default=range(0))
    if not longest:
        raise SettingsError(f"{model_dir} describes a vocabulary of special tokens only.")
    return longest


def _gaps(reserved: Iterable[int], size: int) -> list[range]:
    """The runs of ids between reserved ones, below `size`."""
    edges = [-1, *sorted(token for token in reserved if token < size), size]
    return [range(low + 1, high) for low, high in itertools.pairwise(edges)]


def _read_tokenizer(path: Path) -> Any:
    """The parsed tokenizer.json, or None when there is none."""
    if not path.is_file():
        return None
    if path.stat().st_size > MAX_TOKENIZER_BYTES:
        raise SettingsError(f"{path} is larger than {MAX_TOKENIZER_BYTES} bytes.")
    try:
        tokenizer = json.loads(path.read_bytes())
        len(tokenizer["model"]["vocab"])
    except (ValueError, KeyError, TypeError) as error:
        raise SettingsError(
            f"{path} is not a tokenizer.json with a vocabulary under model.vocab."
        ) from error
    return tokenizer
