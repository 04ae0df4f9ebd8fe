"""Latency model of the simulated runner."""

from __future__ import annotations

import bisect
import itertools
import json
import math
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, get_type_hints

from kvasir_engine.settings import SettingsError

PROFILES = Path(__file__).parents[1] / "assets" / "profiles"
MAX_PROFILE_BYTES = 1 << 20
BLOCK_TOKENS = 16
"""Tokens of one of the blocks that `num_kv_blocks` counts."""


@dataclass(frozen=True, slots=True)
class SpeedProfile:
    """A step's time on one device with one model, fitted to measured parts.

    step = GEMMs(tokens) + KV bytes read by decodes / bandwidth + attention of prompt chunks
    + overhead + small kernels a token. `benchmarks/fit_speed_profile.py` makes one.
    """

    name: str
    source: str
    """Measurement that the profile was fitted to, and its machine."""
    date: str
    gemm_points: tuple[tuple[int, float], ...]
    """(tokens, ms) of all GEMMs of one step; tokens strictly increasing. Linear
    between points, constant below the first, proportional to tokens beyond the last."""
    kv_bytes_per_token: float
    kv_bandwidth_bytes_s: float
    attention_flops_per_pair: float
    """Attention FLOPs of all layers, for each query and a key it attends to."""
    attention_flops_s: float
    overhead_ms: float
    small_us_per_token: float
    num_kv_blocks: int
    """Blocks of 16 tokens, of keys and values of 16 bits, that fit beside the weights."""

    def __post_init__(self) -> None:
        points = self.gemm_points
        tokens = [count for count, _ in points]
        if not points or tokens[0] < 1 or any(a >= b for a, b in itertools.pairwise(tokens)):
            raise SettingsError(
                f"speed profile {self.name!r}: gemm_points must be [tokens, ms] pairs with tokens "
                "increasing from at least 1."
            )
        for name, low in _MINIMUMS.items():
            value = getattr(self, name)
            if not math.isfinite(value) or value < low:
                raise SettingsError(
                    f"speed profile {self.name!r}: {name} must be a finite number of at least "
                    f"{low:g}, got {value}."
                )
        if any(not math.isfinite(ms) or ms < 0 for _, ms in points):
            raise SettingsError(
                f"speed profile {self.name!r}: every time in gemm_points must be at least 0 ms."
            )

    def step_ms(self, tokens: int, context_tokens: float, attention_pairs: float) -> float:
        """Milliseconds of a step over `tokens` tokens.

        `context_tokens` is the summed context of its decodes; `attention_pairs` the (query, key)
        pairs of its prompt chunks: n * (start + n / 2) for n tokens after `start`.
        """
        return (
            self.gemm_ms(tokens)
            + context_tokens * self.kv_bytes_per_token / self.kv_bandwidth_bytes_s * 1e3
            + attention_pairs * self.attention_flops_per_pair / self.attention_flops_s * 1e3
            + self.overhead_ms
            + self.small_us_per_token * tokens / 1e3
        )

    def gemm_ms(self, tokens: int) -> float:
        """Milliseconds of all GEMMs over `tokens` tokens."""
        points = self.gemm_points
        after = bisect.bisect_left(points, (tokens, -math.inf))
        if after == 0:
            return points[0][1]
        if after == len(points):
            count, ms = points[-1]
            return ms * tokens / count
        (left, low), (right, high) = points[after - 1], points[after]
        return low + (high - low) * (tokens - left) / (right - left)

    def over_ranks(self, ranks: int) -> SpeedProfile:
        """Return the profile of `ranks` such devices that share every layer.

        Each does its part of the products and of attention, and holds its part of every block, so
        that there are as many times the blocks. Collectives take no time and weights leave no room
        for further blocks: neither was measured, so steps are too short and blocks too few.
        """
        return replace(
            self,
            gemm_points=tuple((tokens, ms / ranks) for tokens, ms in self.gemm_points),
            kv_bytes_per_token=self.kv_bytes_per_token / ranks,
            attention_flops_per_pair=self.attention_flops_per_pair / ranks,
            num_kv_blocks=ranks * self.num_kv_blocks,
        )

    def with_fp8_cache(self) -> SpeedProfile:
        """The device with keys and values of a byte: twice the blocks, half as much to read."""
        return replace(
            self,
            kv_bytes_per_token=self.kv_bytes_per_token / 2,
            num_kv_blocks=2 * self.num_kv_blocks,
        )

    def to_json(self) -> str:
        """The file that `load` reads."""
        return json.dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def load(cls, name_or_path: str) -> SpeedProfile:
        """A profile by the name of a shipped one or by path. Raises SettingsError."""
        path = Path(name_or_path)
        if path.suffix != ".json":
            path = PROFILES / f"{name_or_path}.json"
            if not path.is_file() or path.parent != PROFILES:
                raise SettingsError(
                    f"--speed-profile {name_or_path}: no shipped profile has this name; use a path "
                    f"that ends in .json, or one of {', '.join(shipped_profiles())}."
                )
        return cls.from_json(_read(path), path)

    @classmethod
    def from_json(cls, text: bytes | str, path: Path) -> SpeedProfile:
        """Parse a profile; `path` names it in errors. Raises SettingsError."""
        try:
            values = json.loads(text)
        except ValueError as error:
            raise SettingsError(f"speed profile {path} is not valid JSON: {error}") from error
        names = [field.name for field in fields(cls)]
        if not isinstance(values, dict) or set(values) != set(names):
            raise SettingsError(
                f"speed profile {path} must be an object with the fields {', '.join(names)} only."
            )
        try:
            hints = get_type_hints(cls)
            return cls(**{name: _typed(hints[name], values[name]) for name in names})
        except (TypeError, ValueError, OverflowError) as error:
            if isinstance(error, SettingsError):
                raise
            raise SettingsError(f"speed profile {path}: {error}") from error


_MINIMUMS = {
    "kv_bytes_per_token": 0.0,
    "kv_bandwidth_bytes_s": 1.0,
    "attention_flops_per_pair": 0.0,
    "attention_flops_s": 1.0,
    "overhead_ms": 0.0,
    "small_us_per_token": 0.0,
    "num_kv_blocks": 2,
}


def shipped_profiles() -> list[str]:
    """Names that `SpeedProfile.load` knows."""
    return sorted(path.stem for path in PROFILES.glob("*.json"))


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > MAX_PROFILE_BYTES:
            raise SettingsError(f"speed profile {path} is larger than {MAX_PROFILE_BYTES} bytes.")
        return path.read_bytes()
    except OSError as error:
        raise SettingsError(f"speed profile {path} cannot be read: {error.strerror}.") from error


def _typed(wanted: Any, value: Any) -> Any:
    if wanted in (int, float, str):
        if isinstance(value, bool) or isinstance(value, str) is not (wanted is str):
            raise TypeError(f"{value!r} is not a {wanted.__name__}.")
        return wanted(value)
    return tuple((int(tokens), float(ms)) for tokens, ms in value)
