"""An engine core around a PlanModel: scheduler, KV manager and loop, checked at every step.

What comes out is compared with the tokens of a lone run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from kvasir_engine.core.logits_biases import LogitsBiases
from kvasir_engine.core.loop import CoreLoop
from kvasir_engine.grammar.thinking import Thinking
from kvasir_engine.kv.groups import KVGroupSpec
from kvasir_engine.kv.manager import KVManager
from kvasir_engine.request import EngineRequest, FinishReason, Resume
from kvasir_engine.sampling_params import SamplingParams
from kvasir_engine.scheduler import admission
from kvasir_engine.scheduler.scheduler import Scheduler
from kvasir_engine.scheduler.step_results import StepNews
from kvasir_engine.settings import SchedulerSettings

from .fake_grammar import FakeGrammar
from .heard import Heard, Mirror
from .lone import identities, lone_run, lone_search
from .plan_model import PlanModel


class AtOnce:
    """Executor without a thread."""

    def submit(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        made: Future[Any] = Future()
        made.set_result(function(*args))
        return made


@dataclass(frozen=True)
class Shape:
    """An engine's sizes, for EngineModel."""

    windows: tuple[int | None, ...] = (None,)
    num_blocks: tuple[int, ...] = (64,)
    """Of each group, the null block included."""
    block_size: int = 4
    max_model_len: int = 64
    vocab_size: int = 1 << 20
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
        self.scheduler = Scheduler(
            settings, self.kv, max_model_len=shape.max_model_len, vocab_size=shape.vocab_size
        )
        self.device = PlanModel(
            groups,
            shape.num_blocks,
            num_rows=shape.rows,
            budget=shape.budget,
            salt_of=lambda sampling: self._salts[sampling.seed],
        )
        self.loop = CoreLoop(self.scheduler, self.device, overlap=shape.overlap)
        self.loop.biases = LogitsBiases(
            self.scheduler, lambda _, prompt, output, __: prompt + output
        )
        self.loop.biases.__dict__["_thread"] = AtOnce()
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
        grammar = request.params.structured_outputs
        self.loop.add(request, None if grammar is None else FakeGrammar(grammar))
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
        thinking: Thinking | None = None,
        may_be_free: bool = False,
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
            may_be_free=may_be_free,
            cache_salt=salt,
            priority=priority,
            client=client,
            resume=None if resume is None else Resume(list(resume), seed, sample_index),
            thinking=thinking,
        )

    def end(self, handle: int) -> None:
        """The client is done with a sample."""
        sequence = self.scheduler.by_handle.get(handle)
        ended = [handle]
        if sequence is not None:
            ended += [sibling.handle for sibling in sequence.siblings]
        request = self.heard[handle].request
        if request.params.use_beam_search:
            ended = list(range(request.handle, request.handle + request.params.n))
        for each in ended:
            self.heard[each].ended_by_client = True
        self.loop.end(handle)

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
            if heard.finish is FinishReason.ERROR:
                assert heard.tokens == self.lone(heard.request, heard.index)[0][: len(heard.tokens)]
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
        if heard.ended_by_client or heard.finish is FinishReason.ERROR:
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
        return lone_run(request, index, self.limit(request))

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
            # A failed step may have computed a token too many of what has ended before.
            if delta.error is None or self.heard[delta.handle].going:
                self._of(delta.handle, client).take(delta)

    def _of(self, handle: int, client: int) -> Heard:
        heard = self.heard[handle]
        assert heard.request.client == client
        assert heard.finish is None, "heard of after its end"
        assert not heard.ended_by_client, "heard of after its client ended it"
        return heard
