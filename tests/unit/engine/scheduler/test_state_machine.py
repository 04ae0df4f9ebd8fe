"""The scheduler under arbitrary orders of arrivals, steps, aborts and stops.

Every step is replayed by a PlanModel, which asserts what a device relies on (plan_model.py); at the
end every sample must have got exactly the tokens of a lone run, once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from kvasir_engine.grammar.thinking import Thinking

pytestmark = pytest.mark.slow

SIZE = 4
MAX_LEN = 64
WINDOWS: list[tuple[int | None, ...]] = [(None,), (6,), (24,), (None, 10), (None, 24)]
PREFIX = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4, 6, 2, 6, 4, 3, 3, 8, 3]
"""What many prompts begin with."""


@st.composite
def shapes(draw: st.DrawFn) -> dict[str, Any]:
    """Sizes small enough that blocks, rows and budget all run short."""
    windows = draw(st.sampled_from(WINDOWS))
    rows = draw(st.integers(1, 5))
    whole = MAX_LEN // SIZE + 1
    budget = draw(st.sampled_from([rows, 7 + rows, 40]))

    def smallest(window: int | None) -> int:
        # What makes max_model_len servable: the whole of it, or a window with a chunk; and the
        # blocks of three further samples.
        needed = (window or 0) + budget + 2 * SIZE
        return whole if window is None else min(whole, -(-needed // SIZE) + 4)

    blocks = [draw(st.integers(smallest(w), smallest(w) + 14)) for w in windows]
    return {
        "windows": windows,
        "num_blocks": tuple(blocks),
        "block_size": SIZE,
        "max_model_len": MAX_LEN,
        "rows": rows,
        "budget": budget,
        "chunk": draw(st.sampled_from([0, 0, 3, 7])),
        "policy": draw(st.sampled_from(["fcfs", "priority"])),
        "overlap": draw(st.booleans()),
        "caching": draw(st.sampled_from([True, True, True, False])),
    }


@st.composite
def prompts(draw: st.DrawFn) -> list[int]:
    """Lengths around block boundaries; most share a prefix, or all, with others."""
    length = draw(st.sampled_from([1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 21, 28, 40]))
    shared = min(length, draw(st.sampled_from([0, length - 1, length])))
    own = draw(st.integers(1, 3))
    tokens = PREFIX[:shared]
    return tokens + [own + i % 5 for i in range(length - len(tokens))]


requests = st.fixed_dictionaries(
    {
        "prompt": prompts(),
        "max_tokens": st.sampled_from([1, 2, 5, 9, 24, None]),
        "n": st.sampled_from([1, 1, 1, 2, 3, 4]),
    },
    optional={
        "eos": st.just([0]),
        "salt": st.sampled_from(["a", "b"]),
        "stop_token_ids": st.sampled_from([[5], [1, 2, 3], list(range(1, 12))]),
        "min_tokens": st.integers(0, 6),
        "logprobs": st.integers(0, 2),
        "prompt_logprobs": st.integers(0, 2),
        "priority": st.integers(-1, 1),
        "ignore_eos": st.booleans(),
        "client": st.integers(0, 2),
        "structured_outputs": st.sampled_from(["one", "another", "ends 3", "runs", "runs too"]),
        "logits_processors": st.just([len]),
        "thinking": st.builds(
            Thinking, st.just(22), st.just(23), st.booleans(), st.sampled_from([None, 0, 1, 3, 8])
        ),
    },
)


searches = st.fixed_dictionaries(
    {
        "prompt": prompts(),
        "max_tokens": st.sampled_from([1, 2, 5, 9, 24]),
        "n": st.integers(1, 4),
        "early_stopping": st.booleans(),
        "length_penalty": st.sampled_from([0.0, 0.5, 1.0, 2.0, -1.0]),
    },
    optional={
        "eos": st.sampled_from([[0], [0, 7]]),
        "salt": st.sampled_from(["a", "b"]),
        "stop_token_ids": st.sampled_from([[5], [1, 2, 3]]),
        "priority": st.integers(-1, 1),
        "ignore_eos": st.booleans(),
        "client": st.integers(0, 2),
    },
)


class SchedulerMachine(RuleBasedStateMachine):
    make: ClassVar[Callable[..., Any]]
    engine: Any = None

    @initialize(shape=shapes())
    def start(self, shape: dict[str, Any]) -> None:
        self.engine = self.make(**shape)

    @rule(request=requests)
    def add(self, request: dict[str, Any]) -> None:
        request = dict(request)
        request["n"] = min(request["n"], self.engine.shape.rows)
        request["min_tokens"] = min(request.get("min_tokens", 0), request["max_tokens"] or 6)
        if "structured_outputs" in request:  # Refused together.
            request["min_tokens"] = 0
        self.engine.add(**request)

    @rule(request=requests, share=st.floats(0, 0.99), index=st.integers(0, 2))
    def resume(self, request: dict[str, Any], share: float, index: int) -> None:
        """Continue what a request would have produced elsewhere."""
        request = {**request, "n": 1, "min_tokens": 0}
        engine = self.engine
        whole = engine.lone_tokens(**request, sample_index=index)
        engine.add(**request, resume=whole[: int(share * len(whole))], sample_index=index)

    @rule(request=searches)
    def search(self, request: dict[str, Any]) -> None:
        width = min(request["n"], self.engine.shape.rows)
        self.engine.add(**{**request, "n": width}, use_beam_search=True)

    @rule(times=st.integers(1, 4))
    def step(self, times: int) -> None:
        for _ in range(times):
            self.engine.step()

    @rule(pick=st.integers(0, 1000))
    def end(self, pick: int) -> None:
        """A client aborts, or has found a stop string."""
        going = [h for h, heard in self.engine.heard.items() if heard.going]
        if going:
            self.engine.end(going[pick % len(going)])

    @rule(pick=st.integers(0, 1000))
    def abort_request(self, pick: int) -> None:
        """A client goes away with all samples of a request."""
        going = [h for h, heard in self.engine.heard.items() if heard.going]
        if going:
            request = self.engine.heard[going[pick % len(going)]].request
            for sample in range(request.params.n):
                self.engine.end(request.handle + sample)

    @rule()
    def reset_cache(self) -> None:
        self.engine.kv.reset_cache()

    @invariant()
    def adds_up(self) -> None:
        if self.engine is not None:
            self.engine.check()

    def teardown(self) -> None:
        if self.engine is not None and not self.engine.failed:
            self.engine.run()


def test_any_workload_ends_with_every_sample_right(engine_model: Callable[..., Any]) -> None:
    class Machine(SchedulerMachine):
        make = staticmethod(engine_model)

    run_state_machine_as_test(Machine)


@pytest.mark.parametrize(
    ("windows", "num_blocks"),
    [
        ((None,), (18,)),
        ((6,), (9,)),
        ((24,), (14,)),
        ((None, 10), (18, 18)),
        ((None, 10), (40, 10)),
    ],
)
def test_overlap_changes_no_token(
    engine_model: Callable[..., Any],
    windows: tuple[int | None, ...],
    num_blocks: tuple[int, ...],
) -> None:
    """The same workload, preempting, with overlap on and off."""
    heard = []
    for overlap in (True, False):
        engine = engine_model(
            windows=windows,
            num_blocks=num_blocks,
            rows=4,
            budget=16,
            overlap=overlap,
        )
        for i in range(12):
            prompt = PREFIX[: 1 + 5 * i % 28]
            engine.add(prompt, n=1 + i % 2, max_tokens=8 + 3 * i, eos=[0])
        engine.run()
        assert engine.counters.preemptions > 0
        heard.append({handle: each.tokens for handle, each in engine.heard.items()})
    assert heard[0] == heard[1]
