"""What the forward pass of a decode reads, gathered from the persistent batch in one kernel."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kvasir_engine.kernels.launch import begin, launch_options


@triton.jit
def _decode_inputs(
    rows_ptr,
    num_computed_ptr,
    history_ptr,
    table_ptr,
    ids_ptr,
    positions_ptr,
    lens_ptr,
    slots_ptr,
    count,
    history_stride,
    table_stride,
    BLOCK: tl.constexpr,
    ENTRIES: tl.constexpr,
    PDL: tl.constexpr,
):
    begin(PDL)
    entry = tl.program_id(0) * ENTRIES + tl.arange(0, ENTRIES)
    inside = entry < count
    row = tl.load(rows_ptr + entry, mask=inside, other=0)
    position = tl.load(num_computed_ptr + row, mask=inside, other=0).to(tl.int64)
    token = tl.load(history_ptr + row * history_stride + position, mask=inside, other=0)
    block = tl.load(table_ptr + row * table_stride + position // BLOCK, mask=inside, other=0)
    tl.store(ids_ptr + entry, token.to(tl.int64), mask=inside)
    tl.store(positions_ptr + entry, position, mask=inside)
    tl.store(lens_ptr + entry, (position + 1).to(tl.int32), mask=inside)
    slot = block.to(tl.int64) * BLOCK + position % BLOCK
    tl.store(slots_ptr + entry, slot, mask=inside)


def decode_inputs(
    rows: torch.Tensor,
    num_computed: torch.Tensor,
    history: torch.Tensor,
    table: torch.Tensor,
    block_size: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """(token ids, positions, lengths with the new token, slots) of one token for each of `rows`.

    rows int64 [n]; by row: num_computed [rows], history [rows, tokens], table [rows, blocks], all
    int32. int64 [n] each, but for the lengths, int32.
    """
    count, device = len(rows), rows.device
    ids, positions, slots = torch.empty((3, count), dtype=torch.int64, device=device).unbind(0)
    lens = torch.empty(count, dtype=torch.int32, device=device)
    _decode_inputs[(triton.cdiv(count, 32),)](
        rows,
        num_computed,
        history,
        table,
        ids,
        positions,
        lens,
        slots,
        count,
        history.stride(0),
        table.stride(0),
        BLOCK=block_size,
        ENTRIES=32,
        num_warps=1,
        **launch_options(device),
    )
    return ids, positions, lens, slots
