"""A float8 cache's pages in the model's type, by the kernel in Triton's interpreter."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from kvasir_engine.device.float8 import FP8
from kvasir_engine.kv.cache_spec import KVScales

BLOCK = 4
SCALES = KVScales(0.5, 2.0)
CPU = torch.device("cpu")


@pytest.fixture
def make_pages(triton_interpreter, paged):
    from kvasir_engine.attention.triton.widened_pages import WidenedPages

    def make(tokens: int, spec=None) -> WidenedPages:
        specs = [spec or paged.make_spec()]
        return WidenedPages(specs, tokens=tokens, block_size=BLOCK, dtype=torch.float32, device=CPU)

    return make


def quantized_cache(spec, blocks: int) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(2, blocks, BLOCK, spec.num_kv_heads, spec.head_dim).to(FP8)


@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize("prefills", [[(7, 30)], [(7, 7), (3, 40), (33, 33)]])
def test_every_key_that_is_seen_stands_where_the_table_says(
    paged, make_pages, prefills, window
) -> None:
    spec = paged.make_spec(window=window)
    batch, blocks = paged.make_batch([5, 9], prefills)
    cache = quantized_cache(spec, blocks)
    pages = make_pages(100, spec)
    (portion,) = pages.portions(batch)
    widened = pages.fill(spec, cache, batch, portion, SCALES)
    for entry, (new, length) in enumerate(prefills, start=2):
        first = 0 if window is None else max(0, length - new - window + 1)
        for position in range(first, length):
            page, slot = divmod(position, BLOCK)
            for part, scale in enumerate(SCALES):
                got = widened[part, portion.block_table[entry, page], slot]
                want = cache[part, batch.block_table[entry, page], slot].float() * scale
                assert torch.equal(got, want)


def test_what_does_not_fit_at_once_comes_in_portions(paged, make_pages) -> None:
    lengths = [20, 24, 4, 40]
    batch, _ = paged.make_batch([3], [(n, n) for n in lengths])
    pages = make_pages(48)
    portions = pages.portions(batch)
    spans = [(p.num_decodes, len(p.query_lens_cpu)) for p in portions]
    assert spans == [(1, 4), (4, 5)]
    assert all(before[1] == after[0] for before, after in pairwise(spans))
    for portion, (start, end) in zip(portions, spans, strict=True):
        used = [
            int(page)
            for entry in range(start, end)
            for page in portion.block_table[entry, : -(-lengths[entry - 1] // BLOCK)]
        ]
        assert sorted(used) == list(range(len(used)))
        assert len(used) <= pages.blocks
    # Once for all layers.
    assert pages.portions(batch) is portions
