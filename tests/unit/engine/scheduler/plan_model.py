"""A device made of numpy that replays step plans and asserts what a device relies on.

In every slot of every block stands the identity of the token prefix that was written there. At
every step each position a row attends to must be in its table and hold the row's own prefix.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from kvasir_engine.kv.groups import NULL_BLOCK, KVGroupSpec
from kvasir_engine.step_plan import (
    PromptLogprobs,
    PromptLogprobsPlan,
    RowInit,
    RowSampling,
    StepOutput,
    StepPlan,
    TokenLogprobs,
)

from .fake_grammar import VOCAB
from .lone import continuations, draw, extend, identities


@dataclass
class DeviceRow:
    """A row as the device knows it."""

    tokens: list[int]
    identities: list[int]
    num_prompt: int
    num_computed: int
    tables: list[list[int]]
    sampling: RowSampling


@dataclass
class ModelStep:
    """A launched step; its results are seen by wait() only."""

    model: PlanModel
    plan: StepPlan
    output: StepOutput
    sampled_identities: list[int]
    rows: set[int]
    blocks: set[tuple[int, int]]

    def wait(self) -> StepOutput:
        """StepHandle.wait."""
        self.model.unretired.remove(self)
        self.model.known.update(self.sampled_identities)
        return self.output


class PlanModel:
    """Execute plans exactly, and assert what a device relies on."""

    def __init__(
        self,
        groups: Sequence[KVGroupSpec],
        num_blocks: Sequence[int],
        *,
        num_rows: int,
        budget: int,
        salt_of: Callable[[RowSampling], str],
    ) -> None:
        self.groups = groups
        self.size = groups[0].block_size
        self.num_rows = num_rows
        self.budget = budget
        self.slots = [np.zeros((count, self.size), dtype=np.int64) for count in num_blocks]
        self.rows: dict[int, DeviceRow] = {}
        self.unretired: list[ModelStep] = []
        self.written: set[int] = set()
        """Identities of prefixes whose last position a launched step has computed."""
        self.known: set[int] = set()
        """Identities of prefixes whose tokens the CPU knows."""
        self.plans: list[StepPlan] = []
        self._salt_of = salt_of
        self._blocks: set[tuple[int, int]] = set()
        self._skips_allowed = 0

    # -- Runner -----------------------------------------------------------------------------

    def forward(self, plan: StepPlan) -> None:
        """Runner.forward."""
        last = self.plans[-1].step_id if self.plans else -1
        missing = plan.step_id - last - 1
        assert 0 <= missing <= self._skips_allowed, "a step is missing or repeated"
        self._skips_allowed = 0
        self.plans.append(plan)
        self._blocks = set()
        self._check_shape(plan)
        for row, index, token in () if plan.replaced is None else plan.replaced.tolist():
            self._replace(self.rows[row], index, token)
        for row, index, token in () if plan.forced is None else plan.forced.tolist():
            self._force(self.rows[row], index, token)
        for init in plan.inits:
            self._init(init)
        self._append(plan)
        self._copy(plan)
        for row, start, count in self._entries(plan):
            self._write(self.rows[row], start, count)
        for row, start, count in self._entries(plan):
            self._read(self.rows[row], start, count)

    def sample(self, plan: StepPlan) -> ModelStep:
        """Runner.sample."""
        for row, start, count in self._entries(plan):
            self.rows[row].num_computed = start + count
        reports = [self._prompt_logprobs(plan, wanted) for wanted in plan.prompt_logprobs]
        for fork in plan.forks:
            self._fork(plan, fork.src, fork.dst, fork.block_tables, fork.sampling)
        tokens = [
            self._sample_one(plan, entry, row)
            for entry, row in zip(
                plan.sample_entries.tolist(), plan.sample_rows.tolist(), strict=True
            )
        ]
        output = StepOutput(plan.step_id, np.array(tokens, dtype=np.int32), prompt_logprobs=reports)
        self._check_biases(plan)
        if plan.top_logprobs >= 0:
            self._add_logprobs(plan, output, min(plan.top_logprobs, VOCAB))
        sampled = [self.rows[row].identities[-1] for row in plan.sample_rows.tolist()]
        named = {*plan.rows.tolist(), *plan.sample_rows.tolist()}
        step = ModelStep(self, plan, output, sampled, named, self._blocks)
        self.unretired.append(step)
        return step

    def recover(self, error: Exception) -> bool:
        """Runner.recover: what any row holds may be wrong."""
        self.rows.clear()
        self.unretired.clear()
        self._skips_allowed += 1
        return isinstance(error, MemoryError)

    def close(self) -> None:
        """Runner.close."""

    # -- state ------------------------------------------------------------------------------

    def _check_shape(self, plan: StepPlan) -> None:
        rows = plan.rows.tolist()
        assert rows, "an empty step"
        assert len(set(rows)) == len(rows)
        assert all(0 <= row < self.num_rows for row in rows)
        assert plan.num_new.min() >= 1
        assert (plan.num_new[: plan.num_decodes] == 1).all()
        assert plan.num_tokens <= self.budget, "the budget is exceeded"
        samples = plan.sample_rows.tolist()
        assert len(set(samples)) == len(samples) == len(plan.sample_entries)

    def _replace(self, row: DeviceRow, index: int, token: int) -> None:
        assert row.num_computed == index == len(row.tokens) - 1, "only what is not computed yet"
        row.tokens[-1] = token
        row.identities[-1] = extend(row.identities[-2], token)
        self.known.add(row.identities[-1])

    def _force(self, row: DeviceRow, index: int, token: int) -> None:
        assert index == len(row.tokens), "only behind what was sampled"
        row.tokens.append(token)
        row.identities.append(extend(row.identities[-1], token))
        self.known.add(row.identities[-1])

    def _init(self, init: RowInit) -> None:
        self._assert_free_row(init.row)
        tokens = init.token_ids.tolist()
        known = identities(self._salt_of(init.sampling), tokens)
        self.known.update(known)
        assert 0 <= init.num_computed < len(tokens), "a hit must leave a token to compute"
        self.rows[init.row] = DeviceRow(
            tokens=tokens,
            identities=known,
            num_prompt=init.num_prompt,
            num_computed=init.num_computed,
            tables=[table.tolist() for table in init.block_tables],
            sampling=init.sampling,
        )

    def _append(self, plan: StepPlan) -> None:
        assert len(plan.appends) in (0, len(self.groups))
        for group, appended in enumerate(plan.appends):
            for row, index, block in zip(
                appended.rows.tolist(),
                appended.index.tolist(),
                appended.blocks.tolist(),
                strict=True,
            ):
                self._assert_free_block(group, block)
                table = self.rows[row].tables[group]
                assert index == len(table), "blocks are appended in order"
                table.append(block)

    def _copy(self, plan: StepPlan) -> None:
        assert len(plan.copies) in (0, len(self.groups))
        for group, pairs in enumerate(plan.copies):
            source, destination = pairs[:, 0], pairs[:, 1]
            assert len(set(destination.tolist())) == len(destination)
            assert NULL_BLOCK not in pairs
            self.slots[group][destination] = self.slots[group][source]
            self._blocks.update((group, block) for block in pairs.ravel().tolist())

    def _fork(
        self, plan: StepPlan, src: int, dst: int, tables: list[Any], sampling: RowSampling
    ) -> None:
        self._assert_free_row(dst)
        lead = self.rows[src]
        assert src in plan.rows
        assert lead.num_computed == len(lead.tokens) == lead.num_prompt
        own = [table.tolist() for table in tables]
        for group, table in enumerate(own):
            full = len(lead.tokens) // self.size
            assert table[:full] == [
                new if new == NULL_BLOCK else old
                for new, old in zip(table, lead.tables[group][:full], strict=False)
            ], "full blocks are shared"
            for block in table[full:]:
                self._assert_free_block(group, block)
                # What fell out of the lead's window may have been handed on to the sibling.
                kept = [*table[:full], *lead.tables[group][full:]]
                assert block not in kept, "a partial block has one owner"
        self.rows[dst] = DeviceRow(
            tokens=list(lead.tokens),
            identities=list(lead.identities),
            num_prompt=lead.num_prompt,
            num_computed=lead.num_computed,
            tables=own,
            sampling=sampling,
        )

    def _assert_free_row(self, row: int) -> None:
        if any(row in step.rows for step in self.unretired):
            # No exception of a step, which would end its requests alone.
            pytest.fail("a row named by an unfinished step was handed on")

    def _assert_free_block(self, group: int, block: int) -> None:
        assert block != NULL_BLOCK
        if any((group, block) in step.blocks for step in self.unretired):
            pytest.fail("a block named by an unfinished step was handed on")

    # -- one step -----------------------------------------------------------------------------

    def _entries(self, plan: StepPlan) -> list[tuple[int, int, int]]:
        rows, starts = plan.rows.tolist(), plan.starts.tolist()
        return list(zip(rows, starts, plan.num_new.tolist(), strict=True))

    def _write(self, row: DeviceRow, start: int, count: int) -> None:
        assert start == row.num_computed, "the scheduler and the device disagree on a length"
        assert start + count <= len(row.tokens), "a token that does not exist is computed"
        self.written.update(row.identities[start : start + count])
        for group in range(len(self.groups)):
            for position in range(start, start + count):
                block = row.tables[group][position // self.size]
                assert block != NULL_BLOCK
                self._blocks.add((group, block))
                self.slots[group][block, position % self.size] = row.identities[position]

    def _read(self, row: DeviceRow, start: int, count: int) -> None:
        for group, spec in enumerate(self.groups):
            first = 0 if spec.window is None else max(0, start - spec.window + 1)
            positions = np.arange(first, start + count)
            table = np.array(row.tables[group])
            blocks = table[positions // self.size]
            assert NULL_BLOCK not in blocks, "a position inside the window is not kept"
            found = self.slots[group][blocks, positions % self.size]
            assert found.tolist() == row.identities[first : start + count], (
                "a row reads what is not its own prefix"
            )
            self._blocks.update((group, block) for block in blocks.tolist())

    def _sample_one(self, plan: StepPlan, entry: int, at: int) -> int:
        row, computed = self.rows[at], int(plan.rows[entry])
        assert computed == at or (computed, at) in [(fork.src, fork.dst) for fork in plan.forks]
        assert row.num_computed == len(row.tokens), "sampled before all is computed"
        position = len(row.tokens)
        outputs = position - row.num_prompt
        allowed = self._allowed(plan, at)
        token = draw(row.sampling, row.identities[-1], position, outputs, allowed)
        row.tokens.append(token)
        row.identities.append(extend(row.identities[-1], token))
        return token

    def _allowed(self, plan: StepPlan, at: int) -> list[int]:
        if plan.masked is None or at not in (masked := plan.sample_rows[plan.masked].tolist()):
            return list(range(VOCAB))
        assert plan.masks is not None, "sampled without the grammars' masks"
        word = int(plan.masks[masked.index(at), 0])
        return [token for token in range(VOCAB) if word >> token & 1]

    def _check_biases(self, plan: StepPlan) -> None:
        """A bias here is the list of the tokens that it is made of."""
        biased = [] if plan.biased is None else plan.sample_rows[plan.biased].tolist()
        for row, bias in zip(biased, plan.biases, strict=True):
            assert bias == self.rows[row].tokens[:-1], "a bias of other tokens"

    def _prompt_logprobs(self, plan: StepPlan, wanted: PromptLogprobsPlan) -> PromptLogprobs:
        row, start = int(plan.rows[wanted.entry]), int(plan.starts[wanted.entry])
        assert start <= wanted.first < wanted.last <= start + plan.num_new[wanted.entry]
        positions = np.arange(wanted.first, wanted.last)
        tops = np.tile(np.arange(wanted.top, dtype=np.int32), (len(positions), 1))
        found = TokenLogprobs(
            logprobs=-positions.astype(np.float32),
            ranks=np.ones(len(positions), dtype=np.int32),
            top_ids=tops,
            top_logprobs=-tops.astype(np.float32),
        )
        return PromptLogprobs(row, wanted.first, found)

    def _add_logprobs(self, plan: StepPlan, output: StepOutput, top: int) -> None:
        befores = [self.rows[row].identities[-2] for row in plan.sample_rows.tolist()]
        found = [continuations(identity, top) for identity in befores]
        shape = (len(found), top)
        output.logprobs = TokenLogprobs(
            logprobs=-output.tokens.astype(np.float32),
            ranks=output.tokens + 1,
            top_ids=np.array([ids for ids, _ in found], dtype=np.int32).reshape(shape),
            top_logprobs=np.array([p for _, p in found], dtype=np.float32).reshape(shape),
        )
