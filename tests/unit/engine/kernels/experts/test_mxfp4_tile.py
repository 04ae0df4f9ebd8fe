"""The instructions that unpack MXFP4, carried out here one by one as PTX defines them, and the
kernel compiled for GPUs that are not here."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
import torch

from kvasir_engine.quantization.mxfp4 import NUMBERS, repacked


def bf16(bits: int) -> float:
    return float(struct.unpack("<f", struct.pack("<I", (bits & 0xFFFF) << 16))[0])


def bits_of(value: float) -> int:
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    assert bits & 0xFFFF == 0, "bfloat16 does not have it"
    return int(bits >> 16)


def fma(a: int, b: int, c: int) -> int:
    assert c == 0x80008000
    halves = (bits_of(bf16(a >> shift) * bf16(b >> shift)) << shift for shift in (0, 16))
    return sum(halves)


def run(program: str, inputs: dict[str, int]) -> dict[str, int]:
    """Registers after the instructions, of which `lop3` computes a & b | c."""
    registers = dict(inputs)
    operations: dict[str, Callable[..., int]] = {
        "mov.b32": lambda a: a,
        "shr.b32": lambda a, n: a >> n,
        "shl.b32": lambda a, n: a << n & 0xFFFFFFFF,
        "and.b32": lambda a, b: a & b,
        "lop3.b32": lambda a, b, c, table: {0xEA: a & b | c}[table],
        "fma.rn.bf16x2": fma,
    }
    for line in program.strip(" {}\n").splitlines():
        name, _, rest = line.strip().rstrip(";").partition(" ")
        if name == ".reg":
            continue
        to, *given = rest.split(", ")
        values = [registers[each] if each in registers else int(each, 0) for each in given]
        registers[to] = operations[name](*values)
    return registers


def two(bits: int) -> list[float]:
    return [bf16(bits), bf16(bits >> 16)]


@pytest.mark.parametrize("scale", [59, 100, 127, 130, 191])
def test_two_words_are_eight_numbers_times_their_scale(triton_interpreter, scale: int) -> None:
    from kvasir_engine.kernels.experts import mxfp4_tile

    values = [*NUMBERS, *(-number for number in NUMBERS)]
    factor = ((scale + 62) << 7) * 0x10001
    share = mxfp4_tile.FAST_SHARE.value * 2.0 ** (scale - 127)
    for _ in range(200):
        codes = torch.randint(0, 16, (32,)).to(torch.uint8)
        packed = repacked(codes[::2] | (codes[1::2] << 4))
        word = int.from_bytes(bytes(packed[:4].tolist()), "little")

        found = run(mxfp4_tile._UNPACK.value, {"$4": word, "$5": factor})

        for number, register in enumerate(("$0", "$1", "$2", "$3")):
            first = 8 * number
            want = [values[code] * share for code in codes[first : first + 2].tolist()]
            assert two(found[register]) == want


COMPILE = """
from kvasir_engine.kernels.experts import clamped_experts as kernels

capability, most = {numbers}
types = dict(
    x_ptr="*bf16", w_ptr="*i16", scale_ptr="*u8", bias_ptr="*bf16", out_ptr="*bf16", n_size="i32",
    k_size="i32", num_experts="i32", tokens="i32",
)
found = []
for tuning in (*kernels.TILES.values(), kernels.LARGEST_TILES):
    tuning = kernels.fitted(tuning, 2, int(0.88 * most), packed=True)
    for gated in (True, False):
        constants = dict(
            TOP_K=4, GATED=gated, BIASED=True, PACKED=True, ALPHA=1.702, LIMIT=7.0, BM=tuning.rows,
            BN=tuning.outputs, BK=tuning.inputs, EVEN=False, FAST=True, STAGES=tuning.stages,
            PDL=capability >= 90,
        )
        types["weights_ptr"] = "*bf16" if gated else "*fp32"
        options = dict(num_warps=tuning.warps, num_stages=tuning.stages)
        made = compiled(kernels._clamped_experts, constants, types, capability, **options)
        found.append(made.metadata.shared)
print(max(found))
"""


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 86, 90])
def test_it_compiles_within_a_multiprocessors_memory(
    capability: int, compiled_elsewhere: Callable[..., str], program_bytes: dict[int, int]
) -> None:
    most = program_bytes[capability]
    assert 0 < int(compiled_elsewhere(COMPILE.format(numbers=(capability, most)))) <= most
