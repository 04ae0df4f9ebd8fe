"""The simulated runner: step plans cost a device's time and yield deterministic tokens.

Everything around it is real (scheduler, KV manager, processes, server); only the forward pass
is a sleep as long as a `SpeedProfile` says, and a token is a function of its request's seed,
sample index and position alone, as with a real sampler. numpy only.

Randomness is splitmix64 (Steele et al., "Fast splittable pseudorandom number generators", OOPSLA
2014), not the sampler's Philox: ten array operations a step instead of eighty.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from kvasir_engine.sim.latency_model import SpeedProfile
from kvasir_engine.step_plan import (
    Int32Array,
    Int64Array,
    PromptLogprobs,
    PromptLogprobsPlan,
    RowFork,
    RowInit,
    RowSampling,
    StepOutput,
    StepPlan,
    TokenLogprobs,
)

UInt64Array: TypeAlias = npt.NDArray[np.uint64]
MASK_64 = (1 << 64) - 1
GAMMA = np.uint64(0x9E3779B97F4A7C15)
"""The step of splitmix64's counter: 2^64 over the golden ratio."""
OF_SAMPLE, OF_PROMPT = 0, 1 << 63
"""Offsets that keep prompt log-probabilities from sharing bits with samples."""
GREEDY_SEED = 0x6B7661736972
"""Greedy rows answer the same whatever their seed is."""

_MULTIPLIER_1, _MULTIPLIER_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_27, _30, _31, _32 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)


@dataclass(slots=True)
class SimStep:
    """A launched step: its output is known, and is due when the device would have it."""

    output: StepOutput
    due: float
    """time.monotonic() seconds."""

    def wait(self) -> StepOutput:
        """StepHandle.wait: sleep until the step is due."""
        left = self.due - time.monotonic()
        if left > 0:
            time.sleep(left)
        return self.output


class SimRunner:
    """A device that runs one step after the other, each as long as the profile says.

    Sampled tokens lie in `ordinary`, a range of ids without EOS or other special tokens.
    """

    def __init__(
        self,
        profile: SpeedProfile,
        *,
        num_rows: int,
        vocab_size: int,
        ordinary: range,
    ) -> None:
        if not (0 <= ordinary.start < ordinary.stop <= vocab_size and ordinary.step == 1):
            raise ValueError(
                f"ordinary must be a non-empty range within 0..{vocab_size}, got {ordinary}."
            )
        self._profile = profile
        self._vocabulary = range(vocab_size)
        self._ordinary = ordinary
        self._free_at = 0.0
        self._num_tokens = np.zeros(num_rows, dtype=np.int64)
        self._streams = np.zeros(num_rows, dtype=np.uint64)
        self._greedy = np.zeros(num_rows, dtype=np.bool_)
        self._greedy_stream = stream_of(GREEDY_SEED, 0)
        self._known: dict[int, Int32Array] = {}
        """The tokens each row began with."""

    def forward(self, plan: StepPlan) -> None:
        """Runner.forward: the step starts when the one before it has ended."""
        if plan.forced is not None:
            np.add.at(self._num_tokens, plan.forced[:, 0], 1)
        for init in plan.inits:
            self._init(init)
        start = max(time.monotonic(), self._free_at)
        self._free_at = start + self._step_ms(plan) / 1e3

    def sample(self, plan: StepPlan) -> SimStep:
        """Runner.sample."""
        for fork in plan.forks:
            self._fork(fork)
        self._free_at = max(time.monotonic(), self._free_at)
        prompts = [self._prompt_logprobs(plan, wanted) for wanted in plan.prompt_logprobs]
        output = self._sample(plan)
        output.prompt_logprobs = prompts
        return SimStep(output, self._free_at)

    def recover(self, error: Exception) -> bool:
        """Runner.recover: rows that begin anew are all it takes."""
        return False

    def close(self) -> None:
        """Runner.close: there is nothing to free."""

    def _init(self, init: RowInit) -> None:
        self._num_tokens[init.row] = len(init.token_ids)
        self._known[init.row] = init.token_ids
        self._put_sampling(init.row, init.sampling)

    def _fork(self, fork: RowFork) -> None:
        self._num_tokens[fork.dst] = self._num_tokens[fork.src]
        self._put_sampling(fork.dst, fork.sampling)

    def _put_sampling(self, row: int, sampling: RowSampling) -> None:
        greedy = sampling.temperature == 0.0
        self._greedy[row] = greedy
        self._streams[row] = (
            self._greedy_stream if greedy else stream_of(sampling.seed, sampling.sample_index)
        )

    def _step_ms(self, plan: StepPlan) -> float:
        decodes = plan.num_decodes
        context = int(plan.starts[:decodes].sum()) + decodes
        pairs = 0.0
        if decodes < len(plan.rows):
            count = plan.num_new[decodes:].astype(np.float64)
            pairs = float((count * (plan.starts[decodes:] + count / 2)).sum())
        return self._profile.step_ms(plan.num_tokens, context, pairs)

    def _sample(self, plan: StepPlan) -> StepOutput:
        rows = plan.sample_rows
        if not len(rows):
            return StepOutput(plan.step_id, np.empty(0, dtype=np.int32))
        lengths = self._num_tokens[rows]
        streams = self._streams[rows]
        words = self._words(streams, lengths, OF_SAMPLE)
        ordinary = self._ordinary
        tokens = (words % np.uint64(len(ordinary))).astype(np.int32) + ordinary.start
        if plan.masked is not None:
            constrain(tokens, plan)
        output = StepOutput(plan.step_id, tokens)
        if plan.top_logprobs >= 0:
            output.logprobs = simulated_logprobs(
                words, tokens, self._greedy[rows], plan.top_logprobs, ordinary
            )
        self._num_tokens[rows] = lengths + 1
        return output

    def _prompt_logprobs(self, plan: StepPlan, wanted: PromptLogprobsPlan) -> PromptLogprobs:
        row = int(plan.rows[wanted.entry])
        positions = np.arange(wanted.first + 1, wanted.last + 1)
        tokens = self._known[row][wanted.first + 1 : wanted.last + 1]
        words = self._words(self._streams[row : row + 1], positions, OF_PROMPT)
        likeliest = np.zeros(len(positions), dtype=np.bool_)
        found = simulated_logprobs(words, tokens, likeliest, wanted.top, self._vocabulary)
        return PromptLogprobs(row, wanted.first, found)

    @staticmethod
    def _words(streams: UInt64Array, positions: Int64Array, purpose: int) -> UInt64Array:
        """Random words [n] for the tokens at `positions` [n] of `streams` [n] or [1]."""
        return mix(streams + (positions.view(np.uint64) + np.uint64(purpose)) * GAMMA)


def constrain(tokens: Int32Array, plan: StepPlan) -> None:
    """Replace, in place, tokens that the plan's masks ban by the first that they allow."""
    if plan.masked is None or plan.masks is None:
        raise RuntimeError("sample() was called before the plan had its masks.")
    bits = np.unpackbits(plan.masks.view(np.uint8), axis=1, bitorder="little")
    chosen = tokens[plan.masked]
    banned = bits[np.arange(len(chosen)), chosen] == 0
    tokens[plan.masked[banned]] = bits[banned].argmax(axis=1)


def mix(z: UInt64Array) -> UInt64Array:
    """splitmix64's output function: a bijection whose every bit depends on all of its input's."""
    z = (z ^ (z >> _30)) * _MULTIPLIER_1
    z = (z ^ (z >> _27)) * _MULTIPLIER_2
    return z ^ (z >> _31)


def stream_of(seed: int, sample_index: int) -> np.uint64:
    """Return where the counter of a sample begins; negative seeds are taken modulo 2^64."""
    start = mix(np.array([seed & MASK_64], dtype=np.uint64))
    return np.uint64(mix(start + np.array([sample_index], dtype=np.uint64) * GAMMA)[0])


def simulated_logprobs(
    words: UInt64Array, tokens: Int32Array, likeliest: npt.NDArray[np.bool_], top: int, ids: range
) -> TokenLogprobs:
    """Log-probabilities that a model might have given.

    They are a geometric distribution p (1 - p)^(rank - 1) over the cycle `ids` around each token.
    Two further draws from each word [n]: one sets p within 0.3 .. 0.8, one the token's rank, so
    that ranks occur as often as they say; `likeliest` tokens have rank 1.
    """
    further = mix(words + GAMMA)
    of_rank, of_p = (further >> _32) + 0.5, (further & _LOW) + 0.5
    p = 0.3 + 0.5 * of_p * 2.0**-32
    decay = np.log1p(-p)
    skipped = np.minimum(np.log(of_rank * 2.0**-32) // decay, len(ids) - 1).astype(np.int64)
    skipped[likeliest] = 0
    columns = np.arange(min(top, len(ids)))
    first = tokens - ids.start - skipped
    return TokenLogprobs(
        logprobs=(np.log(p) + skipped * decay).astype(np.float32),
        ranks=(skipped + 1).astype(np.int32),
        top_ids=(ids.start + (first[:, None] + columns) % len(ids)).astype(np.int32),
        top_logprobs=(np.log(p)[:, None] + columns * decay[:, None]).astype(np.float32),
    )
