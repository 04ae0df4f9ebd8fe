"""Warps of a program of `paged_attention.py`, in Gluon for compute capability 9.0.

A producer warp has pages of keys and values copied into shared memory, a few tiles ahead. Two
consumers of four warps each attend to them with 64 queries: while the tensor cores mix one tile's
values a consumer weighs the next tile's scores, and while one consumer weighs the other's products
are computed (FlashAttention-3, Shah et al., 2024).

The last page of a sequence may have slots that nobody wrote. It is copied from `shift` slots before
its begin, which lie outside the tensor and read as zeros, so that its keys come last in it; for a
page behind it a block is copied that lies outside.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

LOG2_E = gl.constexpr(1.4426950408889634)
MIN_RUNNING_MAX = gl.constexpr(-1e20)
"""Start of running maxima."""
MASKED_SCORE = gl.constexpr(-1e30)
"""Score of a key that a query does not see: so far below `MIN_RUNNING_MAX` that its weight is 0."""
NO_POSITION = gl.constexpr(0x7FFFFFFF)
CHANNELS = gl.constexpr(64)
"""Channels of a page that one copy brings: 128 bytes beside each other, as swizzled."""
PAGE_LAYOUT = gl.constexpr(gl.NVMMASharedLayout(128, 16, 4))
"""Layout of such a copy in shared memory."""


@gluon.jit
def _copy(
    cache,
    which: gl.constexpr,
    smem,
    stage,
    full,
    first_page,
    table_row,
    column,
    spans,
    SHAPE: gl.constexpr,
):
    """Have a tile's pages of keys (`which` 0) or of values (1) copied into smem's `stage`."""
    _, _, _, _, last_page, shift, nowhere = spans
    chunks: gl.constexpr = smem.shape[2] // CHANNELS
    pages: gl.constexpr = smem.shape[1] // SHAPE.block
    # A tile in shared memory is its chunks of channels one after the other, each of all pages.
    parts = smem._reinterpret(
        smem.dtype,
        [smem.shape[0] * chunks * pages, 1, 1, SHAPE.block, CHANNELS],
        PAGE_LAYOUT,
    )
    mbarrier.expect(full, pages * SHAPE.block * chunks * 2 * CHANNELS)
    for i in gl.static_range(pages):
        page = first_page + i
        block = gl.load(table_row + page, mask=page <= last_page, other=nowhere)
        slot = gl.where(page == last_page, -shift, 0)
        for chunk in gl.static_range(chunks):
            tma.async_copy_global_to_shared(
                cache,
                [which, block, slot, column + CHANNELS * chunk],
                full,
                parts.index((stage * chunks + chunk) * pages + i),
            )


@gluon.jit
def produce(cache, smem, barriers, table_row, column, spans, SHAPE: gl.constexpr):
    """Bring all tiles, each as soon as there is room.

    cache: descriptor of [2, blocks, block_size, channels]; smem: keys and values, each [stages,
    a tile's keys, head_dim]; barriers: keys full and free, values full and free, one a stage.
    """
    k_smem, v_smem = smem
    k_full, k_free, v_full, v_free = barriers
    tiles, first_page = spans[0], spans[3]
    stages: gl.constexpr = k_smem.shape[0]
    pages: gl.constexpr = k_smem.shape[1] // SHAPE.block
    for tile in range(tiles):
        stage, turn = tile % stages, (tile // stages) & 1
        page = first_page + tile * pages
        mbarrier.wait(k_free.index(stage), turn ^ 1)
        _copy(cache, 0, k_smem, stage, k_full.index(stage), page, table_row, column, spans, SHAPE)
        mbarrier.wait(v_free.index(stage), turn ^ 1)
        _copy(cache, 1, v_smem, stage, v_full.index(stage), page, table_row, column, spans, SHAPE)


@gluon.jit
def query_rows(row, rows, SHAPE: gl.constexpr):
    """Return, for rows of a program, the step's token, if there is one, and the last position
    seen."""
    (entries_ptr, first_token, new_tokens, first_new, before, end) = rows
    if SHAPE.shared:
        token = gl.load(
            entries_ptr + row // SHAPE.group, mask=row < SHAPE.tokens * SHAPE.group, other=-1
        )
        own = token >= 0
        position = row * 0 + end - 1
    else:
        new = first_new + row // SHAPE.group
        token = first_token + new
        own = (new < new_tokens) & (row < SHAPE.tokens * SHAPE.group)
        position = before + new
    return token.to(gl.int64), own, position


@gluon.jit
def _load_queries(q_ptr, q_stride, q, half: gl.constexpr, rows, kv_head, SHAPE: gl.constexpr):
    """Load the half's queries into q [64, padded head_dim] of shared memory."""
    threads: gl.constexpr = q.shape[1] // 8
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [32 // threads, threads], [4, 1], [1, 0])
    row = half * 64 + gl.arange(0, 64, gl.SliceLayout(1, layout))
    dim = gl.arange(0, q.shape[1], gl.SliceLayout(0, layout))
    token, own, _ = query_rows(row, rows, SHAPE)
    at = token * q_stride + (kv_head * SHAPE.group + row % SHAPE.group) * SHAPE.dim
    mask = own[:, None] & (dim < SHAPE.dim)[None, :]
    q.store(gl.load(q_ptr + at[:, None] + dim[None, :], mask=mask, other=0.0))
    fence_async_shared()


@gluon.jit
def _visible(products, tile, position, spans, SHAPE: gl.constexpr):
    """Return the products, MASKED_SCORE where a query does not see the key."""
    _, plain_from, plain_to, first_page, last_page, shift, _ = spans
    keys: gl.constexpr = products.shape[1]
    if (tile < plain_from) | (tile >= plain_to):
        slot = first_page * SHAPE.block + tile * keys
        slot += gl.arange(0, keys, gl.SliceLayout(0, products.type.layout))
        page = slot // SHAPE.block
        is_last = page == last_page
        exists = (page < last_page) | (is_last & (slot % SHAPE.block >= shift))
        key = gl.where(exists, gl.where(is_last, slot - shift, slot), NO_POSITION)
        seen = key[None, :] <= position[:, None]
        if SHAPE.window > 0:
            seen = seen & (key[None, :] > (position - SHAPE.window)[:, None])
        products = gl.where(seen, products, MASKED_SCORE)
    return products


@gluon.jit
def _softmax_step(products, best, scale, CAP: gl.constexpr):
    """Weights of a tile's keys, what earlier ones shrink by, and the running maximum, base 2."""
    if CAP > 0:
        # CAP * tanh(x / CAP) by exp alone; hidden ones stay hidden.
        capped = CAP * (1.0 - 2.0 / (gl.exp(products * (scale * 2.0 / CAP)) + 1.0))
        scores = gl.where(products > MASKED_SCORE * 0.1, capped * LOG2_E, MASKED_SCORE)
        higher = gl.maximum(best, gl.max(scores, 1))
        weights = gl.exp2(scores - higher[:, None])
    else:
        # One multiplication and subtraction at once for each score.
        higher = gl.maximum(best, gl.max(products, 1) * scale)
        weights = gl.exp2(products * scale - higher[:, None])
    return weights, gl.exp2(best - higher), higher


@gluon.jit
def consume(
    half: gl.constexpr, pointers, where, q_smem, smem, barriers, rows, spans, scale,
    SHAPE: gl.constexpr,
):  # fmt: skip
    """Attend with queries 64 `half` .. 64 `half` + 63 of the program's.

    where: the queries' stride, the KV head, which part of the keys and of how many.
    """
    q_ptr, out_ptr, lse_ptr, sinks_ptr = pointers
    q_stride, kv_head, part, total_parts = where
    k_smem, v_smem = smem
    k_full, k_free, v_full, v_free = barriers
    tiles = spans[0]
    stages: gl.constexpr = k_smem.shape[0]
    keys: gl.constexpr = k_smem.shape[1]
    width: gl.constexpr = k_smem.shape[2]
    of_scores: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, keys, 16])
    of_sums: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, width, 16])
    of_weights: gl.constexpr = gl.DotOperandLayout(0, of_sums, 2)
    by_row: gl.constexpr = gl.SliceLayout(1, of_scores)

    q = q_smem.index(half)
    _load_queries(q_ptr, q_stride, q, half, rows, kv_head, SHAPE)
    _, _, position = query_rows(half * 64 + gl.arange(0, 64, by_row), rows, SHAPE)
    nothing = gl.zeros([64, keys], gl.float32, of_scores)
    acc = gl.zeros([64, width], gl.float32, of_sums)
    best = gl.full([64], MIN_RUNNING_MAX, gl.float32, by_row)

    mbarrier.wait(k_full.index(0), 0)
    pending = warpgroup_mma(
        q, k_smem.index(0).permute((1, 0)), nothing, use_acc=False, is_async=True
    )
    products = warpgroup_mma_wait(0, deps=[pending])
    mbarrier.arrive(k_free.index(0), count=1)
    products = _visible(products, 0, position, spans, SHAPE)
    weights, _, best = _softmax_step(products, best, scale, SHAPE.cap)
    total = gl.sum(weights, 1)
    operand = gl.convert_layout(weights.to(q.dtype), of_weights)
    for tile in range(1, tiles):
        stage, before = tile % stages, (tile - 1) % stages
        mbarrier.wait(k_full.index(stage), (tile // stages) & 1)
        pending = warpgroup_mma(
            q, k_smem.index(stage).permute((1, 0)), nothing, use_acc=False, is_async=True
        )
        mbarrier.wait(v_full.index(before), ((tile - 1) // stages) & 1)
        mixing = warpgroup_mma(operand, v_smem.index(before), acc, is_async=True)
        products = warpgroup_mma_wait(1, deps=[pending])
        mbarrier.arrive(k_free.index(stage), count=1)
        products = _visible(products, tile, position, spans, SHAPE)
        weights, shrink, best = _softmax_step(products, best, scale, SHAPE.cap)
        total = total * shrink + gl.sum(weights, 1)
        acc = warpgroup_mma_wait(0, deps=[mixing])
        mbarrier.arrive(v_free.index(before), count=1)
        acc = acc * gl.convert_layout(shrink, gl.SliceLayout(1, of_sums))[:, None]
        operand = gl.convert_layout(weights.to(q.dtype), of_weights)
    last = (tiles - 1) % stages
    mbarrier.wait(v_full.index(last), ((tiles - 1) // stages) & 1)
    mixing = warpgroup_mma(operand, v_smem.index(last), acc, is_async=True)
    acc = warpgroup_mma_wait(0, deps=[mixing])
    if SHAPE.sinks:
        head = kv_head * SHAPE.group + (half * 64 + gl.arange(0, 64, by_row)) % SHAPE.group
        sink = gl.load(sinks_ptr + head).to(gl.float32) * LOG2_E
        # No further than a float reaches: what is more than that weighs all there is.
        total += gl.exp2(gl.minimum(sink - best, 126.0))
    _store_output(acc, best, total, out_ptr, lse_ptr, half, rows, kv_head, part, total_parts, SHAPE)


@gluon.jit
def _store_output(
    acc, best, total, out_ptr, lse_ptr, half: gl.constexpr, rows, kv_head, part, total_parts,
    SHAPE: gl.constexpr,
):  # fmt: skip
    """Store the output of a half's queries, and its log-sum-exp where it is a part."""
    by_row: gl.constexpr = gl.SliceLayout(1, acc.type.layout)
    row = half * 64 + gl.arange(0, 64, by_row)
    dim = gl.arange(0, acc.shape[1], gl.SliceLayout(0, acc.type.layout))
    token, own, _ = query_rows(row, rows, SHAPE)
    at = (token * SHAPE.heads + kv_head * SHAPE.group + row % SHAPE.group) * total_parts + part
    total = gl.convert_layout(total, by_row)
    out = acc / gl.where(total > 0, total, 1.0)[:, None]
    mask = own[:, None] & (dim < SHAPE.dim)[None, :]
    gl.store(
        out_ptr + at[:, None] * SHAPE.dim + dim[None, :],
        out.to(out_ptr.dtype.element_ty),
        mask=mask,
    )
    if SHAPE.shared:
        lse = gl.convert_layout(best, by_row) + gl.log2(total)
        gl.store(lse_ptr + at, lse, mask=own)
