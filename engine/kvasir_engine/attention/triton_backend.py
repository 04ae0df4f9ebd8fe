"""Paged attention by Triton kernels, for CUDA."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from kvasir_engine.attention.base import AttentionBatch, AttentionSpec, SharedPrefixes
from kvasir_engine.kernels.kv_write import write_kv
from kvasir_engine.kernels.paged_decode import (
    MOST_PARTS,
    DecodeTuning,
    num_parts,
    paged_decode,
)
from kvasir_engine.kernels.paged_prefill import PrefillTuning, paged_prefill, tile_tokens
from kvasir_engine.kernels.shared_prefix import SharedTuning
from kvasir_engine.runner.upload import upload


@dataclass(frozen=True, slots=True)
class _Tiles:
    """The prefill tiles of a batch for one tile size, kept for its other layers."""

    batch: AttentionBatch
    tokens: int
    tiles: torch.Tensor


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
        self.decode_tuning = DecodeTuning()
        self.own_tuning = DecodeTuning(keys=32, stages=2)
        """Of what decodes do not share, which is short."""
        self.shared_tuning = SharedTuning()
        self.prefill_tuning = PrefillTuning()
        self._tiles: _Tiles | None = None

    def write(
        self, cache: torch.Tensor, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor
    ) -> None:
        """AttentionBackend.write."""
        write_kv(cache, k, v, slots)

    def attend(
        self,
        spec: AttentionSpec,
        q: torch.Tensor,
        cache: torch.Tensor,
        batch: AttentionBatch,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """AttentionBackend.attend."""
        if q.stride()[1:] != (spec.head_dim, 1):
            q = q.contiguous()
        if out is None:
            out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        if batch.num_decodes:
            self._decode(spec, q, cache, batch, out)
        if batch.num_decodes < len(batch.query_lens_cpu):
            self._prefill(spec, q, cache, batch, out)
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
            parts=num_parts(
                count, spec.num_kv_heads, longest, self._multiprocessors, self.decode_tuning
            ),
            tuning=self.decode_tuning if shared is None else self.own_tuning,
            shared=shared,
            prefix_parts=0 if shared is None else self._prefix_parts(spec, shared, longest),
            shared_tuning=self.shared_tuning,
        )

    def _prefix_parts(self, spec: AttentionSpec, shared: SharedPrefixes, longest: int) -> int:
        """Parts of shared keys: so many that one large group fills the GPU once."""
        rows = len(shared.prefix_lens) * spec.num_heads // spec.num_kv_heads
        programs = -(-rows // self.shared_tuning.rows) * spec.num_kv_heads
        parts, most = 1, max(1, longest // self.decode_tuning.least_keys)
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
    ) -> None:
        padded = max(16, 1 << (spec.head_dim - 1).bit_length())
        tuning = self.prefill_tuning.fitted(padded, q.element_size())
        paged_prefill(
            q,
            cache,
            batch.block_table,
            batch.seq_lens,
            batch.query_start,
            self._tiles_of(batch, tile_tokens(spec.num_heads, spec.num_kv_heads, tuning)),
            out,
            scale=spec.scale,
            window=spec.window,
            softcap=spec.softcap,
            tuning=tuning,
        )

    def _tiles_of(self, batch: AttentionBatch, tokens: int) -> torch.Tensor:
        kept = self._tiles
        if kept is None or kept.batch is not batch or kept.tokens != tokens:
            lens = np.asarray(batch.query_lens_cpu[batch.num_decodes :], dtype=np.int32)
            counts = -(-lens // tokens)
            entries = np.repeat(np.arange(len(lens), dtype=np.int32), counts)
            first = np.repeat(np.cumsum(counts) - counts, counts)
            which = np.arange(len(entries)) - first
            # Later tiles see more keys: started first, they do not end last.
            pairs = np.stack([entries + batch.num_decodes, which], axis=1)[::-1]
            tiles = upload(np.ascontiguousarray(pairs, dtype=np.int32), self._device)
            kept = self._tiles = _Tiles(batch, tokens, tiles)
        return kept.tiles
