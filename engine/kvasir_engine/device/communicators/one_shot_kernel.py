"""One-shot all-reduce as one kernel: copy, one exchange of signals, sum.

torch's kernels exchange signals by compare-and-swap, twice a call, and want the tensor copied
before. Here each call has a number, which every rank counts on its own device: signals are call
numbers, so that none has to be taken back, and two buffers are used in turn, so that none is
written before it was read. When call n + 1 has seen a rank's signal, that rank has ended call n,
since a rank's calls follow each other on its stream.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kvasir_engine.device.launch import begin, launch_options

MAX_PROGRAMS = 64
STATE_WORDS = 32
"""Words of a rank's own: number of its next call, and programs that have ended this one."""
NUM_WARPS = 8


@triton.jit
def _is_before(signal, call):
    """Return True if a signal is of an earlier call; numbers wrap around."""
    return (signal - call) < 0


@triton.jit
def exchange_signals(
    program, call, bases, signals_at, RANK: tl.constexpr, RANKS: tl.constexpr
):  # fmt: skip
    """Tell the same program of every other rank that this one's numbers of the call are written,
    and wait until theirs are."""
    word: tl.constexpr = tl.pointer_type(tl.int32)
    # One thread signals for all of the program's.
    tl.debug_barrier()
    for step in tl.static_range(1, RANKS):
        theirs = (bases[(RANK + step) % RANKS] + signals_at).to(word)
        tl.atomic_xchg(theirs + program * RANKS + RANK, call, sem="release", scope="sys")
    for step in tl.static_range(1, RANKS):
        signal = (bases[RANK] + signals_at).to(word) + program * RANKS + (RANK + step) % RANKS
        while _is_before(tl.atomic_add(signal, 0, sem="acquire", scope="sys"), call):
            pass
    tl.debug_barrier()


@triton.jit
def count_call(state_ptr, call):
    """The last program counts the call, for the next one to read."""
    if tl.atomic_add(state_ptr + 1, 1) == tl.num_programs(0) - 1:
        tl.store(state_ptr + 1, 0)
        tl.store(state_ptr, call)


@triton.jit
def _sum_over_ranks(
    x_ptr,
    out_ptr,
    state_ptr,
    bases,
    numel,
    half_bytes,
    signals_at,
    RANK: tl.constexpr,
    RANKS: tl.constexpr,
    TOKENS: tl.constexpr,
    PDL: tl.constexpr,
):
    program, programs = tl.program_id(0), tl.num_programs(0)
    begin(PDL)
    call = tl.load(state_ptr) + 1
    half = (call & 1).to(tl.int64) * half_bytes
    kind: tl.constexpr = tl.pointer_type(x_ptr.dtype.element_ty)
    own = tl.multiple_of((bases[RANK] + half).to(kind), 16)
    for start in range(program * TOKENS, numel, programs * TOKENS):
        at = start + tl.arange(0, TOKENS)
        inside = at < numel
        tl.store(own + at, tl.load(x_ptr + at, mask=inside), mask=inside)
    exchange_signals(program, call, bases, signals_at, RANK, RANKS)
    for start in range(program * TOKENS, numel, programs * TOKENS):
        at = start + tl.arange(0, TOKENS)
        inside = at < numel
        total = tl.zeros([TOKENS], tl.float32)
        for rank in tl.static_range(RANKS):
            part = tl.multiple_of((bases[rank] + half).to(kind), 16)
            total += tl.load(part + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(out_ptr + at, total.to(x_ptr.dtype.element_ty), mask=inside)
    count_call(state_ptr, call)


def region_bytes(half_bytes: int, ranks: int) -> int:
    """Return the bytes of a rank's symmetric region: two buffers and the signals, zero at first."""
    return 2 * half_bytes + 4 * MAX_PROGRAMS * ranks


class OneShotSum:
    """The kernel with its regions; all ranks make the same calls in the same order."""

    def __init__(
        self, bases: tuple[int, ...], rank: int, half_bytes: int, device: torch.device
    ) -> None:
        """`bases` are the addresses of the ranks' zeroed regions, as this rank maps them."""
        self.bases = bases
        self.rank = rank
        self.half_bytes = half_bytes
        self.state = torch.zeros(STATE_WORDS, dtype=torch.int32, device=device)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of contiguous `x` over ranks, in place."""
        tokens = 16 // x.itemsize * 32 * NUM_WARPS
        _sum_over_ranks[(min(MAX_PROGRAMS, triton.cdiv(x.numel(), tokens)),)](
            x,
            x,
            self.state,
            self.bases,
            x.numel(),
            self.half_bytes,
            2 * self.half_bytes,
            RANK=self.rank,
            RANKS=len(self.bases),
            TOKENS=tokens,
            num_warps=NUM_WARPS,
            **launch_options(x.device),
        )
        return x
