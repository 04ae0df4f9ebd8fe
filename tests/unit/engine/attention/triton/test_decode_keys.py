"""Attention over a cache of float8, against attention written out over the same numbers: in
Triton's interpreter here."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kvasir_engine.device.float8 import FP8
from kvasir_engine.kv.cache_spec import KVScales
from kvasir_engine.runner.prefix_groups import PrefixGroup, PrefixTiles

pytestmark = pytest.mark.slow

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LONG = 700 if DEVICE.type == "cuda" else 200


@pytest.fixture
def fp8_backend(backend, paged):
    """The backend for a cache of float8, with room for one of the longer prompts at a time."""
    from kvasir_engine.attention.triton.widened_pages import WidenedPages

    specs = [paged.make_spec(6, 4, head_dim=64)]
    backend.real._pages = WidenedPages(
        specs, tokens=64, block_size=paged.BLOCK, dtype=torch.float32, device=DEVICE
    )
    return backend


SCALES = KVScales(0.5, 4.0)


@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (6, 1)])
@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("softcap", [None, 1.5])
def test_a_cache_of_float8(paged, fp8_backend, heads, window, softcap) -> None:
    spec = paged.make_spec(*heads, window=window, softcap=softcap)
    paged.check(
        spec,
        fp8_backend,
        decodes=[1, 30, 5, 17, 64],
        prefills=[(7, 7), (3, 40), (60, 60)],
        scales=SCALES,
        tolerance=5e-3,
    )


@pytest.mark.parametrize("head_dim", [16, 24, 64])
@pytest.mark.parametrize("split_kv", [False, True])
@pytest.mark.parametrize("parts", [1, 3])
def test_parts_of_a_cache_of_float8(paged, fp8_backend, head_dim, split_kv, parts) -> None:
    real = fp8_backend.real
    real.decode_tuning = replace(real.decode_tuning, parts=parts)
    spec = paged.make_spec(head_dim=head_dim)
    paged.check(
        spec,
        fp8_backend,
        decodes=[LONG, 33, 2],
        prefills=[(5, 20)],
        split_kv=split_kv,
        scales=SCALES,
        tolerance=5e-3,
    )


@pytest.mark.parametrize("multiprocessors", [2, 60])
@pytest.mark.parametrize(("heads", "per_tile"), [((4, 2), 64), ((8, 1), 16)])
@pytest.mark.parametrize("softcap", [None, 1.5])
def test_common_prefixes_in_float8(
    paged, fp8_backend, heads, per_tile, multiprocessors, softcap
) -> None:
    fp8_backend.real._multiprocessors = multiprocessors
    spec = paged.make_spec(*heads, head_dim=24, softcap=softcap)
    batch, blocks = paged.make_batch([170, 40, 164, 181, 165, 9], [], block=16)
    table = batch.block_table
    table[2, :10] = table[4, :10] = table[0, :10]
    table[3, :2] = table[1, :2]
    groups = [PrefixGroup((0, 2, 4), 10), PrefixGroup((1, 3), 2)]
    torch.manual_seed(0)
    cache = torch.randn(2, blocks, 16, spec.num_kv_heads, 24).to(FP8)
    q = torch.randn(6, spec.num_heads, 24)
    plain = cache.double() * torch.tensor(SCALES).view(2, 1, 1, 1, 1)
    want = paged.written_out(spec, q, plain, batch)
    # What stands in the other entries' own tables of the prefix is not read.
    table[2, 1:10] = table[4, 1:10] = 0
    shared = PrefixTiles(16, per_tile).on_device(groups, 6, DEVICE)
    got = fp8_backend.attend(spec, q, cache, replace(batch, shared=shared), scales=SCALES)
    torch.testing.assert_close(got.double(), want, atol=5e-3, rtol=5e-3)
