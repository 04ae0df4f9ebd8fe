"""A device made of numpy that replays step plans, and an engine core around it.

`PlanModel` stores in every slot of every block the identity of the token prefix that was written
there, and checks at every step that each position a row attends to is in its table and holds the
row's own prefix. `EngineModel` adds scheduler, KV manager and loop, and checks what comes out
against the tokens of a lone run, which are a pure function of the request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from kvasir.block_hash import root_hash
from kvasir_engine.core.loop import CoreLoop
from kvasir_engine.kv.groups import NULL_BLOCK, KVGroupSpec
from kvasir_engine.kv.manager import KVManager
from kvasir_engine.request import EngineRequest, FinishReason, Resume, SampleDelta
from kvasir_engine.runner.plan import (
    BeamMove,
    Float32Array,
    PromptLogprobs,
    PromptLogprobsPlan,
    RowInit,
    RowSampling,
    StepOutput,
    StepPlan,
)
from kvasir_engine.sampling_params import SamplingParams
from kvasir_engine.scheduler import admission
from kvasir_engine.scheduler.beam_search import BeamSearch, FinishedBeam
from kvasir_engine.scheduler.results import StepNews
from kvasir_engine.scheduler.scheduler import Scheduler
from kvasir_engine.settings import SchedulerSettings

VOCAB = 24
EOS = 0


def extend(identity: int, token: int) -> int:
    """The identity of a prefix one token longer."""
    return hash((identity, token))


def identities(salt: str, tokens: Sequence[int]) -> list[int]:
    """The identity of every non-empty prefix of `tokens`."""
    out, last = [], int.from_bytes(root_hash(cache_salt=salt)[:7], "little")
    for token in tokens:
        last = extend(last, int(token))
        out.append(last)
    return out


def draw(sampling: RowSampling, identity: int, position: int, outputs: int) -> int:
    """The token sampled at `position`: a pure function, stop ids banned before min_tokens."""
    banned = sampling.stop_ids if outputs < sampling.min_tokens else []
    attempt = 0
    while True:
        key = (sampling.seed, sampling.sample_index, position, identity, attempt)
        token = (hash(key) >> 7) % VOCAB
        if token not in banned:
            return token
        attempt += 1


def continuations(identity: int, count: int) -> tuple[list[int], Float32Array]:
    """The `count` likeliest tokens after a prefix, best first, and their log-probabilities."""
    logits = np.random.default_rng(identity & (2**63 - 1)).normal(size=VOCAB) * 2
    logprobs = (logits - np.log(np.exp(logits).sum())).astype(np.float32)
    best = np.argsort(-logprobs, kind="stable")[:count]
    return best.tolist(), logprobs[best]


def lone_search(request: EngineRequest, limit: int) -> list[FinishedBeam]:
    """What a beam search finds when it runs alone; `limit` counts the prompt."""
    params = request.params
    eos = [] if params.ignore_eos else request.eos_token_ids
    search = BeamSearch(
        width=params.n,
        length_penalty=params.length_penalty,
        early_stopping=params.early_stopping,
        stop_ids=frozenset([*eos, *params.stop_token_ids]),
        max_new_tokens=limit - request.num_prompt_tokens,
    )
    while not search.done:
        offers = []
        for beam in search.running:
            prefix = [*request.prompt_token_ids, *beam.tokens]
            last = identities(request.cache_salt, prefix)[-1]
            offers.append(continuations(last, search.candidates))
        search.advance([np.array(o[0], dtype=np.int32) for o in offers], [o[1] for o in offers])
    return search.finished


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
    """Executes plans exactly, and asserts what a device relies on."""

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

    # -- Runner -----------------------------------------------------------------------------

    def forward(self, plan: StepPlan) -> None:
        """Runner.forward."""
        assert plan.step_id == len(self.plans), "a step is missing or repeated"
        self.plans.append(plan)
        self._blocks = set()
        self._check_shape(plan)
        for init in plan.inits:
            self._init(init)
        self._move(plan.moves)
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
        beams = set() if plan.beam_samples is None else set(plan.beam_samples.tolist())
        tokens = [
            -1 if at in beams else self._sample_one(plan, entry, row)
            for at, (entry, row) in enumerate(
                zip(plan.sample_entries.tolist(), plan.sample_rows.tolist(), strict=True)
            )
        ]
        output = StepOutput(plan.step_id, np.array(tokens, dtype=np.int32), prompt_logprobs=reports)
        if plan.top_logprobs >= 0:
            self._add_logprobs(output, min(plan.top_logprobs, VOCAB))
        for at in beams:
            self._offer(plan, output, at)
        sampled = [self.rows[row].identities[-1] for row in plan.sample_rows.tolist()]
        named = {*plan.rows.tolist(), *plan.sample_rows.tolist()}
        step = ModelStep(self, plan, output, sampled, named, self._blocks)
        self.unretired.append(step)
        return step

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

    def _move(self, moves: list[BeamMove]) -> None:
        before = dict(self.rows)
        writers = [table.tolist()[-1] for move in moves for table in move.block_tables]
        assert len(set(writers)) == len(moves) or len(self.groups) > 1, "beams write to one block"
        for move in moves:
            self._assert_free_row(move.src)
            self._assert_free_row(move.dst)
            source = before[move.src]
            assert move.num_tokens == len(source.tokens) + 1 == source.num_computed + 1
            tables = [table.tolist() for table in move.block_tables]
            assert all(len(t) == -(-move.num_tokens // self.size) for t in tables)
            identity = extend(source.identities[-1], move.token)
            self.known.add(identity)
            self.rows[move.dst] = DeviceRow(
                tokens=[*source.tokens, move.token],
                identities=[*source.identities, identity],
                num_prompt=source.num_prompt,
                num_computed=source.num_computed,
                tables=tables,
                sampling=source.sampling,
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
        assert all(row not in step.rows for step in self.unretired), (
            "a row named by an unfinished step was handed on"
        )

    def _assert_free_block(self, group: int, block: int) -> None:
        assert block != NULL_BLOCK
        assert all((group, block) not in step.blocks for step in self.unretired), (
            "a block named by an unfinished step was handed on"
        )

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
        token = draw(row.sampling, row.identities[-1], position, position - row.num_prompt)
        row.tokens.append(token)
        row.identities.append(extend(row.identities[-1], token))
        return token

    def _offer(self, plan: StepPlan, output: StepOutput, at: int) -> None:
        row = self.rows[int(plan.sample_rows[at])]
        assert int(plan.rows[plan.sample_entries[at]]) == plan.sample_rows[at]
        assert row.num_computed == len(row.tokens), "sampled before all is computed"
        assert output.top_ids is not None
        assert output.top_logprobs is not None
        ids, logprobs = continuations(row.identities[-1], output.top_ids.shape[1])
        output.top_ids[at], output.top_logprobs[at] = ids, logprobs

    def _prompt_logprobs(self, plan: StepPlan, wanted: PromptLogprobsPlan) -> PromptLogprobs:
        row, start = int(plan.rows[wanted.entry]), int(plan.starts[wanted.entry])
        assert start <= wanted.first < wanted.last <= start + plan.num_new[wanted.entry]
        positions = np.arange(wanted.first, wanted.last)
        tops = np.tile(np.arange(wanted.top, dtype=np.int32), (len(positions), 1))
        return PromptLogprobs(
            row,
            wanted.first,
            token_logprobs=-positions.astype(np.float32),
            ranks=np.ones(len(positions), dtype=np.int32),
            top_ids=tops,
            top_logprobs=-tops.astype(np.float32),
        )

    @staticmethod
    def _add_logprobs(output: StepOutput, top: int) -> None:
        count = len(output.tokens)
        output.logprobs = -output.tokens.astype(np.float32)
        output.ranks = output.tokens + 1
        output.top_ids = np.tile(np.arange(top, dtype=np.int32), (count, 1))
        output.top_logprobs = -output.top_ids.astype(np.float32)


class Mirror:
    """The findable set of one group, rebuilt from its events alone."""

    def __init__(self, check: Callable[[str, list[int]], None]) -> None:
        self.hashes: set[bytes] = set()
        self._prefixes: dict[bytes, tuple[str, list[int]]] = {
            root_hash(cache_salt=salt): (salt, []) for salt in ("", "a", "b")
        }
        self._check = check

    def stored(self, hash_: bytes, parent: bytes, token_bytes: bytes) -> None:
        """BlockListener.stored."""
        assert hash_ not in self.hashes, "announced twice"
        self.hashes.add(hash_)
        salt, before = self._prefixes[parent]
        prefix = [*before, *np.frombuffer(token_bytes, dtype=np.int32).tolist()]
        self._prefixes[hash_] = (salt, prefix)
        self._check(salt, prefix)

    def removed(self, hash_: bytes) -> None:
        """BlockListener.removed."""
        self.hashes.remove(hash_)

    def cleared(self) -> None:
        """BlockListener.cleared."""
        self.hashes.clear()


@dataclass
class Heard:
    """What the client has heard of one sample."""

    request: EngineRequest
    index: int
    tokens: list[int] = field(default_factory=list)
    finish: FinishReason | None = None
    stop_reason: int | str | None = None
    seeds: list[int] = field(default_factory=list)
    num_cached: int | None = None
    prompt_positions: list[int] = field(default_factory=list)
    ended_by_client: bool = False
    logprobs: list[int] = field(default_factory=list)
    score: float | None = None

    @property
    def going(self) -> bool:
        """Neither the core nor the client has ended it."""
        return self.finish is None and not self.ended_by_client


@dataclass(frozen=True)
class Shape:
    """An engine's sizes, for EngineModel."""

    windows: tuple[int | None, ...] = (None,)
    num_blocks: tuple[int, ...] = (64,)
    """Of each group, the null block included."""
    block_size: int = 4
    max_model_len: int = 64
    rows: int = 4
    budget: int = 32
    chunk: int = 0
    policy: Any = "fcfs"
    overlap: bool = True
    caching: bool = True
    max_queued: int = 4096


class EngineModel:
    """Scheduler, KV manager and loop over a PlanModel; asserts as it goes."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        groups = [KVGroupSpec((i,), shape.block_size, w) for i, w in enumerate(shape.windows)]
        self.mirrors = [Mirror(self._check_stored) for _ in groups]
        self.kv = KVManager(groups, shape.num_blocks, caching=shape.caching, listeners=self.mirrors)
        settings = SchedulerSettings(
            max_num_seqs=shape.rows,
            max_num_batched_tokens=shape.budget,
            long_prefill_token_threshold=shape.chunk,
            policy=shape.policy,
            max_queued_requests=shape.max_queued,
        )
        self.scheduler = Scheduler(settings, self.kv, max_model_len=shape.max_model_len)
        self.device = PlanModel(
            groups,
            shape.num_blocks,
            num_rows=shape.rows,
            budget=shape.budget,
            salt_of=lambda sampling: self._salts[sampling.seed],
        )
        self.loop = CoreLoop(self.scheduler, self.device, overlap=shape.overlap)
        self.heard: dict[int, Heard] = {}
        self.failed = False
        """A step raised: nothing that follows means anything."""
        self.work = 0
        """Tokens of all samples so far, at most: what bounds the number of steps."""
        self._salts: dict[int, str] = {}
        self._next_handle = 0

    @property
    def counters(self) -> Any:
        """The scheduler's totals."""
        return self.scheduler.counters

    def add(self, prompt: Sequence[int], **how: Any) -> int:
        """Queue a request (see `request`) and return its handle."""
        request = self.request(prompt, **how)
        refusal = admission.check(self.scheduler, request)
        assert refusal is None, refusal
        self._next_handle += request.params.n
        self._salts[request.params.seed or 0] = request.cache_salt
        for index in range(request.params.n):
            self.heard[request.handle + index] = Heard(request, index)
            self.work += self.limit(request)
        self.scheduler.add(request)
        return request.handle

    def refusal(self, prompt: Sequence[int], **how: Any) -> admission.Refusal | None:
        """Why the request would be refused."""
        return admission.check(self.scheduler, self.request(prompt, **how))

    def request(
        self,
        prompt: Sequence[int],
        *,
        salt: str = "",
        eos: Sequence[int] = (),
        priority: int = 0,
        resume: Sequence[int] | None = None,
        sample_index: int = 0,
        seed: int | None = None,
        client: int = 0,
        **params: Any,
    ) -> EngineRequest:
        """The next request. Its seed follows from its handle unless given."""
        handle = self._next_handle
        seed = 1000 + handle if seed is None else seed
        return EngineRequest(
            request_id=f"r{handle}",
            handle=handle,
            prompt_token_ids=list(prompt),
            params=SamplingParams(seed=seed, **params),
            eos_token_ids=list(eos),
            cache_salt=salt,
            priority=priority,
            client=client,
            resume=None if resume is None else Resume(list(resume), seed, sample_index),
        )

    def end(self, handle: int) -> None:
        """The client is done with a sample."""
        sequence = self.scheduler.by_handle.get(handle)
        ended = [handle]
        if sequence is not None:
            ended += [sibling.handle for sibling in sequence.siblings]
            ended += sequence.beam_group.lead.handles if sequence.beam_group else ()
        for each in ended:
            self.heard[each].ended_by_client = True
        self.scheduler.end(handle)

    def step(self) -> StepNews | None:
        """One iteration of the loop, with every check."""
        self.failed = True  # until all checks have passed
        news = self.loop.step()
        if news is not None:
            self._hear(news)
        self.check()
        self.failed = False
        return news

    def step_until(self, condition: Callable[[], Any]) -> None:
        """Step until `condition()` is true; it must happen before the engine is idle."""
        while not condition():
            assert not self.loop.idle, "it never happened"
            self.step()

    def run(self) -> None:
        """Step until idle; then everything is where it should be."""
        most = 50 + 6 * self.work
        for _ in range(most):
            if self.loop.idle:
                break
            self.step()
        assert self.loop.idle, f"{most} steps were not enough"
        self.loop.check_idle()
        assert len(self.scheduler.waiting) == self.scheduler.waiting.num_tokens == 0
        assert self.scheduler.prefill_backlog() == 0
        self.check_results()

    # -- checks -----------------------------------------------------------------------------

    def check(self) -> None:
        """Blocks and references add up; the mirrors know what is findable."""
        self.kv.check_integrity()
        waiting = self.scheduler.waiting
        assert len(waiting) >= 0
        assert waiting.num_tokens >= 0
        for group, (pool, mirror) in enumerate(zip(self.kv.pools, self.mirrors, strict=True)):
            assert len(mirror.hashes) == pool.num_cached
            holders: dict[int, int] = {}
            for sequence in self.scheduler.rows.sequences:
                tables = sequence.tables if sequence else None
                for block in tables.held(group) if tables else ():
                    holders[block] = holders.get(block, 0) + 1
            for block, count in holders.items():
                assert pool.references(block) >= count, "a table holds a block it has no share in"

    def lone_tokens(self, prompt: Sequence[int], *, sample_index: int = 0, **how: Any) -> list[int]:
        """What the next request, given these arguments of add(), would produce alone."""
        return self.lone(self.request(prompt, **how), sample_index)[0]

    def check_results(self) -> None:
        """Every sample that was not ended by its client is complete and right."""
        for handle, heard in self.heard.items():
            if heard.request.params.use_beam_search:
                self._check_beam(heard)
                continue
            tokens, finish, reason = self.lone(heard.request, heard.index)
            if heard.ended_by_client and heard.finish is None:
                assert heard.tokens == tokens[: len(heard.tokens)]
                continue
            assert heard.tokens == tokens, f"sample {handle} differs from a lone run"
            assert (heard.finish, heard.stop_reason) == (finish, reason)
            sampling = heard.request.params
            assert heard.seeds == [sampling.seed], "the seed is told once"
            wanted = sampling.prompt_logprobs is not None and heard.index == 0
            positions = list(range(heard.request.num_prompt_tokens - 1)) if wanted else []
            assert heard.prompt_positions == positions
            if sampling.logprobs is not None:
                assert heard.logprobs == tokens

    def _check_beam(self, heard: Heard) -> None:
        """A beam search reports nothing or everything."""
        if heard.ended_by_client:
            assert not heard.tokens
            return
        request = heard.request
        beam = lone_search(request, self.limit(request))[heard.index]
        assert tuple(heard.tokens) == beam.tokens, "a beam differs from a lone search"
        assert (heard.finish, heard.score) == (beam.reason, beam.score)
        assert len(heard.seeds) == (heard.index == 0)

    def lone(
        self, request: EngineRequest, index: int = 0
    ) -> tuple[list[int], FinishReason, int | None]:
        """Tokens, finish reason and stop reason of a sample that runs alone."""
        params, resume = request.params, request.resume
        resumed = resume.output_token_ids if resume else []
        stops = [*([] if params.ignore_eos else request.eos_token_ids), *params.stop_token_ids]
        sampling = RowSampling(
            seed=params.seed or 0,
            sample_index=(resume.sample_index if resume else 0) + index,
            stop_ids=stops,
            min_tokens=params.min_tokens,
        )
        prefix = [*request.prompt_token_ids, *resumed]
        last = identities(request.cache_salt, prefix)[-1]
        limit = self.limit(request)
        out: list[int] = []
        while True:
            position = len(prefix) + len(out)
            token = draw(sampling, last, position, position - request.num_prompt_tokens)
            last = extend(last, token)
            out.append(token)
            if token in stops:
                eos = token in request.eos_token_ids and not params.ignore_eos
                return out, FinishReason.STOP, None if eos else token
            if position + 1 >= limit:
                return out, FinishReason.LENGTH, None

    def limit(self, request: EngineRequest) -> int:
        """Tokens a sample may have, prompt included."""
        room = self.shape.max_model_len - request.num_prompt_tokens
        return request.num_prompt_tokens + min(request.params.max_tokens or room, room)

    def _check_stored(self, salt: str, prefix: list[int]) -> None:
        identity = identities(salt, prefix)[-1]
        assert identity in self.device.written, "announced before it was written"
        assert identity in self.device.known, "announced before its tokens are known"

    # -- what clients hear ----------------------------------------------------------------------

    def _hear(self, news: StepNews) -> None:
        lengths = {len(news.handles), len(news.tokens), len(news.clients)}
        assert len(lengths) == 1
        for handle, token, client in zip(
            news.handles.tolist(), news.tokens.tolist(), news.clients.tolist(), strict=True
        ):
            heard = self._of(handle, client)
            assert heard.seeds, "a packed token before the first delta"
            heard.tokens.append(token)
        for client, delta in news.deltas:
            self._hear_delta(self._of(delta.handle, client), delta)

    def _of(self, handle: int, client: int) -> Heard:
        heard = self.heard[handle]
        assert heard.request.client == client
        assert heard.finish is None, "heard of after its end"
        assert not heard.ended_by_client, "heard of after its client ended it"
        return heard

    @staticmethod
    def _hear_delta(heard: Heard, delta: SampleDelta) -> None:
        first = not (heard.tokens or heard.prompt_positions)
        if heard.request.params.use_beam_search:
            first = heard.index == 0  # tells for all beams
        assert (delta.seed is not None) == (delta.num_cached_tokens is not None) == first
        if delta.seed is not None:
            heard.seeds.append(delta.seed)
            heard.num_cached = delta.num_cached_tokens
        heard.tokens += delta.token_ids
        heard.logprobs += [entry.token_id for entry in delta.logprobs or ()]
        for entry in delta.prompt_logprobs or ():
            position = -int(entry.logprob)
            assert entry.token_id == heard.request.prompt_token_ids[position + 1]
            heard.prompt_positions.append(position)
        heard.score = delta.cumulative_logprob
        heard.finish, heard.stop_reason = delta.finish_reason, delta.stop_reason


@pytest.fixture(scope="session")
def engine_model() -> Callable[..., EngineModel]:
    """engine_model(rows=4, budget=32, ...): an EngineModel of that Shape."""

    def make(**fields: Any) -> EngineModel:
        return EngineModel(Shape(**fields))

    return make
