"""Paged attention by Triton kernels, for CUDA."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from kvasir_engine.attention.base import (
    AttentionBatch,
    AttentionSpec,
    LayerBuffers,
    SharedPrefixes,
)
from kvasir_engine.attention.whole_prompts import (
    PromptViews,
    cudnn_attention,
    make_plans,
    takes,
    whole_prompts,
)
from kvasir_engine.kernels.kv_write import write_kv
from kvasir_engine.kernels.merge_parts import MOST_PARTS
from kvasir_engine.kernels.paged_decode import (
    DecodeTuning,
    num_parts,
    paged_decode,
    tuning_for,
)
from kvasir_engine.kernels.paged_prefill import PrefillTuning, paged_prefill, tile_tokens
from kvasir_engine.kernels.shared_prefix import SharedTuning
from kvasir_engine.runner.upload import upload


@dataclass(frozen=True, slots=True)
class _Prefills:
    """How a batch's prefills are divided, kept for its other layers."""

    batch: AttentionBatch
    tokens: int
    """Of a tile."""
    views_of: tuple[int, ...] | None
    """Heads, KV heads and size of a head that `whole` has; None where tiles are everything."""
    whole: list[PromptViews]
    tiles: torch.Tensor
    """Of the others."""


class TritonAttention:
    """Decodes by split keys, prefills by tiles of queries; both read the paged cache in place."""

    graph_safe = True

    def __init__(self, device: torch.device, *, multiprocessors: int | None = None) -> None:
        """`multiprocessors` is asked of the device when it is not given."""
        if multiprocessors is None:
            properties = torch.cuda.get_device_properties(device)
            multiprocessors = properties.multi_processor_count
        self._multiprocessors = multiprocessors
        self._device = device
        self.decode_tuning: DecodeTuning | None = None
        """None = by what is to be done."""
        self.own_tuning = DecodeTuning(keys=32, stages=2)
        """Of what decodes do not share, which is short."""
        self.shared_tuning = SharedTuning()
        self.prefill_tuning = PrefillTuning()
        self.causal_attention = cudnn_attention(device)
        """Of whole prompts; None where the paged kernel computes all."""
        self._prefills: _Prefills | None = None

    def write(
        self, cache: torch.Tensor, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor
    ) -> None:
        """AttentionBackend.write."""
        write_kv(cache, k, v, slots)

    def prepare(self, spec: AttentionSpec, buffers: LayerBuffers) -> None:
        """AttentionBackend.prepare."""
        if self.causal_attention is not None and takes(spec, buffers.all_queries.dtype):
            make_plans(self.causal_attention, spec, buffers)

    def attend(
        self,
        spec: AttentionSpec,
        q: torch.Tensor,
        cache: torch.Tensor,
        batch: AttentionBatch,
        out: torch.Tensor | None = None,
        buffers: LayerBuffers | None = None,
    ) -> torch.Tensor:
        """AttentionBackend.attend."""
        if q.stride()[1:] != (spec.head_dim, 1):
            q = q.contiguous()
        if out is None:
            out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        if batch.num_decodes:
            self._decode(spec, q, cache, batch, out)
        if batch.num_decodes < len(batch.query_lens_cpu):
            self._prefill(spec, q, cache, batch, out, buffers)
        return out

    def _decode(
        self,
        spec: AttentionSpec,
        q: torch.Tensor,
        cache: torch.Tensor,
        batch: AttentionBatch,
        out: torch.Tensor,
    ) -> None:
        count = batch.num_decodes
        padded = max(16, 1 << (spec.head_dim - 1).bit_length())
        tuning = self.decode_tuning or tuning_for(count * spec.num_kv_heads, padded)
        longest = min(spec.window or batch.max_seq_len, batch.max_seq_len)
        shared = batch.shared if spec.window is None else None
        paged_decode(
            q[:count],
            cache,
            batch.block_table,
            batch.seq_lens,
            out[:count],
            scale=spec.scale,
            window=spec.window,
            softcap=spec.softcap,
            parts=num_parts(count, spec.num_kv_heads, longest, self._multiprocessors, tuning),
            tuning=tuning if shared is None else self.own_tuning,
            shared=shared,
            prefix_parts=0 if shared is None else self._prefix_parts(spec, shared, longest),
            shared_tuning=self.shared_tuning,
            order=batch.decode_order,
        )

    def _prefix_parts(self, spec: AttentionSpec, shared: SharedPrefixes, longest: int) -> int:
        """Parts of shared keys: so many that one large group fills the GPU once."""
        rows = len(shared.prefix_lens) * spec.num_heads // spec.num_kv_heads
        programs = -(-rows // self.shared_tuning.rows) * spec.num_kv_heads
        parts, most = 1, max(1, longest // self.own_tuning.least_keys)
        while parts * 2 <= min(MOST_PARTS, most, self._multiprocessors // programs):
            parts *= 2
        return parts

    def _prefill(
        self,
        spec: AttentionSpec,
        q: torch.Tensor,
        cache: torch.Tensor,
        batch: AttentionBatch,
        out: torch.Tensor,
        buffers: LayerBuffers | None,
    ) -> None:
        padded = max(16, 1 << (spec.head_dim - 1).bit_length())
        tuning = self.prefill_tuning.fitted(padded, q.element_size())
        causal = self.causal_attention if takes(spec, q.dtype) else None
        found = self._divide(
            spec,
            batch,
            tile_tokens(spec.num_heads, spec.num_kv_heads, tuning),
            None if causal is None else buffers,
        )
        if causal is not None:
            for views in found.whole:
                views.attend(causal, out)
        if not len(found.tiles):
            return
        paged_prefill(
            q,
            cache,
            batch.block_table,
            batch.seq_lens,
            batch.query_start,
            found.tiles,
            out,
            scale=spec.scale,
            window=spec.window,
            softcap=spec.softcap,
            tuning=tuning,
        )

    def _divide(
        self,
        spec: AttentionSpec,
        batch: AttentionBatch,
        tokens: int,
        buffers: LayerBuffers | None,
    ) -> _Prefills:
        """Without `buffers` all prefills are cut into tiles."""
        views_of = None
        if buffers is not None:
            views_of = (spec.num_heads, spec.num_kv_heads, spec.head_dim)
        kept = self._prefills
        asked = (tokens, views_of)
        if kept and kept.batch is batch and (kept.tokens, kept.views_of) == asked:
            return kept
        whole = [] if buffers is None else whole_prompts(batch)
        lens = np.asarray(batch.query_lens_cpu[batch.num_decodes :], dtype=np.int32)
        lens[[each.entry - batch.num_decodes for each in whole]] = 0
        views = [PromptViews(each, spec, buffers) for each in whole if buffers is not None]
        tiles = upload(_tiles(lens, tokens, batch.num_decodes), self._device)
        self._prefills = _Prefills(batch, tokens, views_of, views, tiles)
        return self._prefills


def _tiles(lens: npt.NDArray[np.int32], tokens: int, first_entry: int) -> npt.NDArray[np.int32]:
    """(entry, which of its tiles) [n, 2] of entries of `lens` tokens; the first one's number."""
    counts = -(-lens // tokens)
    entries = np.repeat(np.arange(len(lens), dtype=np.int32), counts)
    first = np.repeat(np.cumsum(counts) - counts, counts)
    which = np.arange(len(entries)) - first
    # Later tiles see more keys: started first, they do not end last.
    pairs = np.stack([entries + first_entry, which], axis=1)[::-1]
    return np.ascontiguousarray(pairs, dtype=np.int32)
