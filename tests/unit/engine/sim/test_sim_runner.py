"""The simulated runner: its clock, its deterministic tokens, and its log-probabilities."""

import subprocess
import sys
import time

import numpy as np
import pytest

from kvasir_engine.sim.latency_model import SpeedProfile
from kvasir_engine.sim.sim_runner import SimRunner
from kvasir_engine.step_plan import (
    PromptLogprobsPlan,
    RowFork,
    RowInit,
    RowSampling,
    StepPlan,
)

VOCAB = 300
ORDINARY = range(5, 250)
INSTANT = SpeedProfile.load("instant")


def ints(values) -> np.ndarray:
    return np.array(values, dtype=np.int32)


class Bench:
    """Prefills and decodes rows of a simulated runner, knowing each row's length."""

    def __init__(self, profile=INSTANT, **options):
        self.runner = SimRunner(
            profile, num_rows=64, vocab_size=VOCAB, ordinary=ORDINARY, **options
        )
        self.lengths = {}
        self.steps = 0

    def launch(self, rows, num_new, starts, **fields):
        self.steps += 1
        decodes = sum(count == 1 for count in num_new)
        plan = StepPlan(
            step_id=self.steps,
            rows=ints(rows),
            num_new=ints(num_new),
            starts=ints(starts),
            num_decodes=fields.pop("num_decodes", decodes),
            sample_entries=ints(fields.pop("sample_entries", range(len(rows)))),
            sample_rows=ints(fields.pop("sample_rows", rows)),
            **fields,
        )
        self.runner.forward(plan)
        for row in plan.sample_rows.tolist():
            self.lengths[row] = self.lengths.get(row, 0) + 1
        return self.runner.sample(plan)

    def prefill(self, row, sampling, tokens, num_prompt=None, **fields):
        prompt = len(tokens) if num_prompt is None else num_prompt
        init = RowInit(row, ints(tokens), prompt, 0, [], sampling)
        self.lengths[row] = len(tokens)
        return self.launch([row], [len(tokens)], [0], inits=[init], num_decodes=0, **fields).wait()

    def decode(self, rows, **fields):
        starts = [self.lengths[row] - 1 for row in rows]
        return self.launch(rows, [1] * len(rows), starts, **fields).wait()

    def generate(self, row, sampling, tokens, count):
        out = self.prefill(row, sampling, tokens).tokens.tolist()
        for _ in range(count - 1):
            out += self.decode([row]).tokens.tolist()
        return out


def test_tokens_are_ordinary_and_use_their_whole_range():
    bench = Bench()
    tokens = bench.generate(0, RowSampling(seed=1), [1, 2, 3], 4000)
    assert min(tokens) >= ORDINARY.start
    assert max(tokens) < ORDINARY.stop
    assert len(set(tokens)) == len(ORDINARY)


def test_tokens_depend_on_seed_sample_index_and_position_alone():
    def of(row, seed, index, prompt):
        return Bench().generate(row, RowSampling(seed, sample_index=index), prompt, 20)

    base = of(0, 7, 0, [1, 2, 3])
    assert of(9, 7, 0, [4, 5, 6]) == base
    others = [of(0, 8, 0, [1, 2, 3]), of(0, 7, 1, [1, 2, 3]), of(0, -7, 0, [1, 2, 3])]
    assert all(base != other for other in others)
    assert of(0, 7, 0, [1, 2, 3, base[0]]) == [*base[1:], of(0, 7, 0, [1, 2, 3, 4])[-1]]


def test_forced_tokens_move_a_row_on():
    whole = Bench().generate(0, RowSampling(seed=3), [1, 2], 8)
    bench = Bench()
    first = bench.prefill(0, RowSampling(seed=3), [1, 2]).tokens.tolist()
    forced = ints([[0, 3, 9], [0, 4, 9]])
    step = bench.launch([0], [3], [2], forced=forced, num_decodes=0)
    assert [*first, *step.wait().tokens.tolist()] == [whole[0], whole[3]]


def test_masked_rows_sample_what_their_masks_allow():
    bench = Bench()
    bench.prefill(0, RowSampling(seed=1), [1, 2])
    bench.prefill(1, RowSampling(seed=2), [1, 2])
    free = Bench()
    free.prefill(1, RowSampling(seed=2), [1, 2])
    masks = np.zeros((2, 10), dtype=np.int32)
    masks[0, 7] = 1 << 5
    masks[1] = -1
    fields = {"masked": ints([0, 1]), "masks": masks}
    tokens = bench.decode([0, 1], **fields).tokens.tolist()
    assert tokens == [7 * 32 + 5, *free.decode([1]).tokens.tolist()]
    with pytest.raises(RuntimeError, match="before the plan had its masks"):
        bench.decode([0], masked=ints([0]))


def test_rows_in_a_batch_equal_rows_alone():
    samplings = [RowSampling(seed=row * 3, temperature=row % 2) for row in range(16)]
    bench = Bench()
    together = {
        r: bench.prefill(r, s, [1] * (r + 1)).tokens.tolist() for r, s in enumerate(samplings)
    }
    for step in range(6):
        order = [(row * 5 + step) % 16 for row in range(16)]
        for row, token in zip(order, bench.decode(order).tokens.tolist(), strict=True):
            together[row].append(token)
    for row, sampling in enumerate(samplings):
        assert Bench().generate(row, sampling, [1] * (row + 1), 7) == together[row]


def test_a_resumed_row_goes_on_as_the_unbroken_one():
    sampling = RowSampling(seed=3)
    whole = Bench().generate(0, sampling, [1, 2], 8)
    for done in range(1, 8):
        bench = Bench()
        first = bench.prefill(4, sampling, [1, 2, *whole[:done]], num_prompt=2).tokens.tolist()
        assert first == [whole[done]]


def test_greedy_rows_ignore_the_seed():
    greedy = [Bench().generate(0, RowSampling(seed, temperature=0.0), [1], 9) for seed in (1, 2)]
    assert greedy[0] == greedy[1]


def test_forks_sample_as_single_requests_with_their_index_do():
    bench = Bench()
    samplings = [RowSampling(seed=5, sample_index=index) for index in range(3)]
    forks = [RowFork(0, row, [], samplings[row]) for row in (1, 2)]
    for row in (1, 2):
        bench.lengths[row] = 3
    first = bench.prefill(
        0, samplings[0], [1, 2, 3], forks=forks, sample_entries=[0, 0, 0], sample_rows=[0, 1, 2]
    )
    streams = [[token] for token in first.tokens.tolist()]
    for _ in range(5):
        for stream, token in zip(streams, bench.decode([0, 1, 2]).tokens.tolist(), strict=True):
            stream.append(token)
    assert streams == [Bench().generate(0, sampling, [1, 2, 3], 6) for sampling in samplings]


def test_a_step_without_samples_returns_none():
    out = Bench().prefill(0, RowSampling(1), [1, 2], sample_entries=[], sample_rows=[])
    assert out.tokens.shape == (0,)
    assert out.tokens.dtype == np.int32


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logprobs_are_those_of_a_distribution(temperature):
    bench = Bench()
    bench.prefill(0, RowSampling(seed=2, temperature=temperature), [1, 2])
    plain = Bench()
    plain.prefill(0, RowSampling(seed=2, temperature=temperature), [1, 2])
    ranks = []
    for _ in range(200):
        out = bench.decode([0], top_logprobs=6)
        token, rank = int(out.tokens[0]), int(out.logprobs.ranks[0])
        assert token == plain.decode([0]).tokens[0]
        ranks.append(rank)
        top_ids, top = out.logprobs.top_ids[0].tolist(), out.logprobs.top_logprobs[0].tolist()
        assert len(set(top_ids)) == 6
        assert all(i in ORDINARY for i in top_ids)
        assert top == sorted(top, reverse=True)
        assert sum(np.exp(top)) < 1
        if rank <= 6:
            assert top_ids[rank - 1] == token
            assert top[rank - 1] == out.logprobs.logprobs[0]
        else:
            assert token not in top_ids
            assert out.logprobs.logprobs[0] < top[-1]
    assert (set(ranks) == {1}) is (temperature == 0.0)


def test_top_logprobs_zero_gives_the_sampled_token_alone():
    bench = Bench()
    out = bench.prefill(0, RowSampling(seed=2), [1, 2], top_logprobs=0)
    assert out.logprobs.logprobs.shape == (1,)
    assert out.logprobs.top_ids.shape == (1, 0)
    assert bench.decode([0]).logprobs is None


def test_prompt_logprobs_in_chunks_equal_those_at_once():
    prompt = [1, 299, 7, 0, 250, 9, 12]

    def report(*bounds):
        bench = Bench()
        init = RowInit(3, ints(prompt), len(prompt), 0, [], RowSampling(seed=4))
        reports = []
        for first, last in bounds:
            step = bench.launch(
                [3],
                [last - first],
                [first],
                inits=[init] if first == 0 else [],
                sample_entries=[],
                sample_rows=[],
                prompt_logprobs=[PromptLogprobsPlan(0, first, last, 4)],
            )
            reports += step.wait().prompt_logprobs
        return reports

    (whole,) = report((0, 6))
    chunks = report((0, 2), (2, 5), (5, 6))
    assert [chunk.first for chunk in chunks] == [0, 2, 5]
    for field in ("logprobs", "ranks", "top_ids", "top_logprobs"):
        joined = np.concatenate([getattr(chunk.found, field) for chunk in chunks])
        assert joined.tolist() == getattr(whole.found, field).tolist()
    for i, token in enumerate(prompt[1:]):
        rank = whole.found.ranks[i]
        if rank <= 4:
            assert whole.found.top_ids[i, rank - 1] == token


def slow_profile(ms: float) -> SpeedProfile:
    return SpeedProfile("slow", "", "", ((1, ms),), 0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 100)


def test_steps_queue_one_after_the_other(monkeypatch):
    now, slept = [100.0], []
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def sleep(seconds):
        slept.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(time, "sleep", sleep)
    bench = Bench(slow_profile(20.0))
    init = RowInit(0, ints([1]), 1, 0, [], RowSampling(seed=1))
    first = bench.launch([0], [1], [0], inits=[init])
    now[0] += 0.005
    second = bench.launch([0], [1], [1])
    first.wait()
    assert now[0] == pytest.approx(100.020)
    second.wait()
    assert now[0] == pytest.approx(100.040)
    now[0] += 1.0
    second.wait()
    assert len(slept) == 2
    bench.launch([0], [1], [2]).wait()
    assert now[0] == pytest.approx(101.060)


def test_a_step_costs_what_its_plan_computes(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    h200 = SpeedProfile.load("h200-llama-3.1-8b-bf16")
    bench = Bench(h200)
    inits = [RowInit(r, ints([1] * 200), 200, 0, [], RowSampling(seed=r)) for r in range(3)]
    step = bench.launch([0, 1, 2], [1, 1, 50], [99, 199, 100], inits=inits, num_decodes=2)
    assert step.due == pytest.approx(h200.step_ms(52, 100 + 200, 50 * (100 + 25)) / 1e3)


def test_a_range_outside_the_vocabulary_is_refused():
    for ordinary in (range(0), range(5, VOCAB + 1), range(0, 10, 2)):
        with pytest.raises(ValueError, match="ordinary"):
            SimRunner(INSTANT, num_rows=1, vocab_size=VOCAB, ordinary=ordinary)


def test_the_simulation_imports_neither_torch_nor_transformers():
    code = (
        "import sys, kvasir_engine.sim.sim_runner; "
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers')))"
    )
    env = {"PYTHONPATH": ":".join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code], env=env, check=False).returncode == 0
