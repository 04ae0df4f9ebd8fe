"""Plan of one step, from the scheduler to the runner, and the output that comes back.

A plan is a complete delta: together with the plans before it, it holds everything a rank needs
(rows, block tables, copies, sampling state, seeds), so that every tensor-parallel rank replays
the same plans and reaches the same tokens without any further message.

Vocabulary: a *row* is a slot of the persistent batch, owned by one sequence until its last
launched step has retired; the *batch* of a step is the list of rows it computes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

# Not numpy's NDArray, which is not always a class: plan_codec reads the fields' types.
Int32Array: TypeAlias = np.ndarray[Any, np.dtype[np.int32]]
Int64Array: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
Float32Array: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]


def common_length(one: Int32Array, other: Int32Array) -> int:
    """Return the length of the common prefix of two arrays."""
    size = min(len(one), len(other))
    differs = one[:size] != other[:size]
    first = int(differs.argmax()) if size else 0
    return first if size and differs[first] else size


@dataclass(slots=True)
class RowSampling:
    """The sampling state a row keeps for its whole life.

    The random bits of the token at position p are Philox((seed, sample_index), (p, purpose,
    vocabulary index)): they depend on nothing else.
    """

    seed: int
    sample_index: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    allowed_token_ids: list[int] | None = None
    bad_words: list[list[int]] = field(default_factory=list)
    stop_ids: list[int] = field(default_factory=list)
    """EOS and stop ids, which may not be sampled before `min_tokens` tokens are out."""
    min_tokens: int = 0


@dataclass(slots=True)
class RowInit:
    """A sequence begins in a row: admission, or resumption after preemption.

    `token_ids` is everything known so far; the first `num_prompt` of them count as prompt for
    penalties and limits, the rest as output. `num_computed` tokens already have their KV in
    `block_tables` (a prefix hit). `block_tables` holds one array of block ids a KV group.
    """

    row: int
    token_ids: Int32Array
    num_prompt: int
    num_computed: int
    block_tables: list[Int32Array]
    sampling: RowSampling


@dataclass(slots=True)
class RowFork:
    """`dst` becomes a copy of `src` (history, lengths) before this step samples (n > 1).

    `block_tables` are dst's own: the full blocks are shared, the last one is copied by the
    `copies` of the next plan.
    """

    src: int
    dst: int
    block_tables: list[Int32Array]
    sampling: RowSampling


@dataclass(slots=True)
class BlockAppends:
    """Blocks appended to tables of one KV group: table[rows[i], index[i]] = blocks[i]."""

    rows: Int32Array
    index: Int32Array
    blocks: Int32Array


@dataclass(slots=True)
class PromptLogprobsPlan:
    """Log-probabilities wanted for prompt positions computed by batch entry `entry`.

    Position p's hidden state predicts token p + 1; `first` is the first such p still to be
    reported, `last` the end (exclusive), `top` the number of alternatives.
    """

    entry: int
    first: int
    last: int
    top: int


@dataclass(slots=True)
class StepPlan:
    """Plan of one step. Order of effects: replacements, forced tokens, inits, appends, copies,
    forward, forks, sampling."""

    step_id: int
    rows: Int32Array
    """Rows computed, [batch]; the first `num_decodes` compute one token each."""
    num_new: Int32Array
    """Tokens computed for each, [batch]."""
    starts: Int32Array
    """Position of each row's first new token, [batch]. The device keeps its own."""
    num_decodes: int
    sample_entries: Int32Array
    """Batch entries whose last hidden state is sampled from, [samples]; n > 1 names one twice."""
    sample_rows: Int32Array
    """The row each sampled token belongs to, [samples]."""
    replaced: Int32Array | None = None
    """Last tokens that are others than was sampled: [n, 3], row, index in its history, token."""
    forced: Int32Array | None = None
    """Tokens appended behind the last sampled ones, in order: [n, 3], row, index in its history,
    token. They count as output, and their KV is computed like a prompt's."""
    inits: list[RowInit] = field(default_factory=list)
    forks: list[RowFork] = field(default_factory=list)
    appends: list[BlockAppends] = field(default_factory=list)
    """Blocks appended, an entry a KV group (or none at all when no block was appended)."""
    copies: list[Int32Array] = field(default_factory=list)
    """Blocks to copy: a [pairs, 2] array of (source block, destination block) a KV group, or none
    at all."""
    top_logprobs: int = -1
    """Maximum alternatives any sampled row wants: -1 none, 0 the sampled token's alone."""
    prompt_logprobs: list[PromptLogprobsPlan] = field(default_factory=list)
    masked: Int32Array | None = None
    """Indices into `sample_rows` of rows that a grammar constrains, [masked]; None = there are
    none."""
    masks: Int32Array | None = None
    """Tokens that each of these may sample, [masked, words] (grammar/matcher.py); filled between
    the forward pass and the sampling."""

    biased: Int32Array | None = None
    """Indices into `sample_rows` of rows that have logits processors, [biased]; None = there are
    none. Of plans within one process alone."""
    biases: list[Any] = field(default_factory=list)
    """Tensors that are added to the logits of each of these, float32 [vocab] of any device."""

    @property
    def num_tokens(self) -> int:
        """Tokens computed by this step."""
        if self.num_decodes == len(self.num_new):
            return self.num_decodes
        return int(self.num_new.sum())


@dataclass(slots=True)
class TokenLogprobs:
    """Log-probabilities of n tokens, and of the most likely ones in their places.

    They are of the raw logits (before penalties, masks and temperature), base e.
    """

    logprobs: Float32Array
    """[n]."""
    ranks: Int32Array
    """[n], 1 = most likely."""
    top_ids: Int32Array
    """[n, top], most likely first."""
    top_logprobs: Float32Array
    """[n, top]."""


@dataclass(slots=True)
class PromptLogprobs:
    """Log-probabilities of prompt tokens first+1 .. first+len of one row, in order."""

    row: int
    first: int
    found: TokenLogprobs


@dataclass(slots=True)
class StepOutput:
    """Output of one step, on the CPU. Arrays follow the plan's `sample_rows`."""

    step_id: int
    tokens: Int32Array
    """[samples]."""
    logprobs: TokenLogprobs | None = None
    """Log-probabilities of the sampled tokens, when the plan asks for any."""
    prompt_logprobs: list[PromptLogprobs] = field(default_factory=list)
