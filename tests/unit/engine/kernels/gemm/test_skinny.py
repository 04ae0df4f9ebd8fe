"""Linear layers of few tokens against torch's, and the table that says which are computed so."""

from __future__ import annotations

import json

import pytest
import torch
from torch.nn.functional import gelu, linear, silu

from kvasir_engine.device.float8 import FP8
from kvasir_engine.device.gpu_kind import GpuKind
from kvasir_engine.kernels.quantized_rows import QuantizedRows, quantized_by_torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def skinny(triton_interpreter):
    from kvasir_engine.kernels.gemm import skinny as skinny_gemm

    return skinny_gemm


@pytest.mark.parametrize("tokens", [1, 3, 16])
@pytest.mark.parametrize("gate", [None, "silu", "gelu_tanh"])
@pytest.mark.parametrize("biased", [False, True])
def test_products(skinny, tokens: int, gate: str | None, biased: bool) -> None:
    # Rows of a wider tensor, and NaN behind the last one.
    wide = torch.full((tokens + 1, 160), float("nan"))
    x = wide[:tokens, :128]
    x.copy_(torch.randn(tokens, 128))
    weight = torch.randn(64, 128) / 12
    bias = torch.randn(64) if biased else None
    want = linear(x, weight, bias)
    if gate is not None:
        first, up = want.chunk(2, dim=-1)
        want = (silu(first) if gate == "silu" else gelu(first, approximate="tanh")) * up
    tuning = skinny.SkinnyTuning(outputs=16, inputs=32, warps=1, stages=2, prefetched=128)
    moved = wide.to(DEVICE)[:tokens, :128]
    got = skinny.skinny_linear(
        moved,
        weight.to(DEVICE),
        None if bias is None else bias.to(DEVICE),
        tuning,
        gate=gate,
    )
    torch.testing.assert_close(got.cpu(), want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("tokens", [1, 5])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("parts", [2, 3])
def test_parts_of_sums(skinny, tokens: int, biased: bool, parts: int) -> None:
    # Seven times 32 inputs, which no number of parts here divides.
    x, weight = torch.randn(tokens, 224), torch.randn(64, 224) / 12
    bias = torch.randn(64) if biased else None
    tuning = skinny.SkinnyTuning(16, 32, 1, 2, prefetched=0, parts=parts)
    moved = [None if each is None else each.to(DEVICE) for each in (x, weight, bias)]
    got = skinny.skinny_parts_of(*moved, tuning)
    assert got.shape == (parts, tokens, 64)
    assert got.dtype == torch.float32
    assert all(part.abs().sum() > 0 for part in got)
    torch.testing.assert_close(got.sum(0).cpu(), linear(x, weight, bias), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("tokens", [1, 5])
@pytest.mark.parametrize("gate", [None, "silu"])
@pytest.mark.parametrize("biased", [False, True])
def test_products_in_float8(skinny, tokens: int, gate: str | None, biased: bool) -> None:
    x, weight, scales, bias = in_float8(tokens, biased)
    want = dequantized(x, weight, scales, bias)
    if gate is not None:
        first, up = want.chunk(2, dim=-1)
        want = silu(first) * up
    tuning = skinny.SkinnyTuning(16, 32, 1, 2, prefetched=128)
    operands = moved(x, weight, scales, bias)

    got = skinny.skinny_fp8_linear(*operands, tuning, dtype=torch.float32, gate=gate)

    torch.testing.assert_close(got.cpu(), want, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("tokens", [1, 5])
def test_parts_of_sums_in_float8(skinny, tokens: int) -> None:
    x, weight, scales, bias = in_float8(tokens, biased=True)
    tuning = skinny.SkinnyTuning(16, 32, 1, 2, prefetched=0, parts=3)

    got = skinny.skinny_fp8_parts_of(*moved(x, weight, scales, bias), tuning)

    assert got.shape == (3, tokens, 64)
    want = dequantized(x, weight, scales, bias)
    torch.testing.assert_close(got.sum(0).cpu(), want, atol=1e-4, rtol=1e-4)


def in_float8(tokens: int, biased: bool):
    x, weight = quantized_by_torch(torch.randn(tokens, 224)), torch.randn(64, 224).to(FP8)
    return x, weight, torch.rand(64) / 12, torch.randn(64) if biased else None


def dequantized(x, weight, scales, bias):
    wide = x.values.float() * x.scales[:, None], weight.float() * scales[:, None]
    return linear(*wide, bias)


def moved(x, *others):
    on_device = [None if each is None else each.to(DEVICE) for each in others]
    return QuantizedRows(x.values.to(DEVICE), x.scales.to(DEVICE)), *on_device


def test_every_part_has_inputs(skinny) -> None:
    def fits(inputs: int, parts: int, prefetched: int = 0) -> bool:
        return skinny.fits(64, inputs, skinny.SkinnyTuning(16, 32, 1, 2, prefetched, parts))

    assert fits(224, 3)
    assert not fits(128, 3), "two times 32 inputs for each of two parts leave the third none"
    assert fits(224, 2, 96)
    assert not fits(224, 2, 128), "beyond the second part's last input"


WON, LOST = [64, 512, "plain", 8, 16, 128, 1, 4, 512], [64, 2048, "plain", 8]


@pytest.mark.parametrize(
    ("shape", "wins"),
    [
        ((64, 512), True),
        ((64, 640), True),  # by a factor of 1.25 as the one that won
        ((128, 512), True),
        ((64, 2048), False),
        ((64, 1536), False),  # nearer to the one that lost
        ((144, 512), False),  # like none
        ((60, 512), False),  # its outputs do not divide into the tuning's
    ],
)
def test_a_shape_is_computed_as_the_most_similar_one(
    skinny, tmp_path, shape: tuple[int, int], wins: bool
) -> None:
    from kvasir_engine.kernels.gemm.skinny_table import SkinnyTable

    file = tmp_path / "gpu.json"
    file.write_text(json.dumps([WON, LOST]))
    table = SkinnyTable.read(file)
    tuning = skinny.SkinnyTuning(16, 128, 1, 4, 512)
    for _ in range(2):
        assert table.tuning((*shape, "plain", 8)) == (tuning if wins else None)
    assert table.tuning((*shape, "plain", 16)) is None, "not measured for so many tokens"
    assert table.tuning((*shape, "gated", 8)) is None, "not measured with a gate"


def test_the_next_similar_one_stands_in_where_the_kernel_does_not_fit(skinny, tmp_path) -> None:
    from kvasir_engine.kernels.gemm.skinny_table import SkinnyTable

    file = tmp_path / "gpu.json"
    file.write_text(
        json.dumps([[64, 512, "plain", 8, 32, 128, 1, 4, 512], [*WON[:1], 576, *WON[2:]]])
    )
    assert SkinnyTable.read(file).tuning((48, 512, "plain", 8)) == skinny.SkinnyTuning(
        16, 128, 1, 4, 512
    )


def test_numbers_of_tokens_share_a_measurement(skinny) -> None:
    from kvasir_engine.kernels.gemm.skinny_table import bucket

    assert [bucket(n) for n in (1, 2, 8, 9, 16, 17, 64)] == [1, 8, 8, 16, 16, 32, 64]


@pytest.fixture
def table_on(skinny, monkeypatch):
    """table_on(kind, kib): the table of a GPU that is not here, with so much shared memory."""
    from kvasir_engine.kernels.gemm import skinny_table

    def read(kind: GpuKind, kib: int = 227):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "GPU")
        monkeypatch.setattr(skinny_table, "gpu_kind", lambda _: kind)
        monkeypatch.setattr(skinny_table, "program_bytes", lambda _: kib << 10)
        return skinny_table._table.__wrapped__(torch.device("cuda", 0)).measured

    return read


def test_a_gpu_without_a_table_takes_the_nearest_one(table_on, caplog) -> None:
    caplog.set_level("INFO")
    measured = table_on(GpuKind(9, 0, 132, 4920))
    assert measured[28672, 4096, "gated", 16] is not None
    assert caplog.text == "", "H200s tell of 4,810 and of 4,920 GB/s"
    assert table_on(GpuKind(9, 0, 132, 5500)) == measured
    assert "as measured on skinny-9.0" in caplog.text


def test_another_capability_leaves_few_tokens_to_cublas(table_on, caplog) -> None:
    caplog.set_level("INFO")
    assert table_on(GpuKind(8, 9, 58, 300), 99) == {}
    assert "measured on no GPU like GPU (8.9-58sm-300gbs)" in caplog.text


def test_tiles_that_do_not_fit_are_left_out(table_on, skinny) -> None:
    kind = GpuKind(9, 0, 132, 4920)
    some, every = ({k: t for k, t in table_on(kind, kib).items() if t} for kib in (99, 227))
    assert 0 < len(some) < len(every)
    assert all(tuning.bytes(key[3], key[2] == "gated") <= 99 << 10 for key, tuning in some.items())
