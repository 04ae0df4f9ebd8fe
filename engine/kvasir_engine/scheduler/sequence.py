"""Sample of a request, as the scheduler sees it."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from enum import Enum, auto
from typing import Any

import numpy as np

from kvasir_engine.grammar.matcher import Grammar, GrammarMatcher
from kvasir_engine.grammar.thinking import num_unmasked
from kvasir_engine.kv.block_table import BlockTables
from kvasir_engine.request import EngineRequest
from kvasir_engine.sampling_params import PARAMETERS
from kvasir_engine.step_plan import Int32Array, RowSampling

NEVER = 2**31 - 1
"""Position that no token has."""


class SequenceState(Enum):
    """WAITING has no row; RUNNING owns one; LEAVING owns one until its last step has retired."""

    WAITING = auto()
    RUNNING = auto()
    LEAVING = auto()
    GONE = auto()


@dataclass(slots=True)
class Times:
    """Times at which things happened to a sequence, seconds of the monotonic clock; 0 = not yet."""

    queued: float = 0.0
    started: float = 0.0
    """Time of the plan of its first step."""
    first_token: float = 0.0
    ended: float = 0.0


@dataclass(slots=True, eq=False)
class Sequence:
    """Tokens of one sample. n > 1: the lead carries its `siblings` until they are forked off."""

    request: EngineRequest
    handle: int
    order: int
    """Number of arrival, kept through preemption."""
    tokens: Int32Array
    """All known tokens while it has no row; the row table has them otherwise."""
    num_prompt: int
    limit: int
    """Tokens it may have in all, prompt included."""
    sampling: RowSampling
    siblings: list[Sequence] = field(default_factory=list)
    together: int = 1
    """Requests that start in one step, if this is the first of them: their rows must be free."""
    lead: Sequence | None = None
    """Sequence whose sibling it is, until it is forked off."""
    state: SequenceState = SequenceState.WAITING
    row: int = -1
    tables: BlockTables | None = None
    preempted: bool = False
    """LEAVING, and to wait again once its row is free."""
    reported: int = 0
    """Prompt positions whose log-probabilities were planned, so that none is reported twice."""
    num_cached: int | None = None
    """Prompt tokens found in the prefix cache at first admission."""
    announced: bool = False
    """The first delta (seed, cached tokens) is out."""
    num_preemptions: int = 0
    matcher: GrammarMatcher | None = None
    """Place of its output in what constrains it, if something does: a grammar, a budget."""
    bias: Any = None
    """Tensor that its logits processors gave last, for the token at position `bias_for`."""
    bias_for: int = -1
    times: Times = field(default_factory=Times)

    @property
    def has_processors(self) -> bool:
        """True if each of its tokens needs a bias first."""
        return bool(self.request.params.logits_processors)

    @property
    def awaits_bias(self) -> bool:
        """True if it has no row yet and cannot be given one."""
        return self.has_processors and self.bias_for != len(self.tokens)

    @property
    def rows_needed(self) -> int:
        """Rows that must be free before it may start."""
        return max(self.together, 1 + len(self.siblings))

    @property
    def is_special(self) -> bool:
        """Needs a look at each step: an unforked lead, or prompt log-probabilities."""
        return bool(self.siblings) or self.wants_prompt_logprobs

    @property
    def block_tables(self) -> BlockTables:
        """Block tables of the sequence; only while it has a row."""
        if self.tables is None:
            raise AssertionError(f"sequence {self.handle} holds no blocks.")
        return self.tables

    @property
    def masked_from(self) -> int:
        """Position of the first token that may need a mask; NEVER if none does."""
        if self.matcher is None:
            return NEVER
        return min(NEVER, self.num_prompt + num_unmasked(self.matcher))

    @property
    def wants_prompt_logprobs(self) -> bool:
        """True while prompt positions remain to be reported."""
        top = self.request.params.prompt_logprobs
        return top is not None and self.reported < self.num_prompt - 1


def make_sequences(
    request: EngineRequest,
    *,
    order: int,
    seed: int,
    max_model_len: int,
    grammar: Grammar | None = None,
) -> Sequence:
    """The lead of `request`, with its siblings when n > 1; `seed` is for requests without one."""
    params, resume = request.params, request.resume
    ids = _packed(request.prompt_token_ids)
    if resume is not None:
        ids = np.concatenate((ids, _packed(resume.output_token_ids)))
    first_index = resume.sample_index if resume else 0
    if resume is not None and resume.seed is not None:
        seed = resume.seed
    elif params.seed is not None:
        seed = params.seed
    room = max_model_len - len(request.prompt_token_ids)
    limit = len(request.prompt_token_ids) + min(room, params.max_tokens or room)

    def sample(index: int) -> Sequence:
        return Sequence(
            request=request,
            handle=request.handle + index,
            order=order + index,
            tokens=ids.copy(),
            num_prompt=len(request.prompt_token_ids),
            limit=limit,
            sampling=_row_sampling(request, seed, first_index + index),
            matcher=request.matcher(grammar),
        )

    lead = sample(0)
    lead.siblings = [sample(i) for i in range(1, params.n)]
    for sibling in lead.siblings:
        sibling.lead = lead
    return lead


def _packed(ids: Iterable[int]) -> Int32Array:
    # Faster than numpy with a list, and a plain copy of another array.
    return np.frombuffer(array("i", ids), dtype=np.int32)


def _row_sampling(request: EngineRequest, seed: int, index: int) -> RowSampling:
    params = request.params
    return RowSampling(
        seed=seed,
        sample_index=index,
        bad_words=params.bad_words_token_ids,
        stop_ids=request.all_stop_ids() if params.min_tokens else [],
        **{name: getattr(params, name) for name in _COPIED},
    )


_COPIED = PARAMETERS.keys() & {each.name for each in fields(RowSampling)} - {"seed", "bad_words"}
"""The parameters that the sampler takes as they are."""
