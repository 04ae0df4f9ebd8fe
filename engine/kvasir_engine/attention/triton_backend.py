"""Paged attention by Triton kernels, for CUDA."""

from __future__ import annotations

from functools import partial
from types import ModuleType

import numpy as np
import numpy.typing as npt
import torch

from kvasir_engine.attention.base import AttentionBatch, AttentionSpec, KVSplits, SharedPrefixes
from kvasir_engine.attention.triton.decode_tuning import (
    DecodeTuning,
    num_parts,
    split_kv_tuning_for,
    suffix_tuning_for,
    tuning_for,
)
from kvasir_engine.attention.triton.kv_write import write_kv
from kvasir_engine.attention.triton.merge import MAX_SPLITS
from kvasir_engine.attention.triton.paged_decode import paged_decode
from kvasir_engine.attention.triton.paged_prefill import PrefillTuning, paged_prefill, tile_tokens
from kvasir_engine.attention.triton.shared_prefix import (
    PrefixAttention,
    SharedKeys,
    SharedTuning,
    shared_prefix,
)
from kvasir_engine.attention.triton.split_kv import make_kv_splits
from kvasir_engine.attention.triton.widened_pages import WidenedPages
from kvasir_engine.device.capability import supports_hopper
from kvasir_engine.device.tile_memory import tile_bytes
from kvasir_engine.device.upload import upload
from kvasir_engine.kv.cache_spec import UNSCALED, KVScales


class TritonAttention:
    """Decodes by split keys, prefills by tiles of queries; both read the paged cache in place."""

    graph_safe = True

    def __init__(
        self,
        device: torch.device,
        *,
        multiprocessors: int | None = None,
        pages: WidenedPages | None = None,
    ) -> None:
        """`multiprocessors` is asked of the device when it is not given; caches of float8 need
        `pages`."""
        self._pages = pages
        if multiprocessors is None:
            properties = torch.cuda.get_device_properties(device)
            multiprocessors = properties.multi_processor_count
        self._multiprocessors = multiprocessors
        self._device = device
        self.decode_tuning: DecodeTuning | None = None
        """Launch parameters of decodes; None = chosen by number of programs and head size."""
        self.shared_tuning = SharedTuning()
        self.prefill_tuning = PrefillTuning()
        self._tile_bytes = tile_bytes(device)
        self.by_hopper = supports_hopper(device)
        """True to use the Hopper kernels for layers that fit them."""
        self._hopper = _hopper_kernels() if self.by_hopper else None

    def write_new_kv(
        self,
        cache: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        slots: torch.Tensor,
        scales: KVScales = UNSCALED,
    ) -> None:
        """AttentionBackend.write_new_kv."""
        write_kv(cache, k, v, slots, scales)

    def attend(
        self,
        spec: AttentionSpec,
        q: torch.Tensor,
        cache: torch.Tensor,
        batch: AttentionBatch,
        out: torch.Tensor | None = None,
        scales: KVScales = UNSCALED,
    ) -> torch.Tensor:
        """AttentionBackend.attend."""
        if q.stride()[1:] != (spec.head_dim, 1):
            q = q.contiguous()
        if out is None:
            out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        if batch.num_decodes:
            self._decode(spec, q, cache, batch, out, scales)
        if batch.num_decodes == len(batch.query_lens_cpu):
            return out
        if self._pages is None:
            self._prefill(spec, q, cache, batch, out)
            return out
        for portion in self._pages.portions(batch):
            widened = self._pages.fill(spec, cache, batch, portion, scales)
            self._prefill(spec, q, widened, portion, out)
        return out

    def _decode(
        self,
        spec: AttentionSpec,
        q: torch.Tensor,
        cache: torch.Tensor,
        batch: AttentionBatch,
        out: torch.Tensor,
        scales: KVScales,
    ) -> None:
        count = batch.num_decodes
        longest = min(spec.window or batch.max_seq_len, batch.max_seq_len)
        prefixes = batch.shared if spec.window is None else None
        divided = batch.split_kv and spec.window is None and prefixes is None
        tuning = self._decode_tuning(
            spec, cache, count, divided=divided, shared=prefixes is not None
        )
        shared = None
        if prefixes is not None:
            shared = self._shared_keys(spec, cache, prefixes, longest // tuning.min_keys)
        parts = 1
        if not divided:
            parts = num_parts(count, spec.num_kv_heads, longest, self._multiprocessors, tuning)
        paged_decode(
            spec,
            q[:count],
            cache,
            batch,
            out[:count],
            parts=parts,
            tuning=tuning,
            shared=shared,
            splits=self._kv_splits(spec, batch, tuning) if divided else None,
            scales=scales,
        )

    def _decode_tuning(
        self, spec: AttentionSpec, cache: torch.Tensor, count: int, *, divided: bool, shared: bool
    ) -> DecodeTuning:
        row, programs = _row(spec, cache), count * spec.num_kv_heads
        tuning = self.decode_tuning
        if tuning is None and divided:
            tuning = split_kv_tuning_for(row[0])
        elif tuning is None and shared:
            tuning = suffix_tuning_for(programs, row[0], self._multiprocessors)
        elif tuning is None:
            fp8 = self._pages is not None
            tuning = tuning_for(programs, row[0], self._multiprocessors, fp8=fp8)
        return tuning.fitted(*row, self._tile_bytes)

    def _kv_splits(
        self, spec: AttentionSpec, batch: AttentionBatch, tuning: DecodeTuning
    ) -> KVSplits:
        """Return the splits of the decodes' keys, for all layers like this one."""
        key = spec.num_kv_heads, tuning
        splits = batch.kv_splits.get(key)
        if splits is None:
            lens = batch.seq_lens[: batch.num_decodes]
            splits = batch.kv_splits[key] = make_kv_splits(
                lens, spec.num_kv_heads, tuning, self._multiprocessors
            )
        return splits

    def _shared_keys(
        self, spec: AttentionSpec, cache: torch.Tensor, prefixes: SharedPrefixes, most: int
    ) -> SharedKeys:
        """Return the shared keys in as many parts, at most `most`, as one large group fills the GPU
        with."""
        tuning = self.shared_tuning.fitted(*_row(spec, cache), self._tile_bytes)
        attend: PrefixAttention = partial(shared_prefix, tuning=tuning)
        at_once = tuning.rows
        hopper = self._hopper_for(spec, cache)
        if hopper is not None:
            attend, at_once = hopper.hopper_shared_prefix, hopper.ROWS
        rows = len(prefixes.prefix_lens) * spec.num_heads // spec.num_kv_heads
        programs = -(-rows // at_once) * spec.num_kv_heads
        parts = 1
        while parts * 2 <= min(MAX_SPLITS, most, self._multiprocessors // programs):
            parts *= 2
        return SharedKeys(prefixes, parts, attend)

    def _prefill(
        self,
        spec: AttentionSpec,
        q: torch.Tensor,
        cache: torch.Tensor,
        batch: AttentionBatch,
        out: torch.Tensor,
    ) -> None:
        heads = spec.num_heads, spec.num_kv_heads
        hopper = self._hopper_for(spec, cache)
        if hopper is not None:
            tiles = self._prefill_tiles(batch, hopper.hopper_tile_tokens(*heads))
            hopper.hopper_prefill(spec, q, cache, batch, tiles, out)
            return
        tuning = self.prefill_tuning.fitted(*_row(spec, cache), self._tile_bytes)
        tiles = self._prefill_tiles(batch, tile_tokens(*heads, tuning))
        paged_prefill(spec, q, cache, batch, tiles, out, tuning)

    def _hopper_for(self, spec: AttentionSpec, cache: torch.Tensor) -> ModuleType | None:
        """Return the Hopper kernels where they compute such a layer."""
        hopper = self._hopper if self.by_hopper else None
        return hopper if hopper is not None and hopper.supports_layer(spec, cache) else None

    def _prefill_tiles(self, batch: AttentionBatch, tokens: int) -> torch.Tensor:
        """Return tiles of `tokens` new tokens of a batch's prefills."""
        tiles = batch.tiles.get(tokens)
        if tiles is None:
            lens = np.asarray(batch.query_lens_cpu[batch.num_decodes :], dtype=np.int32)
            tiles = upload(_tiles(lens, tokens, batch.num_decodes), self._device)
            batch.tiles[tokens] = tiles
        return tiles


def _hopper_kernels() -> ModuleType:
    """Return `hopper.paged_attention`; it imports Gluon, which other GPUs have no use for."""
    from kvasir_engine.attention.hopper import paged_attention

    return paged_attention


def _row(spec: AttentionSpec, cache: torch.Tensor) -> tuple[int, int]:
    """Numbers of a head as kernels keep it, and bytes of one."""
    return max(16, 1 << (spec.head_dim - 1).bit_length()), cache.element_size()


def _tiles(lens: npt.NDArray[np.int32], tokens: int, first_entry: int) -> npt.NDArray[np.int32]:
    """(entry, which of its tiles) [n, 2] of entries of `lens` tokens; the first one's number."""
    counts = -(-lens // tokens)
    entries = np.repeat(np.arange(len(lens), dtype=np.int32), counts)
    first = np.repeat(np.cumsum(counts) - counts, counts)
    which = np.arange(len(entries)) - first
    # Later tiles see more keys: started first, they do not end last.
    pairs = np.stack([entries + first_entry, which], axis=1)[::-1]
    return np.ascontiguousarray(pairs, dtype=np.int32)
