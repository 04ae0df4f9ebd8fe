"""Numbers of 4 bits as floating-point ones: what the PTX for GPUs computes, instruction by
instruction, since Triton's interpreter runs none. Kernels' own tests cover the other way."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch


def emulated(asm: str, given: dict[str, int], dtype: torch.dtype) -> int:
    """The 32 bits that PTX leaves in $0."""
    bits = {"f16x2": torch.float16, "bf16x2": torch.bfloat16}
    registers = dict(given)

    def halves(value: int) -> torch.Tensor:
        signed = [part - (1 << 16) * (part >> 15) for part in (value & 0xFFFF, value >> 16)]
        return torch.tensor(signed, dtype=torch.int16).view(dtype).double()

    def selected(a: int, b: int, order: int) -> int:
        bytes_of = (a | b << 32).to_bytes(8, "little")
        picked = bytes(bytes_of[order >> 4 * at & 7] for at in range(4))
        return int.from_bytes(picked, "little")

    def fused(a: int, b: int, c: int) -> int:
        out = (halves(a) * halves(b) + halves(c)).to(dtype).view(torch.int16)
        low, high = (int(part) & 0xFFFF for part in out)
        return low | high << 16

    run: dict[str, Callable[..., int]] = {
        "mov.b32": lambda a: a,
        "prmt.b32": selected,
        "shl.b32": lambda a, n: a << n & 0xFFFFFFFF,
        "shr.u32": lambda a, n: a >> n,
        "lop3.b32": lambda a, b, c, table: {0xEA: a & b | c}[table],
        f"fma.rn.{next(kind for kind, each in bits.items() if each == dtype)}": fused,
    }
    for line in re.findall(r"^\s*(\w[^;{}]*);", asm, re.MULTILINE):
        operation, _, operands = line.partition(" ")
        target, *sources = [each.strip() for each in operands.split(",")]
        registers[target] = run[operation](
            *(registers[each] if each in registers else int(each, 0) for each in sources)
        )
    return registers["$0"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("nibble", range(8))
def test_pairs_of_numbers_are_exact(nibble: int, dtype: torch.dtype) -> None:
    from kvasir_engine.kernels.int4.int4_decoding import pair_asm

    asm = pair_asm(nibble, dtype == torch.bfloat16).replace(".reg .b32 n, one, mask;", "")
    for first in range(16):
        second, zero = (first + 5) % 16, (3 * first) % 16
        # Neighbours are all ones and all zeros, which must not reach into the number.
        words = [0xFFFFFFFF & ~(15 << 4 * nibble) | first << 4 * nibble, second << 4 * nibble]
        less = torch.tensor([-1 - zero / 16] * 2, dtype=dtype).view(torch.int16)
        packed = int(less[0]) & 0xFFFF
        given = {"$1": words[0], "$2": words[1], "$3": packed | packed << 16}

        out = emulated(asm, given, dtype)

        got = torch.tensor([out - (1 << 32) * (out >> 31)], dtype=torch.int32).view(dtype)
        assert (16 * got.double()).tolist() == [first - zero, second - zero]
