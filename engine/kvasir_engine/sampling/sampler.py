"""Sampler from logits to tokens: stateless, for every row of a step.

Order, as in vLLM and HF: log-probabilities of the raw logits; allowed ids, bad words, early
stops, logit bias, biases of logits processors, penalties, masks of grammars; then the arg max of
greedy rows, or temperature, min-p, top-k, top-p and the arg max under Gumbel noise, which is a draw
from the softmax (Gumbel 1954).

Nothing waits for the device: which features are in play is known on the CPU from the rows' own
parameters, and each is computed for the rows that use it alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kvasir_engine.device.capability import kernels_run_on
from kvasir_engine.device.collectives import all_gather
from kvasir_engine.device.upload import upload
from kvasir_engine.device.vocab_shard import VocabShard
from kvasir_engine.sampling import logits as edits
from kvasir_engine.sampling.gumbel import gumbel_noise
from kvasir_engine.sampling.penalties import PenaltyCounts
from kvasir_engine.sampling.row_tokens import TokenLists
from kvasir_engine.sampling.sampling_state import SamplingState, SamplingTables
from kvasir_engine.sampling.token_logprobs import Logprobs, token_logprobs
from kvasir_engine.step_plan import Int32Array, Int64Array

BoolArray: TypeAlias = npt.NDArray[np.bool_]
Mask: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Maps logits [n, vocab] and their rows [n] to masked logits."""

MaskKernel: TypeAlias = Callable[[Tensor, Tensor, Tensor], None]
"""`sampling.mask_kernel.ban_unset`."""
PenaltyKernel: TypeAlias = Callable[[Tensor, Tensor, PenaltyCounts, SamplingTables], Tensor]
"""`sampling.penalty_kernel.penalise`."""


class SampleKernel(Protocol):
    """`sampling.sample_kernel.sample`."""

    def __call__(
        self,
        logits: Tensor,
        rows: Tensor,
        positions: Tensor,
        tables: SamplingTables,
        *,
        shard: VocabShard | None = None,
    ) -> Tensor:
        """Return a token for each row."""
        ...


@dataclass(frozen=True, slots=True)
class Kernels:
    """Kernels that take logits of any float type."""

    sample: SampleKernel
    penalise: PenaltyKernel
    ban_unset: MaskKernel


def _kernels(device: torch.device) -> Kernels | None:
    """The kernels where they run, else None."""
    if not kernels_run_on(device):
        return None
    # Not at the top: they import triton, which the CPU does not need.
    from kvasir_engine.sampling.mask_kernel import ban_unset
    from kvasir_engine.sampling.penalty_kernel import penalise
    from kvasir_engine.sampling.sample_kernel import sample

    return Kernels(sample, penalise, ban_unset)


@dataclass(frozen=True, slots=True)
class GrammarMasks:
    """Masks of the entries that a grammar constrains, on the device: int64 [n] entries, int32
    [n, words] masks (grammar/matcher.py)."""

    entries: Tensor
    masks: Tensor


@dataclass(frozen=True, slots=True)
class RowBiases:
    """Biases of the entries that have logits processors: fp32 [vocab] each, of any device."""

    entries: list[int]
    biases: list[Tensor]

    def add_to(self, logits: Tensor) -> None:
        """Add them to logits fp32 [m, vocab], one by one: no memory is set aside for them."""
        for entry, bias in zip(self.entries, self.biases, strict=True):
            logits[entry] += bias.to(logits.device)


@dataclass(frozen=True, slots=True)
class SampleBatch:
    """The rows of one step that sample a token.

    `rows` (device int64 [m]) and `rows_cpu` are the same rows, all different. `positions` (device
    int64 [m]) are the positions of the tokens to be sampled, that is, how many tokens each row
    has. `history` (device int [max_rows, max_len]) holds each row's tokens and `num_prompt`
    (device int [max_rows]) how many of them are prompt.
    """

    rows: Tensor
    rows_cpu: Int32Array
    positions: Tensor
    history: Tensor
    num_prompt: Tensor
    masks: GrammarMasks | None = None
    biases: RowBiases | None = None


@dataclass(frozen=True, slots=True)
class Sampled:
    """Tokens that a step sampled, on the device: int32 [m] tokens and log-probs."""

    tokens: Tensor
    logprobs: Logprobs | None


class Sampler:
    """Sample one token for each row of a batch under the rows' own parameters."""

    def __init__(self, state: SamplingState) -> None:
        self._state = state
        self._device = state.device
        self._chunk = edits.chunk_rows(state.vocab_size)
        self._kernels = _kernels(state.device)

    @property
    def by_kernel(self) -> bool:
        """True if a kernel chooses tokens."""
        return self._kernels is not None

    def __call__(self, logits: Tensor, batch: SampleBatch, top_logprobs: int = -1) -> Sampled:
        """Sample from raw logits [m, vocab], which may be overwritten, and count the tokens.

        `top_logprobs` is the most alternatives any row wants, 0 the sampled token's
        log-probability alone, -1 none at all.
        """
        if self._kernels is None:
            logits = logits.float()
        edited = self._edit(logits, batch, keep_raw=top_logprobs >= 0)
        if batch.masks is not None:
            if edited is logits and top_logprobs >= 0:
                edited = logits.clone()
            self._ban_unset(edited, batch.masks)
        tokens = self._choose(edited, batch)
        logprobs = token_logprobs(logits, tokens, top_logprobs) if top_logprobs >= 0 else None
        self._count(tokens, batch)
        return Sampled(tokens=tokens.to(torch.int32), logprobs=logprobs)

    def of_shard(self, logits: Tensor, batch: SampleBatch, shard: VocabShard) -> Sampled:
        """Sample from this rank's logits [m, >= shard.count] and those of the other ranks, of which
        only the best score of each row is gathered.

        The tokens are those that all logits would give. For rows whose token is chosen by score
        alone (`SamplingState.choose_by_score`).
        """
        if self._kernels is not None:
            tables = self._state.tables
            tokens = self._kernels.sample(logits, batch.rows, batch.positions, tables, shard=shard)
            return Sampled(tokens=tokens, logprobs=None)
        best = self._best_of_shard(logits[:, : shard.count].float(), batch, shard)
        scores, tokens = all_gather(best).view(len(best), -1, 2).unbind(-1)
        chosen = tokens.gather(1, scores.argmax(-1, keepdim=True)).squeeze(1)
        return Sampled(tokens=chosen.to(torch.int32), logprobs=None)

    def _best_of_shard(self, logits: Tensor, batch: SampleBatch, shard: VocabShard) -> Tensor:
        """The best score and its token of each row, fp32 [m, 2]."""
        if shard.count == 0:
            return logits.new_tensor([-torch.inf, 0.0]).expand(len(logits), 2)
        state = self._state
        entries = np.flatnonzero(state.random[batch.rows_cpu])
        for start in range(0, entries.size, self._chunk):
            index = upload(entries[start : start + self._chunk], self._device)
            rows = batch.rows[index]
            keys = state.noise_keys(rows, batch.positions[index])
            scores = logits[index].div_(state.temperature[rows].unsqueeze(1))
            scores.add_(gumbel_noise(keys, shard.count, first=shard.first))
            logits.index_copy_(0, index, scores)
        best = logits.argmax(-1, keepdim=True)
        return torch.cat([logits.gather(1, best), best.float() + shard.first], dim=1)

    def _edit(self, logits: Tensor, batch: SampleBatch, *, keep_raw: bool) -> Tensor:
        """Masks, bans, biases and penalties: in place, or on a copy when raw logits are needed."""
        state, rows = self._state, batch.rows_cpu
        if not state.has_edits[rows].any() and batch.biases is None:
            return logits
        allowed = state.allowed.of_batch(rows)
        words = state.bad_words.of_batch(rows)
        stops = state.early_stops.of_batch(rows)
        bias = state.bias.of_batch(rows)
        penalised = np.flatnonzero(state.has_penalties[rows])
        by_kernel = None if self._kernels is None else self._kernels.penalise
        if allowed or words or stops or bias or batch.biases or by_kernel is None:
            logits = logits.to(torch.float32, copy=keep_raw)
        if allowed is not None:
            edits.keep_allowed(logits, allowed)
        if words is not None:
            self._ban_words(logits, batch, *words)
        if stops is not None:
            self._ban_early_stops(logits, batch, stops)
        if bias is not None:
            logits.view(-1).scatter_add_(0, bias.flat, bias.values)
        if batch.biases is not None:
            batch.biases.add_to(logits)
        if by_kernel is not None and penalised.size:
            return by_kernel(logits, batch.rows, state.counts, state.tables)
        for start in range(0, penalised.size, self._chunk):
            self._penalise(logits, batch, penalised[start : start + self._chunk])
        return logits

    def _ban_unset(self, logits: Tensor, masks: GrammarMasks) -> None:
        ban = edits.ban_unset if self._kernels is None else self._kernels.ban_unset
        ban(logits, masks.entries, masks.masks)

    def _ban_words(
        self, logits: Tensor, batch: SampleBatch, last: TokenLists, prefixes: Tensor
    ) -> None:
        owners, lengths = batch.rows[last.owner], batch.positions[last.owner]
        banned = edits.ends_with(batch.history, owners, lengths, prefixes)
        edits.ban_where(logits, last, banned)

    def _ban_early_stops(self, logits: Tensor, batch: SampleBatch, stops: TokenLists) -> None:
        rows = batch.rows[stops.owner]
        outputs = batch.positions[stops.owner] - batch.num_prompt[rows]
        edits.ban_where(logits, stops, outputs < self._state.min_tokens[rows])

    def _penalise(self, logits: Tensor, batch: SampleBatch, entries: Int64Array) -> None:
        state, index = self._state, upload(entries, self._device)
        rows = batch.rows[index]
        penalised = state.counts.apply(
            logits[index],
            rows,
            repetition=state.repetition[rows].unsqueeze(1),
            presence=state.presence[rows].unsqueeze(1),
            frequency=state.frequency[rows].unsqueeze(1),
        )
        logits.index_copy_(0, index, penalised)

    def _choose(self, logits: Tensor, batch: SampleBatch) -> Tensor:
        """The arg max of greedy rows and a draw for the others, int64 [m]."""
        random = self._state.random[batch.rows_cpu]
        entries = np.flatnonzero(random)
        if entries.size == 0:
            return logits.argmax(-1)
        if self._kernels is not None:
            tables = self._state.tables
            return self._kernels.sample(logits, batch.rows, batch.positions, tables).long()
        drawn = [
            self._draw(logits, batch, entries[start : start + self._chunk])
            for start in range(0, entries.size, self._chunk)
        ]
        tokens = drawn[0] if len(drawn) == 1 else torch.cat(drawn)
        if entries.size == random.size:
            return tokens
        return logits.argmax(-1).index_copy_(0, upload(entries, self._device), tokens)

    def _draw(self, logits: Tensor, batch: SampleBatch, entries: Int64Array) -> Tensor:
        state, index = self._state, upload(entries, self._device)
        rows, positions = batch.rows[index], batch.positions[index]
        scaled = logits[index].div_(state.temperature[rows].unsqueeze(1))
        scaled = self._truncate(scaled, rows, batch.rows_cpu[entries])
        noise = gumbel_noise(state.noise_keys(rows, positions), state.vocab_size)
        return scaled.add_(noise).argmax(-1)

    def _truncate(self, logits: Tensor, rows: Tensor, rows_cpu: Int32Array) -> Tensor:
        """min-p, top-k and top-p, each for the rows that ask for it; top-p's sort serves both."""
        state = self._state
        top_p = state.has_top_p[rows_cpu]
        top_k = state.has_top_k[rows_cpu] & ~top_p
        largest = int(state.max_top_k[rows_cpu[top_k]].max(initial=1))

        def by_min_p(part: Tensor, of: Tensor) -> Tensor:
            return edits.mask_min_p(part, state.min_p[of].unsqueeze(1))

        def by_top_k(part: Tensor, of: Tensor) -> Tensor:
            return edits.mask_top_k(part, state.top_k[of].unsqueeze(1), largest)

        def by_top_p(part: Tensor, of: Tensor) -> Tensor:
            k, p = state.top_k[of].unsqueeze(1), state.top_p[of].unsqueeze(1)
            return edits.mask_top_k_top_p(part, k, p)

        logits = self._where(state.has_min_p[rows_cpu], by_min_p, logits, rows)
        logits = self._where(top_k, by_top_k, logits, rows)
        return self._where(top_p, by_top_p, logits, rows)

    def _where(self, wanted: BoolArray, mask: Mask, logits: Tensor, rows: Tensor) -> Tensor:
        """Logits with `mask` applied to the wanted entries only."""
        if wanted.all():
            return mask(logits, rows)
        entries = np.flatnonzero(wanted)
        if entries.size == 0:
            return logits
        index = upload(entries, self._device)
        return logits.index_copy_(0, index, mask(logits[index], rows[index]))

    def _count(self, tokens: Tensor, batch: SampleBatch) -> None:
        """Count sampled tokens for penalties."""
        entries = np.flatnonzero(self._state.has_penalties[batch.rows_cpu])
        if entries.size:
            index = upload(entries, self._device)
            self._state.counts.record(batch.rows[index], tokens[index])
