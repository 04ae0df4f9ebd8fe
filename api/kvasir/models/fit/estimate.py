"""The memory a model needs on each GPU, and what remains for its KV cache."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from kvasir.engine_values import KVCacheDtype
from kvasir.models.fit.quantized_weights import quantized_linears
from kvasir.models.kv_cache_dtype import resolve_kv_cache_dtype
from kvasir.models.model_shape import DTYPE_BYTES, ModelShape
from kvasir.models.quantization import Numbers

CONTEXT_BYTES = 1 << 30
"""CUDA context, workspaces and what the allocator cannot use; on a CPU, the process itself."""

GRAPH_BYTES = 512 << 20
"""CUDA graphs, beside the memory of a step that they hold; with one GPU."""

COLLECTIVE_BYTES = 512 << 20
"""Further buffers of collectives, with more than one GPU."""

MAX_TENSOR_PARALLEL = 64


@dataclass(frozen=True, slots=True)
class Workload:
    """Settings of the engine on which its memory depends."""

    max_model_len: int | None = None
    """Tokens of the longest sequence; None = as many as the model and the memory allow."""
    dtype: str | None = None
    """Data type of weights and activations; None = the checkpoint's."""
    kv_cache_dtype: KVCacheDtype = "auto"
    """Data type of keys and values. KV scales, two numbers a layer, are not counted."""
    capability: tuple[int, int] | None = None
    """Compute capability of the GPUs; None = not known, or none."""
    gpu_memory_utilization: float = 0.9
    kv_cache_memory_bytes: int | None = None
    """KV memory on each GPU; None = what the rest leaves."""
    block_size: int = 16
    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 256
    checkpoint_bytes: int | None = None
    """The weights as they are stored; taken where the layers of the model's family are not known
    and the stored type stays."""

    def kv_dtype(self, shape: ModelShape) -> str:
        """Return the data type of keys and values. Raises ConfigError, a ValueError."""
        dtype = self.dtype or shape.dtype
        asked, found = self.kv_cache_dtype, shape.quantization
        return resolve_kv_cache_dtype(asked, found, dtype, self.capability)


@dataclass(frozen=True, slots=True)
class Fit:
    """Memory that a model takes on each of `tensor_parallel` GPUs. All sizes are bytes a GPU."""

    tensor_parallel: int
    memory_bytes: int
    weight_bytes: int
    reserve_bytes: int
    """Activations, logits, graphs and the CUDA context: an estimate."""
    kv_bytes: int
    """Bytes left for the KV cache; negative when weights and reserve alone are too much."""
    kv_dtype: str
    """Data type of keys and values."""
    kv_bytes_per_token: int
    """Bytes of one token's KV over all layers, sliding windows not counted."""
    max_model_len: int
    """The wanted length, or the model's own."""
    longest_context: int
    """Tokens of the longest single sequence, at most the model's own length; 0 = does not fit."""
    max_concurrency: float
    """Sequences of max_model_len that fit at once, sliding windows counted."""
    fits: bool
    """True if one sequence of the wanted length fits (of any length, when none was wanted)."""

    @property
    def kv_tokens(self) -> int:
        """Tokens that the KV cache holds in sequences of max_model_len."""
        return int(self.max_concurrency * self.max_model_len)


def estimate_fit(
    shape: ModelShape, memory_bytes: int, tensor_parallel: int = 1, work: Workload | None = None
) -> Fit:
    """Return the estimated fit of `shape` on `tensor_parallel` GPUs of `memory_bytes` each.

    Raises ValueError when its heads cannot be divided over that many GPUs, or the GPUs cannot do
    what was asked.
    """
    work = work or Workload()
    weights = weight_bytes(shape, tensor_parallel, work.dtype)
    online = shape.quantization is not None and shape.quantization.online
    stored = work.dtype is None and not online
    if work.checkpoint_bytes and not shape.parameters_exact and stored:
        weights = -(-work.checkpoint_bytes // tensor_parallel)
    reserve = reserve_bytes(shape, tensor_parallel, work)
    room = int(memory_bytes * work.gpu_memory_utilization) - weights - reserve
    wanted = work.kv_cache_memory_bytes
    enough = wanted is None or wanted <= room
    kv_bytes = room if wanted is None else wanted
    own = shape.max_position_embeddings
    target = work.max_model_len or own
    kv = _KV(shape, tensor_parallel, work)
    longest = kv.longest(kv_bytes, own) if enough else 0
    return Fit(
        tensor_parallel=tensor_parallel,
        memory_bytes=memory_bytes,
        weight_bytes=weights,
        reserve_bytes=reserve,
        kv_bytes=kv_bytes,
        kv_dtype=work.kv_dtype(shape),
        kv_bytes_per_token=shape.kv_bytes_per_token(work.kv_dtype(shape), tensor_parallel),
        max_model_len=target,
        longest_context=longest,
        max_concurrency=kv.concurrency(kv_bytes, target) if enough else 0.0,
        fits=longest >= (work.max_model_len or 1),
    )


def suggest_tensor_parallel(
    shape: ModelShape, memory_bytes: int, work: Workload | None = None
) -> int | None:
    """The smallest power of two of GPUs on which one sequence of the wanted length fits, by default
    one of the model's own; None when no number of GPUs that its heads allow is enough."""
    work = work or Workload()
    target = work.max_model_len or shape.max_position_embeddings
    size = 1
    while size <= MAX_TENSOR_PARALLEL:
        try:
            fit = estimate_fit(shape, memory_bytes, size, work)
        except ValueError:
            return None
        if fit.longest_context >= target:
            return size
        size *= 2
    return None


def weight_bytes(shape: ModelShape, tensor_parallel: int = 1, dtype: str | None = None) -> int:
    """Bytes of the weights on each rank; quantised layers stay as the checkpoint stores them."""
    quantized, size = quantized_linears(shape, tensor_parallel)
    plain = shape.parameters(tensor_parallel).total - quantized
    return plain * DTYPE_BYTES[dtype or shape.dtype] + size


def reserve_bytes(shape: ModelShape, tensor_parallel: int, work: Workload) -> int:
    """Bytes that running takes beside weights and KV, at the largest step.

    CUDA graphs, of which there are some with one GPU, hold the memory of such a step again. Of a
    step's activations the residual stream, its normalised copy, the layer's input to and
    output of one block, and the widest inner block live at once; logits are fp32, gathered on
    every rank, with a working copy.
    """
    element = DTYPE_BYTES[work.dtype or shape.dtype]
    heads = shape.num_heads // tensor_parallel + 2 * shape.kv_heads_per_rank(tensor_parallel)
    attention = 2 * heads * shape.head_dim
    inner = 3 * shape.intermediate_size // tensor_parallel
    experts = 3 * shape.experts_per_token * shape.moe_intermediate_size // tensor_parallel
    width = 4 * shape.hidden_size + max(attention, inner, experts)
    activations = work.max_num_batched_tokens * width * element
    logits = 2 * work.max_num_seqs * shape.vocab_size * 4
    step = activations + logits
    further = COLLECTIVE_BYTES if tensor_parallel > 1 else step + GRAPH_BYTES
    return step + CONTEXT_BYTES + further + _buffer_bytes(shape, tensor_parallel, work)


def _buffer_bytes(shape: ModelShape, tensor_parallel: int, work: Workload) -> int:
    """Bytes of what quantised numbers are widened into: one layer's keys and values of the longest
    context, and the widest matrix of an MLP in 4 bits."""
    dtype, found = work.dtype or shape.dtype, 0
    if work.kv_dtype(shape) != dtype:
        tokens = work.max_model_len or shape.max_position_embeddings
        found += tokens * shape.kv_bytes_per_token_and_layer(dtype, tensor_parallel)
    if shape.quantization is not None and shape.quantization.numbers is Numbers.INT4:
        outputs = 2 * shape.intermediate_size // tensor_parallel
        found += outputs * shape.hidden_size * DTYPE_BYTES[dtype]
    return found


class _KV:
    """The KV memory of sequences on one rank, in whole blocks, by layer window."""

    def __init__(self, shape: ModelShape, tensor_parallel: int, work: Workload) -> None:
        self._layers = Counter(shape.layer_windows)
        self._block = work.block_size
        self._chunk = work.max_num_batched_tokens
        self._bytes = work.block_size * shape.kv_bytes_per_token_and_layer(
            work.kv_dtype(shape), tensor_parallel
        )

    def sequence(self, tokens: int, chunk: int = 1) -> int:
        """Bytes that a sequence of `tokens` holds while `chunk` tokens are computed at once.

        A layer with window w keeps w - 1 tokens before the chunk, and a block more as the window
        moves within blocks.
        """
        blocks = 0
        for window, layers in self._layers.items():
            kept = -(-tokens // self._block)
            if window is not None:
                kept = min(kept, -(-(window - 1 + chunk) // self._block) + 1)
            blocks += layers * kept
        return blocks * self._bytes

    def longest(self, kv_bytes: int, limit: int) -> int:
        """The longest sequence, of at most `limit` tokens, whose prompt can be computed."""
        low, high = 0, limit
        while low < high:
            middle = (low + high + 1) // 2
            if self.sequence(middle, self._chunk) <= kv_bytes:
                low = middle
            else:
                high = middle - 1
        return low

    def concurrency(self, kv_bytes: int, tokens: int) -> float:
        """Sequences of `tokens` that fit at once, one of them just computing its prompt."""
        steady = self.sequence(tokens)
        return max(0.0, (kv_bytes - (self.sequence(tokens, self._chunk) - steady)) / steady)
