"""Token inputs of the forward pass, gathered from the persistent batch in one kernel."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kvasir_engine.device.launch import begin, launch_options


@triton.jit(do_not_specialize=["count"])
def _token_inputs(
    rows_ptr,
    num_computed_ptr,
    history_ptr,
    table_ptr,
    offsets_ptr,
    ids_ptr,
    positions_ptr,
    lens_ptr,
    slots_ptr,
    count,
    history_stride,
    table_stride,
    BLOCK: tl.constexpr,
    TOKENS: tl.constexpr,
    HAS_OFFSETS: tl.constexpr,
    PDL: tl.constexpr,
):
    begin(PDL)
    at = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    inside = at < count
    row = tl.load(rows_ptr + at, mask=inside, other=0)
    position = tl.load(num_computed_ptr + row, mask=inside, other=0).to(tl.int64)
    if HAS_OFFSETS:
        position += tl.load(offsets_ptr + at, mask=inside, other=0)
    token = tl.load(history_ptr + row * history_stride + position, mask=inside, other=0)
    block = tl.load(table_ptr + row * table_stride + position // BLOCK, mask=inside, other=0)
    tl.store(ids_ptr + at, token.to(tl.int64), mask=inside)
    tl.store(positions_ptr + at, position, mask=inside)
    tl.store(lens_ptr + at, (position + 1).to(tl.int32), mask=inside)
    slot = block.to(tl.int64) * BLOCK + position % BLOCK
    tl.store(slots_ptr + at, slot, mask=inside)


def token_inputs(
    rows: torch.Tensor,
    num_computed: torch.Tensor,
    history: torch.Tensor,
    table: torch.Tensor,
    block_size: int,
    offsets: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gather as `kvasir_engine.runner.token_inputs.torch_token_inputs` does."""
    count, device = len(rows), rows.device
    ids, positions, slots = torch.empty((3, count), dtype=torch.int64, device=device).unbind(0)
    lens = torch.empty(count, dtype=torch.int32, device=device)
    _token_inputs[(triton.cdiv(count, 32),)](
        rows,
        num_computed,
        history,
        table,
        rows if offsets is None else offsets,
        ids,
        positions,
        lens,
        slots,
        count,
        history.stride(0),
        table.stride(0),
        BLOCK=block_size,
        TOKENS=32,
        HAS_OFFSETS=offsets is not None,
        num_warps=1,
        **launch_options(device),
    )
    return ids, positions, lens, slots
