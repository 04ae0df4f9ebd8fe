"""How many units are on their way at once. What is computed, tests of the kernels say."""

from __future__ import annotations

import pytest
import torch
from support.engines.int4_checkpoints import Rounding, random_int4
from torch.nn.functional import linear

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize(
    ("outputs", "rows", "dtype", "kib", "stages"),
    [
        (64, 64, torch.bfloat16, 227, 3),
        (64, 64, torch.float32, 227, 3),
        (64, 64, torch.float32, 99, 2),
        (256, 128, torch.float32, 227, 2),
        (256, 128, torch.float32, 99, 1),
        (256, 256, torch.float32, 99, 1),
    ],
)
def test_stages_fit_the_shared_memory(
    triton_interpreter, monkeypatch, outputs: int, rows: int, dtype, kib: int, stages: int
) -> None:
    from kvasir_engine.kernels.int4 import int4_products

    monkeypatch.setattr(int4_products, "tile_bytes", lambda _: int(0.88 * (kib << 10)))
    x = torch.zeros(1, 1, dtype=dtype)
    assert int4_products.fitted_stages(3, outputs, x, rows) == stages


def test_of_one_stage(triton_interpreter, monkeypatch) -> None:
    from kvasir_engine.kernels.int4 import int4_linear, int4_products

    monkeypatch.setattr(int4_products, "tile_bytes", lambda _: 0)
    weight, matrix = random_int4(16, 256, Rounding(64), device=DEVICE)
    x = torch.randn(3, 256)

    got = int4_linear.int4_linear(x.to(DEVICE), weight, None)

    torch.testing.assert_close(got.cpu(), linear(x, matrix), atol=1e-3, rtol=1e-4)
