from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.slow

BEGIN = """
import torch
from kvasir_engine.startup.precompile.shape_only_tensor import ShapeOnlyTensor, ShapeOnlyMode

def seen(x):
    return [str(x.device), str(x.dtype), list(x.shape), list(x.stride()), x.data_ptr()]
"""


def test_tensors_of_the_device_have_shapes_and_addresses(without_gpu: Callable[..., Any]) -> None:
    program = """
with ShapeOnlyMode(torch.device("cuda")), torch.inference_mode():
    x = torch.empty(4, 6, dtype=torch.bfloat16, device=device)
    tail = x[1:, 2:]
    product = torch.nn.functional.linear(x, torch.empty(8, 6, dtype=x.dtype, device=device))
    picked = tail[torch.zeros(5, dtype=torch.long, device=device)]
print(json.dumps([seen(each) for each in (x, tail, product, picked)]))
"""
    half = ["cuda:0", "torch.bfloat16"]
    assert without_gpu(BEGIN + program) == [
        [*half, [4, 6], [6, 1], 0],
        [*half, [3, 4], [6, 1], 16],
        [*half, [4, 8], [8, 1], 0],
        [*half, [5, 4], [4, 1], 0],
    ]


def test_the_hosts_tensors_keep_their_values(without_gpu: Callable[..., Any]) -> None:
    program = """
with ShapeOnlyMode(device):
    here = torch.arange(3) + 1
    there = here.to(device, non_blocking=True)
    pinned = torch.empty(2, pin_memory=True)
print(json.dumps([here.tolist(), type(there).__name__, str(there.device), pinned.numel()]))
"""
    assert without_gpu(BEGIN + program) == [[1, 2, 3], "ShapeOnlyTensor", "cuda:0", 2]


def test_what_works_in_place_returns_its_argument(without_gpu: Callable[..., Any]) -> None:
    program = """
with ShapeOnlyMode(device), torch.inference_mode():
    x = torch.empty(4, device=device)
    same = [x.zero_() is x, x.copy_(torch.ones(4)) is x, x.view(4) is x]
print(json.dumps(same))
"""
    assert without_gpu(BEGIN + program) == [True, True, False]


def test_nothing_is_computed_with_them_afterwards(without_gpu: Callable[..., Any]) -> None:
    program = """
with ShapeOnlyMode(device):
    x = torch.empty(4, device=device)
try:
    x + 1
except RuntimeError as error:
    print(json.dumps(str(error)))
"""
    assert "aten.add.Tensor met a tensor without values" in without_gpu(BEGIN + program)


def test_shapes_are_torchs_and_symbols_are_not_imported(without_gpu: Callable[..., Any]) -> None:
    program = """
def made(device):
    x = torch.empty(6, 4, 8, dtype=torch.bfloat16, device=device)
    rows = torch.tensor([1, 3, 5]).to(device)
    weight = torch.empty(5, 8, dtype=torch.bfloat16, device=device)
    bias = torch.empty(5, dtype=torch.bfloat16, device=device)
    linear = torch.nn.functional.linear
    yield from (x[rows], x[rows[:, None]], linear(x, weight), linear(x, weight, bias))
    yield from (torch.empty_like(x), torch.arange(7, device=device))
    yield torch.arange(7, dtype=torch.int32, device=device)

def shapes(device):
    return [[list(x.shape), list(x.stride()), str(x.dtype)] for x in made(device)]

with torch.inference_mode():
    with ShapeOnlyMode(device):
        ours = shapes(device)
    symbols = "sympy" in sys.modules
    print(json.dumps([ours == shapes(torch.device("cpu")), symbols]))
"""
    assert without_gpu(BEGIN + program) == [True, False]


def test_scaled_products_have_the_type_that_is_asked_for(without_gpu: Callable[..., Any]) -> None:
    program = """
with torch.inference_mode(), ShapeOnlyMode(device):
    x, weight = (torch.empty(n, 16, dtype=torch.float8_e4m3fn, device=device) for n in (3, 32))
    of_rows, of_outputs = torch.empty(3, 1, device=device), torch.empty(1, 32, device=device)
    out = torch._scaled_mm(x, weight.t(), of_rows, of_outputs, out_dtype=torch.bfloat16)
    print(json.dumps([list(out.shape), str(out.dtype), str(out.device)]))
"""
    shape, dtype, device = without_gpu(BEGIN + program)
    assert (shape, dtype) == ([3, 32], "torch.bfloat16")
    assert device.startswith("cuda")
