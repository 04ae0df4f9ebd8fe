"""The kernel of `paged_attention.py`: assignment of queries and keys to programs and warps.

A program takes 128 queries, tokens times the query heads of one KV head, and the keys they see;
`tiles.py` says what its warps do with them.
"""

from __future__ import annotations

from dataclasses import dataclass

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kvasir_engine.attention.hopper.tiles import MASKED_SCORE, consume, produce, query_rows

ROWS = 128
"""Queries of a program."""
OPTIONS = {"num_warps": 4, "maxnreg": 168}
"""Registers: three times 4 warps share 64 Ki, of which the producer needs few."""


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Compile-time shape of a kernel."""

    block: int
    """Keys of a page."""
    heads: int
    group: int
    """Query heads of a KV head."""
    tokens: int
    """New tokens of a program: with a group's heads, ROWS queries at most."""
    dim: int
    window: int = 0
    """0 = all keys are seen."""
    cap: float = 0.0
    shared: bool = False
    """Queries are decodes' and keys are what they have in common, in parts; else a prompt's."""
    tile: int = 0
    """Entries of a tile of SharedPrefixes."""
    sinks: bool = False
    """Heads have sinks, which are the prompts' to add: parts are merged by others."""


@gluon.jit
def _spans(
    lens_ptr, starts_ptr, which_ptr, table_ptr, table_stride, parts, KEYS: gl.constexpr,
    SHAPE: gl.constexpr,
):  # fmt: skip
    """Return this program's queries and keys: table row, `rows` as `query_rows` takes them,
    length, first and last key (exclusive), and keys that all queries see, from and to."""
    if SHAPE.shared:
        per_tile: gl.constexpr = SHAPE.tile // SHAPE.tokens
        tile = gl.program_id(0) // per_tile
        entries_ptr = which_ptr + tile * SHAPE.tile + (gl.program_id(0) % per_tile) * SHAPE.tokens
        length = gl.load(lens_ptr + tile)
        # All entries of a tile begin with the same blocks: any one's table will do.
        table_row = table_ptr + gl.load(which_ptr + tile * SHAPE.tile).to(gl.int64) * table_stride
        each = gl.cdiv(gl.cdiv(length, parts), KEYS) * KEYS
        first = gl.program_id(2) * each
        end = gl.minimum(first + each, length)
        rows = (entries_ptr, 0, 0, 0, 0, end)
        plain_from, plain_to = first, end
    else:
        entry = gl.load(which_ptr + 2 * gl.program_id(0))
        first_new = gl.load(which_ptr + 2 * gl.program_id(0) + 1) * SHAPE.tokens
        first_token = gl.load(starts_ptr + entry)
        new_tokens = gl.load(starts_ptr + entry + 1) - first_token
        length = gl.load(lens_ptr + entry)
        table_row = table_ptr + entry.to(gl.int64) * table_stride
        before = length - new_tokens
        lowest = before + first_new
        end = gl.minimum(lowest + SHAPE.tokens, length)
        first = 0
        plain_from = 0
        if SHAPE.window > 0:
            first = gl.maximum(lowest - SHAPE.window + 1, 0) // KEYS * KEYS
            plain_from = end - SHAPE.window
        plain_to = lowest + 1
        rows = (which_ptr, first_token, new_tokens, first_new, before, end)
    return table_row, rows, length, first, end, plain_from, plain_to


@gluon.jit
def _write_empty_split(rows, lse_ptr, kv_head, part, total_parts, SHAPE: gl.constexpr):
    """Write a log-sum-exp of -inf for a split that has no keys."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    row = gl.arange(0, 128, layout)
    token, own, _ = query_rows(row, rows, SHAPE)
    at = (token * SHAPE.heads + kv_head * SHAPE.group + row % SHAPE.group) * total_parts + part
    gl.store(lse_ptr + at, gl.full([128], MASKED_SCORE, gl.float32, layout), mask=own)


@gluon.jit(
    do_not_specialize=["table_stride", "total_parts", "parts", "nowhere"],
    do_not_specialize_on_alignment=[
        "table_ptr",
        "lens_ptr",
        "starts_ptr",
        "which_ptr",
        "lse_ptr",
        "sinks_ptr",
    ],
)
def attend_tiles(
    q_ptr,
    cache,
    table_ptr,
    lens_ptr,
    starts_ptr,
    which_ptr,
    out_ptr,
    lse_ptr,
    sinks_ptr,
    q_stride,
    table_stride,
    nowhere,
    scale,
    total_parts,
    parts,
    SHAPE: gl.constexpr,
    WIDTH: gl.constexpr,
    KEYS: gl.constexpr,
    STAGES: gl.constexpr,
    PDL: gl.constexpr,
):
    """grid: tiles of queries, KV heads, parts of the keys; pointers as the functions below say."""
    kv_head, part = gl.program_id(1), gl.program_id(2)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    table_row, rows, length, first, end, plain_from, plain_to = _spans(
        lens_ptr, starts_ptr, which_ptr, table_ptr, table_stride, parts, KEYS, SHAPE
    )
    if SHAPE.shared:
        if gl.load(rows[0]) < 0:
            return
        if first >= end:
            _write_empty_split(rows, lse_ptr, kv_head, part, total_parts, SHAPE)
            return
    elif rows[3] >= rows[2]:
        return
    last_page = (length - 1) // SHAPE.block
    spans = (
        gl.cdiv(end - first, KEYS),
        gl.cdiv(gl.maximum(plain_from - first, 0), KEYS),
        gl.maximum(plain_to - first, 0) // KEYS,
        first // SHAPE.block,
        last_page,
        (last_page + 1) * SHAPE.block - length,
        nowhere,
    )
    dtype: gl.constexpr = q_ptr.dtype.element_ty
    layout: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    q_smem = gl.allocate_shared_memory(dtype, [2, 64, WIDTH], layout)
    k_smem = gl.allocate_shared_memory(dtype, [STAGES, KEYS, WIDTH], layout)
    v_smem = gl.allocate_shared_memory(dtype, [STAGES, KEYS, WIDTH], layout)
    bar: gl.constexpr = mbarrier.MBarrierLayout()
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], bar)
    k_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], bar)
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], bar)
    v_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], bar)
    for stage in gl.static_range(STAGES):
        mbarrier.init(k_full.index(stage), count=1)
        mbarrier.init(v_full.index(stage), count=1)
        # Both consumers leave a tile.
        mbarrier.init(k_free.index(stage), count=2)
        mbarrier.init(v_free.index(stage), count=2)
    smem, barriers = (k_smem, v_smem), (k_full, k_free, v_full, v_free)
    pointers = (q_ptr, out_ptr, lse_ptr, sinks_ptr)
    column = kv_head * SHAPE.dim
    where = (q_stride, kv_head, part, total_parts)
    gl.warp_specialize(
        [
            (consume, (0, pointers, where, q_smem, smem, barriers, rows, spans, scale, SHAPE)),
            (consume, (1, pointers, where, q_smem, smem, barriers, rows, spans, scale, SHAPE)),
            (produce, (cache, smem, barriers, table_row, column, spans, SHAPE)),
        ],
        [4, 1],
        [232, 40],
    )
