"""Penalty counts against a slow reference over whole histories, through every way a row begins."""

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from transformers import RepetitionPenaltyLogitsProcessor

from kvasir_engine.sampling.sampling_state import SamplingState
from kvasir_engine.step_plan import RowFork, RowInit, RowSampling

pytestmark = pytest.mark.slow

ROWS, VOCAB = 6, 9
CPU = torch.device("cpu")
tokens_strategy = st.lists(st.integers(0, VOCAB - 1), max_size=12)


def reference(logits, prompt, output, sampling):
    """The penalties as their papers and OpenAI's reference write them, a token at a time."""
    result = logits.copy()
    for token in range(VOCAB):
        if token in prompt or token in output:
            factor = np.float32(sampling.repetition_penalty)
            result[token] = result[token] / factor if result[token] > 0 else result[token] * factor
        result[token] -= np.float32(sampling.frequency_penalty) * np.float32(output.count(token))
        result[token] -= np.float32(sampling.presence_penalty) * np.float32(token in output)
    return result


def applied(state: SamplingState, rows: list[int], logits: torch.Tensor) -> torch.Tensor:
    index = torch.tensor(rows)
    return state.counts.apply(
        logits,
        index,
        repetition=state.repetition[index].unsqueeze(1),
        presence=state.presence[index].unsqueeze(1),
        frequency=state.frequency[index].unsqueeze(1),
    )


@settings(max_examples=60, stateful_step_count=20, deadline=None)
class PenaltyMachine(RuleBasedStateMachine):
    """Sequences move through rows by admission, preemption and forks while tokens are counted."""

    @initialize()
    def start(self):
        self.state = SamplingState(max_rows=ROWS, vocab_size=VOCAB, device=CPU)
        self.rows = {}
        self.logits = torch.randn(ROWS, VOCAB, generator=torch.Generator().manual_seed(0))

    def free(self):
        return [row for row in range(ROWS) if row not in self.rows]

    def put(self, row, prompt, output, sampling):
        ids = np.array([*prompt, *output], dtype=np.int32)
        self.state.init_rows([RowInit(row, ids, len(prompt), 0, [], sampling)])
        self.rows[row] = (list(prompt), list(output), sampling)

    @precondition(lambda self: self.free())
    @rule(
        data=st.data(),
        prompt=tokens_strategy,
        output=tokens_strategy,
        presence=st.sampled_from([0.0, 0.5, -1.0]),
        frequency=st.sampled_from([0.0, 0.25, -0.5]),
        repetition=st.sampled_from([1.0, 1.3, 0.7]),
    )
    def admit(self, data, prompt, output, presence, frequency, repetition):
        sampling = RowSampling(
            seed=0,
            presence_penalty=presence,
            frequency_penalty=frequency,
            repetition_penalty=repetition,
        )
        self.put(data.draw(st.sampled_from(self.free())), prompt, output, sampling)

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def sample_some(self, data):
        """A step: some rows gain one output token each."""
        rows = data.draw(st.lists(st.sampled_from(sorted(self.rows)), unique=True, min_size=1))
        rows = [row for row in rows if self.state.has_penalties[row]]
        tokens = [data.draw(st.integers(0, VOCAB - 1)) for _ in rows]
        self.state.counts.record(
            torch.tensor(rows, dtype=torch.int64), torch.tensor(tokens, dtype=torch.int64)
        )
        for row, token in zip(rows, tokens, strict=True):
            self.rows[row][1].append(token)

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def preempt_and_resume(self, data):
        prompt, output, sampling = self.rows.pop(data.draw(st.sampled_from(sorted(self.rows))))
        self.put(data.draw(st.sampled_from(self.free())), prompt, output, sampling)

    @precondition(lambda self: self.rows and self.free())
    @rule(data=st.data())
    def fork(self, data):
        source = data.draw(st.sampled_from(sorted(self.rows)))
        prompt, output, sampling = self.rows[source]
        dst = data.draw(st.sampled_from(self.free()))
        self.state.fork_rows([RowFork(source, dst, [], sampling)])
        self.rows[dst] = (list(prompt), list(output), sampling)

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def finish(self, data):
        del self.rows[data.draw(st.sampled_from(sorted(self.rows)))]

    @invariant()
    def penalised_rows_match_the_reference(self):
        rows = [row for row in getattr(self, "rows", ()) if self.state.has_penalties[row]]
        if not rows:
            return
        actual = applied(self.state, rows, self.logits[rows])
        for line, row in zip(actual, rows, strict=True):
            expected = reference(self.logits[row].numpy(), *self.rows[row])
            np.testing.assert_allclose(line.numpy(), expected, rtol=1e-6, atol=1e-6)


TestPenaltyMachine = PenaltyMachine.TestCase


def one_row(prompt, output, sampling):
    state = SamplingState(max_rows=2, vocab_size=VOCAB, device=CPU)
    ids = np.array([*prompt, *output], dtype=np.int32)
    state.init_rows([RowInit(1, ids, len(prompt), 0, [], sampling)])
    return state


def test_repetition_equals_hf_exactly():
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(1))
    state = one_row([1, 2, 2], [5, 1], RowSampling(seed=0, repetition_penalty=1.37))
    history = torch.tensor([[1, 2, 2, 5, 1]])
    expected = RepetitionPenaltyLogitsProcessor(1.37)(history, logits.clone())
    assert torch.equal(applied(state, [1], logits), expected)


def test_presence_and_frequency_ignore_the_prompt():
    sampling = RowSampling(seed=0, presence_penalty=1.0, frequency_penalty=0.5)
    state = one_row([3, 3, 3], [4, 4], sampling)
    penalised = applied(state, [1], torch.zeros(1, VOCAB))
    assert penalised.tolist() == [[0.0] * 4 + [-2.0] + [0.0] * (VOCAB - 5)]


def test_banned_tokens_stay_banned():
    logits = torch.full((1, VOCAB), -torch.inf)
    state = one_row([0], [1], RowSampling(seed=0, repetition_penalty=2.0, presence_penalty=-1.0))
    assert torch.equal(applied(state, [1], logits), logits)


@pytest.mark.parametrize(("prompt", "output"), [([], [1]), ([1], []), ([], [])])
def test_rows_may_lack_prompt_or_output(prompt, output):
    state = one_row(prompt, output, RowSampling(seed=0, frequency_penalty=1.0))
    penalised = applied(state, [1], torch.zeros(1, VOCAB))
    assert penalised.sum().item() == -len(output)
