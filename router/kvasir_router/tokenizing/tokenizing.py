"""Which prompts are tokenised, and what waits for it."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence

import structlog

from kvasir_router.discovery.specs import EngineKind
from kvasir_router.fleet.model import Model
from kvasir_router.fleet.model_identity import ModelIdentity, fleet_seed
from kvasir_router.fleet.replica import Replica
from kvasir_router.index.block_sink import PromptReport
from kvasir_router.index.model_index import ModelIndex
from kvasir_router.options.tokenizing_settings import TokenizingSettings
from kvasir_router.tasks import SupervisedTasks
from kvasir_router.tokenizing.job_messages import MAX_BODY_BYTES, Job, Made
from kvasir_router.tokenizing.tokenizer_pool import TokenizerPool
from kvasir_router.tokenizing.tokenizer_trust import TokenizerTrust
from kvasir_router.wire.query import Query

WAIT_BLOCKS = 4
"""Text blocks that nobody told of, from which on a choice waits: 2 KiB at least, or some 500 tokens
of prompt, which take an engine far longer than the wait."""

RETRY_SECONDS = 60.0
"""Until a tokenizer that could not be read is tried again."""

_log = structlog.get_logger("kvasir_router.tokenizing")


class _ModelState:
    """State of one model's tokenizer."""

    def __init__(self, tokenizer: str, index: ModelIndex, identity: ModelIdentity | None) -> None:
        self.tokenizer = tokenizer
        self.index = index
        self.block_size = index.residency.block_size
        self.identity = identity
        self.trust = TokenizerTrust(index)
        self.trouble = ""
        """Reason that the tokenizer cannot be used; empty while it can."""
        self.retry_at = 0.0


class Tokenizing:
    """Tokenise the prompts of models that have a tokenizer, for their index.

    Text that is known, because a prompt with it was tokenised before, costs nothing. Unknown text
    is tokenised beside the request: a choice waits for it only where enough is unknown, and never
    longer than the deadline; by then it is made of what is known, with the approximate index for
    the rest. What comes late is learned for the next request with the same beginning.
    """

    def __init__(
        self,
        settings: TokenizingSettings,
        tasks: SupervisedTasks,
        hash_key: str = "",
    ) -> None:
        self._settings = settings
        self._hash_key = hash_key
        self._pool = TokenizerPool(settings.processes, tasks)
        self._states: dict[Model, _ModelState] = {}
        self._serving = False
        self._told: set[str] = set()
        """Models without a tokenizer of which the log says so."""
        self.outcomes: Counter[tuple[str, str]] = Counter()
        """Model and what became of a prompt."""

    def open(self, models: Collection[Model]) -> None:
        """This process begins to serve clients: from now on it has use for tokenizers."""
        self._serving = True
        self.keep_models(models)

    def keep_models(self, models: Collection[Model]) -> None:
        """Keep state for these models only."""
        for model in self._states.keys() - set(models):
            del self._states[model]
        names = {model.name for model in models}
        self._told &= names
        for key in [key for key in self.outcomes if key[0] not in names]:
            del self.outcomes[key]
        for model in models if self._serving else ():
            if model.spec.tokenizer is not None:
                self._state(model, model.spec.tokenizer)
            elif model.name not in self._told and _misses_tokenizer(model):
                self._told.add(model.name)
                _log.info(
                    "KV events are of no use without the model's tokenizer: the approximate index "
                    "decides; name its directory or Hub id as `tokenizer` in the discovery file",
                    model=model.name,
                )

    def prepare(self, query: Query, model: Model, go: Callable[[], None]) -> bool:
        """Tokenise what is unknown of the prompt. True if `go` will be called, once, when that is
        done or the deadline is over; False if there is nothing to wait for."""
        tokenizer = model.spec.tokenizer
        if query.request.endpoint.prompt in ("items", "system"):
            return False  # how another engine shows them to its model is not known
        state = self._state(model, tokenizer) if tokenizer is not None else None
        if state is None or not self._works(model, state) or not state.trust.given:
            return False
        chain = query.chain
        known = state.index.texts.known(chain)
        if known == len(chain):
            return False
        wait = _Wait(self, model.name, go)
        job = self._job(state, query, known)
        if job is None or not self._pool.send(
            job, chain[0], lambda made: self._made(model, state, chain, job, made, wait)
        ):
            self.outcomes[model.name, "not_taken"] += 1
            return False
        if len(chain) - known < WAIT_BLOCKS or not self._settings.deadline:
            return False
        wait.begin(self._settings.deadline)
        return True

    def answered(self, model: Model, chain: Sequence[int], replica: Replica) -> None:
        """Check some of the prompts that the replica has answered, if the model has a tokenizer."""
        state = self._states.get(model)
        if state is not None:
            state.trust.ended(chain, replica)

    async def stop(self) -> None:
        """End the processes."""
        await self._pool.stop()

    def _state(self, model: Model, tokenizer: str) -> _ModelState | None:
        """None for a model whose policy has no index. What was learned with another tokenizer, or
        for blocks of another size or seed, is forgotten."""
        index = model.sink
        if not isinstance(index, ModelIndex):
            return None
        state = self._states.get(model)
        if state is None or state.index is not index or state.tokenizer != tokenizer:
            if state is not None and state.index is index:
                index.texts.clear()
            state = self._states[model] = _ModelState(tokenizer, index, model.identity)
            self._pool.load(tokenizer, lambda made: self._loaded(model.name, state, made))
        elif (state.block_size, state.identity) != (index.residency.block_size, model.identity):
            state.block_size, state.identity = index.residency.block_size, model.identity
            index.texts.clear()
        return state

    def _works(self, model: Model, state: _ModelState) -> bool:
        """Return whether the tokenizer can be used. One that could not be read, as from a Hub that
        was away, is tried again now and then."""
        if state.trouble and state.retry_at <= time.monotonic():
            state.retry_at = time.monotonic() + RETRY_SECONDS
            self._pool.load(state.tokenizer, lambda made: self._loaded(model.name, state, made))
        return not state.trouble

    def _job(self, state: _ModelState, query: Query, known: int) -> Job | None:
        body = query.request.body
        if len(body) > MAX_BODY_BYTES:
            return None
        texts = state.index.texts
        return Job(
            0,
            state.tokenizer,
            query.request.endpoint.prompt == "messages",
            body,
            query.lora,
            known,
            texts.at(query.chain[known - 1])[0] if known else 0,
            state.block_size,
            fleet_seed(state.identity, self._hash_key),
        )

    def _is_current(self, state: _ModelState, job: Job) -> bool:
        seed = fleet_seed(state.identity, self._hash_key)
        return (state.block_size, seed) == (job.block_size, job.seed)

    def _loaded(self, name: str, state: _ModelState, made: Made | None) -> None:
        if made is None:
            return
        if not made.broken:
            state.trouble = ""
        elif made.broken != state.trouble:
            state.trouble, state.retry_at = made.broken, time.monotonic() + RETRY_SECONDS
            _log.error(
                "the tokenizer cannot be used: the approximate index decides",
                model=name,
                tokenizer=state.tokenizer,
                error=made.broken,
            )

    def _made(
        self,
        model: Model,
        state: _ModelState,
        chain: Sequence[int],
        job: Job,
        made: Made | None,
        wait: "_Wait",
    ) -> None:
        if made is None:
            wait.end("failed")
            return
        self._loaded(model.name, state, made)
        same = self._states.get(model) is state and self._is_current(state, job)
        if made.refused or made.broken:
            wait.end("refused")
        elif same and state.trust.given and len(made.kv_blocks) == len(chain) - job.known:
            new = chain[job.known :]
            state.index.learned(PromptReport(new, made.kv_blocks, made.kv_hashes))
            wait.end("made")
        else:
            wait.end("outdated")


def _misses_tokenizer(model: Model) -> bool:
    """Return whether a replica tells of its blocks, and nobody which text they are of."""
    specs = [replica.spec for replica in model.replicas.values()]
    tell = any(spec.kv_events is not None for spec in specs)
    return tell and all(spec.engine is not EngineKind.KVASIR for spec in specs)


class _Wait:
    """One request that may wait: until its prompt is tokenised, and not beyond the deadline."""

    __slots__ = ("_go", "_name", "_timer", "_tokenizing")

    def __init__(self, tokenizing: Tokenizing, name: str, go: Callable[[], None]) -> None:
        self._tokenizing = tokenizing
        self._name = name
        self._go: Callable[[], None] | None = go
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, seconds: float) -> None:
        """Wait from now on."""
        self._timer = asyncio.get_running_loop().call_later(seconds, self._late)

    def end(self, outcome: str) -> None:
        """The prompt is tokenised, or never will be."""
        self._tokenizing.outcomes[self._name, outcome] += 1
        if self._timer is not None:
            self._timer.cancel()
            self._release()

    def _late(self) -> None:
        self._tokenizing.outcomes[self._name, "late"] += 1
        self._release()

    def _release(self) -> None:
        go, self._go = self._go, None
        if go is not None:
            go()
