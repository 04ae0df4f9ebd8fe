"""What each sampling parameter does to one row's tokens."""

import pytest
import torch

from kvasir_engine.sampling import sampler as sampler_module
from kvasir_engine.step_plan import RowFork, RowSampling

VOCAB = 40


@pytest.fixture
def bench(sampler_bench):
    return sampler_bench(max_rows=8, vocab_size=VOCAB)


def greedy(**fields) -> RowSampling:
    return RowSampling(seed=0, temperature=0.0, **fields)


def descending() -> torch.Tensor:
    """Token 0 is the likeliest, then 1, ...: logits 4.0, 3.9, ..."""
    return 4.0 - torch.arange(VOCAB).unsqueeze(0) / 10


def tokens_of(bench, steps: int, logits: torch.Tensor, row: int = 0) -> list[int]:
    return [int(bench.step([row], logits).tokens[0]) for _ in range(steps)]


def test_greedy_takes_the_lowest_of_equal_tokens(bench):
    bench.init(0, greedy(), [1])
    bench.init(1, greedy(), [1])
    logits = torch.zeros(2, VOCAB)
    logits[1, [7, 30, 39]] = 2.0
    assert bench.step([0, 1], logits).tokens.tolist() == [0, 7]


def test_biases_are_added_to_the_rows_that_have_them(bench):
    bench.init(0, greedy(presence_penalty=2.0), [1, 5], num_prompt=1)
    bench.init(1, greedy(), [1])
    bias = torch.zeros(2, VOCAB)
    bias[0, [5, 6]] = torch.tensor([51.0, 50.0])
    bias[1, 0] = -1e9
    biases = sampler_module.RowBiases([0, 2], list(bias))
    bench.init(2, greedy(), [1])
    sampled = bench.step([0, 1, 2], descending().repeat(3, 1), biases=biases, top_logprobs=1)
    # Token 5 has the larger bias, but was sampled before.
    assert sampled.tokens.tolist() == [6, 0, 1]
    raw = descending().log_softmax(-1)[0]
    assert sampled.logprobs.logprobs.tolist() == pytest.approx(raw[[6, 0, 1]].tolist())


@pytest.mark.parametrize("temperature", [1e-6, 1e-40])
def test_a_temperature_that_would_overflow_is_greedy(bench, temperature):
    bench.init(0, RowSampling(seed=5, temperature=temperature), [1])
    assert tokens_of(bench, 5, descending()) == [0] * 5


def test_greedy_rows_draw_no_noise(bench, monkeypatch):
    drawn: list[int] = []
    original = sampler_module.gumbel_noise  # type: ignore[attr-defined]

    def counted(keys, vocab_size):
        drawn.append(len(keys.position))
        return original(keys, vocab_size)

    monkeypatch.setattr(sampler_module, "gumbel_noise", counted)
    for row in range(4):
        bench.init(row, greedy(), [1])
    bench.step([0, 1, 2, 3], descending().expand(4, VOCAB))
    assert drawn == []
    bench.init(2, RowSampling(seed=1), [1])
    bench.step([0, 1, 2, 3], descending().expand(4, VOCAB))
    assert drawn == [1]


@pytest.mark.parametrize("top_k", [0, VOCAB, VOCAB + 1, 10**6])
def test_top_k_of_the_whole_vocabulary_is_off(bench, top_k):
    bench.init(0, RowSampling(seed=3), [1])
    bench.init(1, RowSampling(seed=3, top_k=top_k), [1])
    logits = descending()
    assert tokens_of(bench, 30, logits, 0) == tokens_of(bench, 30, logits, 1)


@pytest.mark.parametrize("fields", [{"top_p": 1e-9}, {"top_k": 1}, {"min_p": 1.0}])
def test_the_tightest_truncation_is_greedy(bench, fields):
    bench.init(0, RowSampling(seed=3, temperature=5.0, **fields), [1])
    assert tokens_of(bench, 20, descending()) == [0] * 20


def test_logit_bias(bench):
    bench.init(0, greedy(logit_bias={3: 50.0, 0: -100.0}), [1])
    bench.init(1, greedy(logit_bias={0: -100.0, 1: -100.0}), [1])
    bench.init(2, greedy(), [1])
    assert bench.step([2, 1, 0], descending().expand(3, VOCAB)).tokens.tolist() == [0, 2, 3]


def test_allowed_token_ids(bench):
    bench.init(0, greedy(allowed_token_ids=[39, 17, 17, 38]), [1])
    bench.init(1, RowSampling(seed=1, temperature=9.0, allowed_token_ids=[5, 6]), [1])
    sampled = [bench.step([0, 1], descending().expand(2, VOCAB)).tokens.tolist() for _ in range(30)]
    assert {first for first, _ in sampled} == {17}
    assert {second for _, second in sampled} == {5, 6}


def test_min_tokens_bans_stop_ids_until_enough_are_out(bench):
    bench.init(0, greedy(min_tokens=3, stop_ids=[0, 1]), [9, 9])
    assert tokens_of(bench, 5, descending()) == [2, 2, 2, 0, 0]


def test_min_tokens_counts_the_outputs_of_a_resumed_row(bench):
    bench.init(0, greedy(min_tokens=3, stop_ids=[0]), [9, 9, 5, 6], num_prompt=2)
    assert tokens_of(bench, 3, descending()) == [1, 0, 0]


def test_bad_words_of_one_token(bench):
    bench.init(0, greedy(bad_words=[[0], [1]]), [9])
    assert tokens_of(bench, 3, descending()) == [2, 2, 2]


def test_bad_words_of_several_tokens_ban_only_the_completion(bench):
    bench.init(0, greedy(bad_words=[[9, 9, 0], [1, 0], [1, 1, 2, 3]]), [9, 9])
    # 0 would complete (9, 9, 0) and then (1, 0); 2 and 1 then make room for 0 again
    assert tokens_of(bench, 3, descending()) == [1, 1, 1]
    bench.init(0, greedy(bad_words=[[9, 9, 0], [1, 0], [9, 1, 1]]), [9, 9])
    assert tokens_of(bench, 4, descending()) == [1, 2, 0, 0]


def test_two_bad_words_may_end_alike(bench):
    bench.init(0, greedy(bad_words=[[5, 0], [6, 0], [7, 1]]), [6])
    assert tokens_of(bench, 2, descending()) == [1, 0]


def test_bad_words_longer_than_the_history_ban_nothing(bench):
    bench.init(0, greedy(bad_words=[[3, 4, 5, 0]]), [5])
    assert tokens_of(bench, 1, descending()) == [0]


def test_penalties_count_the_tokens_sampled(bench):
    bench.init(0, greedy(presence_penalty=0.25), [0])
    bench.init(1, greedy(frequency_penalty=0.06), [0])
    logits = descending()
    assert tokens_of(bench, 5, logits, 0) == [0, 1, 2, 0, 0]
    # after n picks a token has lost 0.06 n: 4.0, 3.94, 3.9 (token 1), 3.88, ...
    assert tokens_of(bench, 5, logits, 1) == [0, 0, 1, 0, 1]


def test_a_repetition_penalty_counts_the_prompt(bench):
    bench.init(0, greedy(repetition_penalty=2.0), [0, 1])
    assert tokens_of(bench, 2, descending()) == [2, 3]


def test_a_resumed_row_goes_on_as_the_unbroken_one(bench):
    sampling = RowSampling(
        seed=-7,
        temperature=1.5,
        top_p=0.9,
        frequency_penalty=0.3,
        repetition_penalty=1.2,
        bad_words=[[2, 3], [4]],
        min_tokens=4,
        stop_ids=[0],
    )
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(2))
    bench.init(0, sampling, [1, 2, 3])
    whole = tokens_of(bench, 12, logits)
    for done in range(12):
        bench.init(3, sampling, [1, 2, 3, *whole[:done]], num_prompt=3)
        assert tokens_of(bench, 12 - done, logits, row=3) == whole[done:]


def test_a_reused_row_keeps_nothing_of_its_last_owner(bench):
    everything = greedy(
        logit_bias={0: -100.0},
        allowed_token_ids=[4, 5],
        bad_words=[[4]],
        min_tokens=99,
        stop_ids=[5],
        presence_penalty=2.0,
    )
    bench.init(0, everything, [1])
    bench.step([0], descending())
    bench.init(0, greedy(), [1])
    assert tokens_of(bench, 2, descending()) == [0, 0]


def test_forks_copy_the_counts_and_then_go_their_own_ways(bench):
    def sampling(index):
        return RowSampling(seed=11, sample_index=index, repetition_penalty=1.4, temperature=2.0)

    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(4))
    bench.init(0, sampling(0), [1, 2, 3])
    bench.state.fork_rows([RowFork(0, 1, [], sampling(1)), RowFork(0, 2, [], sampling(2))])
    bench.lengths[1:3], bench.num_prompt[1:3] = 3, 3
    forked = [bench.step([2, 0, 1], logits.expand(3, VOCAB)).tokens.tolist() for _ in range(10)]
    samples = list(zip(*forked, strict=True))
    assert len(set(samples)) == 3
    for index, sample in zip([2, 0, 1], samples, strict=True):
        bench.init(5, sampling(index), [1, 2, 3])
        assert tokens_of(bench, 10, logits, row=5) == list(sample)


@pytest.mark.parametrize("edited", [False, True])
def test_logprobs_are_of_the_raw_logits(bench, edited):
    bench.init(0, greedy(logit_bias={0: -100.0}) if edited else greedy(), [1])
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(6))
    logits[0, 0] = 9.0
    sampled = bench.step([0], logits, top_logprobs=3)
    reference = logits[0].log_softmax(-1)
    token = int(sampled.tokens[0])
    assert (token == 0) is not edited
    assert sampled.logprobs.logprobs.tolist() == [pytest.approx(reference[token].item(), 1e-5)]
    assert sampled.logprobs.ranks.tolist() == [2 if edited else 1]
    assert sampled.logprobs.top_ids[0].tolist() == reference.topk(3).indices.tolist()


def test_without_logprobs_none_are_computed(bench):
    bench.init(0, greedy(), [1])
    assert bench.step([0], descending()).logprobs is None
