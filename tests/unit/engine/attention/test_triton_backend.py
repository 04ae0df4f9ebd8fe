"""The Triton kernels against attention written out in float64: in Triton's interpreter here.

Slots that hold no key are NaN, so that a read out of bounds shows.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kvasir_engine.attention.base import ForwardContext, attend, forward_context
from kvasir_engine.runner.prefix_groups import PrefixGroup, PrefixTiles

pytestmark = pytest.mark.slow

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


LONG = 700 if DEVICE.type == "cuda" else 200
"""Keys of the longest context: in the interpreter, whose tiles are of 16, fewer do the same."""
# Triton's interpreter multiplies no bfloat16.
HALF = torch.bfloat16 if DEVICE.type == "cuda" else torch.float16


@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (6, 1)])
@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("softcap", [None, 1.5])
def test_decodes_and_prefills(paged, backend, heads, window, softcap) -> None:
    spec = paged.make_spec(*heads, window=window, softcap=softcap)
    paged.check(
        spec, backend, decodes=[1, 30, 5, 17, 64], prefills=[(7, 7), (3, 40)], poisoned=True
    )


def sinks_of(heads: int) -> torch.Tensor:
    """Of all weights and of none, in numbers that half precision has."""
    return torch.tensor([-1e4, -1.5, 0.5, 3.0, 9.0, 70.0, -0.5, 1.0])[:heads]


@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (6, 1)])
@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("parts", [1, 3, 64])
def test_sinks(paged, backend, heads, window, parts) -> None:
    backend.real.decode_tuning = replace(backend.real.decode_tuning, parts=parts)
    spec = paged.make_spec(*heads, window=window, sinks=sinks_of(heads[0]))
    paged.check(spec, backend, decodes=[1, 30, 64], prefills=[(7, 7), (3, 40)], poisoned=True)


@pytest.mark.parametrize("decodes", [[1], [LONG, 3, 1, 40]])
def test_sinks_of_contexts_that_differ_much(paged, backend, decodes) -> None:
    spec = paged.make_spec(softcap=1.5, sinks=sinks_of(4))
    paged.check(
        spec, backend, decodes=decodes, prefills=[], poisoned=True, split_kv=True, tolerance=2e-5
    )


@pytest.mark.parametrize("window", [None, 20])
def test_sinks_in_half_precision_in_pages_of_16(paged, backend, window) -> None:
    """On Hopper by its own kernels."""
    spec = paged.make_spec(8, 2, head_dim=64, window=window, sinks=sinks_of(8))
    prefills = [(7, 7), (3, 100), (1, 49), (50, 61)]
    paged.check(
        spec, backend, decodes=[33], prefills=prefills, dtype=HALF, tolerance=3e-2, poisoned=True,
        block=16,
    )  # fmt: skip


@pytest.mark.parametrize("head_dim", [16, 24, 64])
def test_head_sizes_that_are_no_power_of_two(paged, backend, head_dim) -> None:
    spec = paged.make_spec(head_dim=head_dim)
    paged.check(spec, backend, decodes=[33, 2], prefills=[(5, 20)], poisoned=True)


@pytest.mark.parametrize("parts", [1, 3, 64])
def test_any_number_of_parts(paged, backend, parts) -> None:
    backend.real.decode_tuning = replace(backend.real.decode_tuning, parts=parts)
    for window in (None, 20):
        paged.check(paged.make_spec(window=window), backend, decodes=[70, 1, 40], prefills=[])


@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (6, 1)])
@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("decodes", [[1], [LONG, 3, 1, 40], [2, 30, LONG - 20, 17, LONG - 40, 64]])
def test_contexts_that_differ_much(paged, backend, heads, softcap, decodes) -> None:
    spec = paged.make_spec(*heads, softcap=softcap)
    paged.check(
        spec,
        backend,
        decodes=decodes,
        prefills=[(7, 7)],
        poisoned=True,
        split_kv=True,
        tolerance=2e-5,
    )


@pytest.mark.parametrize("extra", [1, 3])
def test_contexts_that_differ_much_in_half_precision(paged, backend, extra, monkeypatch) -> None:
    """Of a part at least a whole entry's, and of few programs."""
    from kvasir_engine.attention.triton import split_kv

    monkeypatch.setattr(split_kv, "MAX_EXTRA_SPLITS", extra)
    for window in (None, 20):
        paged.check(
            paged.make_spec(8, 2, head_dim=64, window=window), backend, decodes=[300, 3, 17],
            prefills=[], dtype=HALF, tolerance=3e-2, poisoned=True, split_kv=True, block=16,
        )  # fmt: skip


def test_a_layer_after_another_finds_no_part_counted(paged, backend) -> None:
    """The last of an entry's programs makes the count what the next layer's want to find."""
    batch, blocks = paged.make_batch([70, 1, 40], [])
    batch.split_kv = True
    batch = paged.move(batch, DEVICE)
    spec = paged.make_spec()
    for _ in range(3):
        cache = torch.randn(2, blocks, paged.BLOCK, spec.num_kv_heads, spec.head_dim)
        q = torch.randn(3, spec.num_heads, spec.head_dim)
        want = paged.written_out(spec, q, cache, paged.move(batch, torch.device("cpu")))
        got = backend.real.attend(spec, q.to(DEVICE), cache.to(DEVICE), batch)
        torch.testing.assert_close(got.cpu().double(), want, atol=1e-5, rtol=1e-5)
        (splits,) = batch.kv_splits.values()
        assert (splits.parts[:, 2] > 1).any()
        assert not splits.arrivals.any()


def test_half_precision(paged, backend) -> None:
    spec = paged.make_spec(window=6)
    paged.check(spec, backend, dtype=HALF, tolerance=3e-2, poisoned=True)


@pytest.mark.parametrize("heads", [(4, 4), (8, 2), (7, 1)])
@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("softcap", [None, 1.5])
def test_half_precision_in_pages_of_16(paged, backend, heads, window, softcap) -> None:
    """On Hopper by its own kernels: parts of pages, prompts over several tiles of keys."""
    spec = paged.make_spec(*heads, head_dim=64, window=window, softcap=softcap)
    prefills = [(7, 7), (3, 100), (1, 49), (16, 16), (50, 61)]
    if DEVICE.type == "cuda":  # tiles of 128 there, of 16 in the interpreter
        prefills = [(7, 7), (3, 300), (1, 129), (16, 16), (150, 161)]
    paged.check(
        spec, backend, decodes=[33], prefills=prefills, dtype=HALF, tolerance=3e-2, poisoned=True,
        block=16,
    )  # fmt: skip


@pytest.mark.parametrize(("head_dim", "block"), [(24, 8), (80, 16), (96, 32), (128, 16), (256, 64)])
def test_half_precision_of_all_head_sizes(paged, backend, head_dim, block) -> None:
    spec = paged.make_spec(head_dim=head_dim)
    prefills = [(30, 130), (65, 65), (2, 2)]
    paged.check(
        spec, backend, decodes=[], prefills=prefills, dtype=HALF, tolerance=3e-2, poisoned=True,
        block=block,
    )  # fmt: skip


@pytest.mark.parametrize("window", [1, 21])
def test_narrow_and_wide_windows(paged, backend, window) -> None:
    spec = paged.make_spec(window=window)
    paged.check(spec, backend, decodes=[1, 22, 64], prefills=[(30, 50)], poisoned=True)


def test_a_long_prefill_over_a_cached_prefix(paged, backend) -> None:
    for window in (None, 9):
        spec = paged.make_spec(window=window)
        paged.check(spec, backend, decodes=[], prefills=[(40, 75), (17, 17), (1, 33)])


def test_lengths_on_the_cpu_may_be_too_high(paged, backend) -> None:
    paged.check(paged.make_spec(window=6), backend, slack=9, prefills=[])


@pytest.mark.parametrize("kv_heads", [1, 2, 3])
def test_attend_writes_new_tokens_before_it_reads_them(paged, backend, kv_heads) -> None:
    batch, blocks = paged.make_batch([9, 2], [(6, 11)])
    spec = paged.make_spec(2 * kv_heads, kv_heads)
    tokens = sum(batch.query_lens_cpu)
    cache = torch.randn(2, blocks, 4, kv_heads, spec.head_dim)
    # As in a model: three views of one projection, whose rows lie apart.
    heads = torch.randn(tokens, 4 * kv_heads, spec.head_dim)
    q, k, v = heads.tensor_split((2 * kv_heads, 3 * kv_heads), dim=1)
    expected = cache.clone()
    for token, slot in enumerate(batch.slot_mapping.tolist()):
        expected[0, slot // 4, slot % 4] = k[token]
        expected[1, slot // 4, slot % 4] = v[token]
    with forward_context(ForwardContext([backend], [cache], [batch], [0])):
        got = attend(spec, q, k, v)
    assert torch.equal(cache, expected)
    want = paged.written_out(spec, q, expected, batch)
    torch.testing.assert_close(got.double(), want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("heads", "softcap", "multiprocessors"),
    [((4, 2), None, 2), ((4, 2), None, 60), ((6, 1), 1.5, 60)],
)
@pytest.mark.parametrize("sinks", [False, True])
def test_common_prefixes_are_attended_to_once(
    paged, backend, heads, softcap, multiprocessors, sinks
) -> None:
    backend.real._multiprocessors = multiprocessors
    of_heads = sinks_of(heads[0]) if sinks else None
    spec = paged.make_spec(*heads, softcap=softcap, sinks=of_heads)
    batch, blocks = paged.make_batch([70, 40, 64, 81, 65, 9], [])
    table = batch.block_table
    table[2, :15] = table[4, :15] = table[0, :15]
    table[3, :8] = table[1, :8]
    groups = [PrefixGroup((0, 2, 4), 15), PrefixGroup((1, 3), 8)]
    shared = batch_with(batch, groups, paged.BLOCK)
    cache = torch.randn(2, blocks, paged.BLOCK, spec.num_kv_heads, spec.head_dim)
    paged.poison(cache, batch)
    # What stands in the other entries' own tables of the prefix is not read.
    table[2, 1:15] = table[4, 1:15] = table[3, 1:8] = 0
    q = torch.randn(6, spec.num_heads, spec.head_dim)
    table_as_it_was = table.clone()
    table_as_it_was[2, :15] = table_as_it_was[4, :15] = table[0, :15]
    table_as_it_was[3, :8] = table[1, :8]
    want = paged.written_out(spec, q, cache, replace(batch, block_table=table_as_it_was))
    got = backend.attend(spec, q, cache, shared)
    torch.testing.assert_close(got.double(), want, atol=1e-5, rtol=1e-5)


def batch_with(batch, groups, block):
    """The batch with its groups' tiles."""
    return replace(
        batch, shared=PrefixTiles(block, 32).on_device(groups, len(batch.seq_lens), DEVICE)
    )


@pytest.mark.parametrize("multiprocessors", [2, 60])
@pytest.mark.parametrize(("heads", "per_tile"), [((4, 2), 64), ((8, 1), 16), ((2, 2), 128)])
def test_common_prefixes_in_half_precision(
    paged, backend, heads, per_tile, multiprocessors
) -> None:
    backend.real._multiprocessors = multiprocessors
    spec = paged.make_spec(*heads, head_dim=64)
    batch, _ = paged.make_batch([170, 40, 164, 281, 165, 9], [], block=16)
    table, blocks = batch.block_table, int(batch.block_table.max()) + 1
    table[2, :10] = table[4, :10] = table[0, :10]
    table[3, :2] = table[1, :2]
    groups = [PrefixGroup((0, 2, 4), 10), PrefixGroup((1, 3), 2)]
    cache = torch.randn(2, blocks, 16, spec.num_kv_heads, 64).to(HALF)
    paged.poison(cache, batch)
    q = torch.randn(6, spec.num_heads, 64).to(HALF)
    want = paged.written_out(spec, q, cache, batch)
    shared = PrefixTiles(16, per_tile).on_device(groups, 6, DEVICE)
    got = backend.attend(spec, q, cache, replace(batch, shared=shared))
    torch.testing.assert_close(got.double(), want, atol=3e-2, rtol=3e-2)


@pytest.mark.parametrize("parts", [1, 8])
def test_the_order_of_decodes_changes_nothing(paged, backend, parts) -> None:
    backend.real.decode_tuning = replace(backend.real.decode_tuning, parts=parts)
    batch, blocks = paged.make_batch([70, 1, 40], [(3, 9)], 0)
    spec = paged.make_spec()
    cache = torch.randn(2, blocks, paged.BLOCK, spec.num_kv_heads, spec.head_dim)
    q = torch.randn(6, spec.num_heads, spec.head_dim)
    want = backend.attend(spec, q, cache, batch)
    ordered = replace(batch, decode_order=torch.tensor([0, 2, 1], dtype=torch.int32))
    assert torch.equal(backend.attend(spec, q, cache, ordered), want)


@pytest.mark.parametrize(("heads", "per_tile"), [((7, 1), 32), ((24, 1), 16), ((3, 1), 32)])
def test_every_entry_of_a_tile_is_computed(paged, backend, heads, per_tile) -> None:
    """Where the entries that a program takes are no divisor of a tile's."""
    spec = paged.make_spec(*heads, head_dim=64)
    batch, _ = paged.make_batch([40] * 20, [], block=16)
    batch.block_table[:, :2] = batch.block_table[0, :2]
    blocks = int(batch.block_table.max()) + 1
    cache = torch.randn(2, blocks, 16, spec.num_kv_heads, 64).to(HALF)
    q = torch.randn(20, spec.num_heads, 64).to(HALF)
    want = paged.written_out(spec, q, cache, batch)
    shared = PrefixTiles(16, per_tile).on_device([PrefixGroup(tuple(range(20)), 2)], 20, DEVICE)
    got = backend.attend(spec, q, cache, replace(batch, shared=shared))
    torch.testing.assert_close(got.double(), want, atol=3e-2, rtol=3e-2)


def test_a_batch_is_divided_once_for_all_layers_of_a_kind(paged, backend) -> None:
    batches = [paged.make_batch([3], [(n, n)])[0] for n in (40, 9)]
    first = [backend.real._prefill_tiles(batch, 16) for batch in batches]
    assert [len(tiles) for tiles in first] == [3, 1]
    assert len(backend.real._prefill_tiles(batches[0], 8)) == 5
    for batch, tiles in zip(batches, first, strict=True):
        assert backend.real._prefill_tiles(batch, 16) is tiles


@pytest.mark.parametrize("window", [None, 5])
def test_prompts_may_be_shorter_than_the_cpu_says(paged, backend, window) -> None:
    """As in a graph that was captured for a longer one."""
    spec = paged.make_spec(head_dim=64, window=window)
    batch, blocks = paged.make_batch([], [(9, 30)], block=16)
    cache = torch.randn(2, blocks, 16, spec.num_kv_heads, 64).to(HALF)
    paged.poison(cache, batch)
    q = torch.randn(9, spec.num_heads, 64).to(HALF)
    want = paged.written_out(spec, q, cache, batch)
    padded = torch.cat([q, torch.full((191, spec.num_heads, 64), float("nan")).to(HALF)])
    got = backend.attend(spec, padded, cache, replace(batch, query_lens_cpu=[200]))
    torch.testing.assert_close(got[:9].double(), want, atol=3e-2, rtol=3e-2)
