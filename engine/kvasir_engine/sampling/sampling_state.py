"""The sampling parameters of every row of the persistent batch, on the device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from kvasir_engine.device.upload import upload_all
from kvasir_engine.sampling.gumbel import NoiseKeys
from kvasir_engine.sampling.penalties import PenaltyCounts
from kvasir_engine.sampling.philox import MASK_32, split_seed
from kvasir_engine.sampling.row_tokens import RowBadWords, RowTokens
from kvasir_engine.step_plan import RowFork, RowInit, RowSampling

GREEDY_BELOW = 1e-5
"""Lower temperatures are greedy (as in vLLM): dividing by them would overflow fp32."""


@dataclass(frozen=True, slots=True)
class SamplingTables:
    """Tables that sampling kernels read, by row.

    `floats` fp32 [rows, 6]: temperature, top-p, min-p, repetition, presence, frequency. `ints`
    int64 [rows, 5]: low and high word of the seed, sample index, top-k, min_tokens.
    """

    floats: torch.Tensor
    ints: torch.Tensor


class SamplingState:
    """Device arrays by row; the CPU keeps only which features each row uses.

    A row's parameters hold until it is initialised or forked into again, so nothing needs to be
    told when a sequence ends. Device memory: 4 * max_rows * vocab_size bytes of penalty counts,
    allocated at once, and a few hundred bytes a row.
    """

    def __init__(self, *, max_rows: int, vocab_size: int, device: torch.device) -> None:
        self.vocab_size = vocab_size
        self.device = device
        self._floats = torch.zeros(max_rows, 6, dtype=torch.float32, device=device)
        self._ints = torch.zeros(max_rows, 5, dtype=torch.int64, device=device)
        (
            self.temperature,
            self.top_p,
            self.min_p,
            self.repetition,
            self.presence,
            self.frequency,
        ) = self._floats.unbind(1)
        self._seed_low, self._seed_high, self._sample_index, self.top_k, self.min_tokens = (
            self._ints.unbind(1)
        )
        self.tables = SamplingTables(self._floats, self._ints)
        self.random = np.zeros(max_rows, dtype=np.bool_)
        self.has_top_p = np.zeros(max_rows, dtype=np.bool_)
        self.has_top_k = np.zeros(max_rows, dtype=np.bool_)
        self.has_min_p = np.zeros(max_rows, dtype=np.bool_)
        self.has_penalties = np.zeros(max_rows, dtype=np.bool_)
        self.has_edits = np.zeros(max_rows, dtype=np.bool_)
        """Rows whose logits are changed before a token is chosen."""
        self.max_top_k = np.zeros(max_rows, dtype=np.int64)
        self.counts = PenaltyCounts(max_rows=max_rows, vocab_size=vocab_size, device=device)
        self.allowed = RowTokens(max_rows=max_rows, vocab_size=vocab_size, device=device)
        self.bias = RowTokens(max_rows=max_rows, vocab_size=vocab_size, device=device)
        self.early_stops = RowTokens(max_rows=max_rows, vocab_size=vocab_size, device=device)
        self.bad_words = RowBadWords(max_rows=max_rows, vocab_size=vocab_size, device=device)

    def init_rows(self, inits: list[RowInit]) -> None:
        """Rows begin anew, with the penalty counts of the tokens they already have."""
        self._put([init.row for init in inits], [init.sampling for init in inits])
        counted = [init for init in inits if self.has_penalties[init.row]]
        if counted:
            self.counts.init_rows(
                [init.row for init in counted],
                [init.token_ids for init in counted],
                [init.num_prompt for init in counted],
            )

    def fork_rows(self, forks: list[RowFork]) -> None:
        """Each dst takes src's penalty counts and its own sampling parameters.

        Forks of one prompt share its penalties, so src has counts whenever dst needs them.
        """
        self._put([fork.dst for fork in forks], [fork.sampling for fork in forks])
        counted = [fork for fork in forks if self.has_penalties[fork.dst]]
        if counted:
            self.counts.copy_rows([fork.src for fork in counted], [fork.dst for fork in counted])

    def count(self, rows: npt.NDArray[np.int32], tokens: npt.NDArray[np.int32]) -> None:
        """Count output tokens that were not sampled, of any rows: [n] both."""
        counted = self.has_penalties[rows]
        if counted.any():
            given = (rows[counted].astype(np.int64), tokens[counted].astype(np.int64))
            self.counts.record(*upload_all(given, self.device))

    def noise_keys(self, rows: torch.Tensor, positions: torch.Tensor) -> NoiseKeys:
        """Return the keys of the noise of the tokens at `positions` of `rows` (int64 [n],
        device)."""
        return NoiseKeys(
            self._seed_low[rows], self._seed_high[rows], positions, self._sample_index[rows]
        )

    def choose_by_score(self, rows: npt.NDArray[np.int32]) -> bool:
        """Return True if each row's token is the arg max of a score that no other token matters to:
        its logit, or its logit over the temperature plus noise."""
        truncated = self.has_top_p[rows] | self.has_top_k[rows] | self.has_min_p[rows]
        return not (self.has_edits[rows] | (self.random[rows] & truncated)).any()

    def _put(self, rows: list[int], samplings: list[RowSampling]) -> None:
        if not rows:
            return
        for row, sampling in zip(rows, samplings, strict=True):
            self._put_features(row, sampling)
            self._put_tokens(row, sampling)
        floats = np.array([_floats(sampling) for sampling in samplings], dtype=np.float32)
        ints = np.array([self._integers(sampling) for sampling in samplings], dtype=np.int64)
        given = (np.array(rows, dtype=np.int64), ints, floats)
        index, given_ints, given_floats = upload_all(given, self.device)
        self._ints.index_copy_(0, index, given_ints)
        self._floats.index_copy_(0, index, given_floats)

    def _put_features(self, row: int, sampling: RowSampling) -> None:
        self.random[row] = sampling.temperature >= GREEDY_BELOW
        self.has_top_p[row] = sampling.top_p < 1.0
        self.has_top_k[row] = 0 < sampling.top_k < self.vocab_size
        self.has_min_p[row] = sampling.min_p > 0.0
        self.max_top_k[row] = self._top_k(sampling)
        self.has_penalties[row] = (
            sampling.presence_penalty != 0.0
            or sampling.frequency_penalty != 0.0
            or sampling.repetition_penalty != 1.0
        )

        self.has_edits[row] = bool(
            self.has_penalties[row]
            or sampling.logit_bias
            or sampling.allowed_token_ids
            or sampling.bad_words
            or (sampling.min_tokens > 0 and sampling.stop_ids)
        )

    def _put_tokens(self, row: int, sampling: RowSampling) -> None:
        bias = sampling.logit_bias
        self.bias.put(row, _ids(list(bias)), np.array(list(bias.values()), dtype=np.float32))
        self.allowed.put(row, _ids(sampling.allowed_token_ids or []))
        self.early_stops.put(row, _ids(sampling.stop_ids if sampling.min_tokens > 0 else []))
        self.bad_words.put(row, sampling.bad_words)

    def _top_k(self, sampling: RowSampling) -> int:
        in_range = 0 < sampling.top_k < self.vocab_size
        return sampling.top_k if in_range else self.vocab_size

    def _integers(self, sampling: RowSampling) -> tuple[int, ...]:
        low, high = split_seed(sampling.seed)
        top_k = self._top_k(sampling)
        return low, high, sampling.sample_index & MASK_32, top_k, sampling.min_tokens


def _floats(sampling: RowSampling) -> tuple[float, ...]:
    return (
        sampling.temperature,
        sampling.top_p,
        sampling.min_p,
        sampling.repetition_penalty,
        sampling.presence_penalty,
        sampling.frequency_penalty,
    )


def _ids(tokens: list[int]) -> npt.NDArray[np.int64]:
    return np.array(tokens, dtype=np.int64)
