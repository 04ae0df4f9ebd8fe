"""Format of quantised linear weights: as a checkpoint's `quantization_config` says, or a user asks.

What a format is called differs between the tools that write checkpoints; here it is described by
what arithmetic needs to know.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum


class Numbers(StrEnum):
    """Type of a stored number."""

    FP8 = "fp8"
    """Float8 e4m3, finite only: at most 448."""
    INT4 = "int4"
    MXFP4 = "mxfp4"
    """Float4 e2m1 with a power of two for each 32 inputs."""


class Packing(StrEnum):
    """Layout of several numbers of less than a byte in one integer of a checkpoint."""

    NONE = "none"
    AWQ = "awq"
    GPTQ = "gptq"
    COMPRESSED_TENSORS = "compressed-tensors"
    MXFP4 = "mxfp4"


class Scales(StrEnum):
    """Which weights share a scale."""

    TENSOR = "tensor"
    CHANNEL = "channel"
    """All inputs of an output."""
    GROUP = "group"
    """`group` inputs of an output."""
    BLOCK = "block"
    """`block` outputs times inputs."""


class Activations(StrEnum):
    """Way of quantising the inputs of a quantised layer; None stands for not at all."""

    PER_TOKEN = "per_token"  # noqa: S105 (a token of text)
    """Each token by its own largest number, as it comes."""
    PER_TENSOR = "per_tensor"
    """All of a step's tokens by their largest number, as it comes."""
    STATIC = "static"
    """By a scale that stands in the checkpoint."""
    PER_GROUP = "per_group"
    """Each token's groups of `block[1]` inputs, as they come."""


@dataclass(frozen=True, slots=True)
class Quantization:
    """Formats of the linear layers' weights and of what they multiply."""

    method: str
    """Name for people: "fp8", "awq", "gptq", "compressed-tensors", "modelopt", "mxfp4"."""
    numbers: Numbers
    scales: Scales
    activations: Activations | None = None
    group: int = 0
    """Inputs that share a scale where scales are of groups; 0 elsewhere."""
    block: tuple[int, int] | None = None
    """Outputs and inputs that share a scale where scales are of blocks."""
    symmetric: bool = True
    """False when each group has a zero point."""
    packing: Packing = Packing.NONE
    reordered: bool = False
    """True when GPTQ quantised inputs in another order than they stand ("desc_act")."""
    online: bool = False
    """True when the checkpoint holds plain weights, which are quantised as they are loaded."""
    kv_cache: Numbers | None = None
    """Type that the checkpoint has KV scales for."""
    ignored: tuple[str, ...] = ()
    """Modules that stay plain with all in them: names, parts of names between dots, or "re:" and a
    pattern that a name begins with."""

    @property
    def summary(self) -> str:
        """One phrase for people, such as "awq (int4, groups of 128)"."""
        shares = f"a scale a {self.scales}"
        if self.scales is Scales.GROUP:
            shares = f"groups of {self.group}"
        elif self.block is not None:
            shares = "blocks of {} x {}".format(*self.block)
        numbers = "" if self.numbers == self.method else f"{self.numbers}, "
        return f"{self.method} ({numbers}{shares}{', made at load' if self.online else ''})"

    def applies_to(self, module: str) -> bool:
        """Return True unless `module`, by its name in the checkpoint, stays plain."""
        return not any(_matches(module, pattern) for pattern in self.ignored)


def _matches(module: str, pattern: str) -> bool:
    if pattern.startswith("re:"):
        return re.match(pattern[3:], module) is not None
    return f".{pattern}." in f".{module}."
