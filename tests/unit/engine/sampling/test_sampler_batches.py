"""A row's tokens depend on nothing but itself, follow HF's distribution, and never wait."""

import random
from functools import partial

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from transformers import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from kvasir_engine.device.vocab_shard import VocabShard
from kvasir_engine.sampling import logits as edits
from kvasir_engine.sampling import sampler
from kvasir_engine.sampling.sampler import SampleBatch
from kvasir_engine.step_plan import RowSampling

pytestmark = pytest.mark.slow

VOCAB, ROWS, STEPS = 101, 32, 6


def any_sampling(rng: random.Random) -> RowSampling:
    """A random mixture of features, each off in half of the rows."""

    def maybe(value, off):
        return value if rng.random() < 0.5 else off

    def ids(count):
        return [rng.randrange(VOCAB) for _ in range(count)]

    return RowSampling(
        seed=rng.randrange(-(2**63), 2**63),
        sample_index=rng.randrange(4),
        temperature=maybe(rng.uniform(0.3, 2.0), 0.0),
        top_p=maybe(rng.uniform(0.1, 0.99), 1.0),
        top_k=maybe(rng.randrange(1, VOCAB + 5), 0),
        min_p=maybe(rng.uniform(0.0, 0.3), 0.0),
        presence_penalty=maybe(rng.uniform(-1, 1), 0.0),
        frequency_penalty=maybe(rng.uniform(-1, 1), 0.0),
        repetition_penalty=maybe(rng.uniform(0.7, 1.5), 1.0),
        logit_bias=maybe({token: rng.uniform(-5, 5) for token in ids(3)}, {}),
        allowed_token_ids=maybe(ids(60), None),
        bad_words=maybe([ids(1), ids(2), ids(3)], []),
        stop_ids=ids(2),
        min_tokens=maybe(3, 0),
    )


def filled(bench, rng: random.Random) -> tuple[list[RowSampling], list[list[int]]]:
    samplings = [any_sampling(rng) for _ in range(ROWS)]
    prompts = [[rng.randrange(VOCAB) for _ in range(rng.randint(1, 20))] for _ in range(ROWS)]
    for row in range(ROWS):
        bench.init(row, samplings[row], prompts[row])
    return samplings, prompts


@pytest.fixture(params=["one chunk", "three rows a chunk"])
def _chunking(request, monkeypatch):
    if request.param == "three rows a chunk":
        monkeypatch.setattr(edits, "CHUNK_BYTES", 3 * 4 * VOCAB)


@pytest.mark.usefixtures("_chunking")
@pytest.mark.parametrize("seed", range(4))
def test_a_row_alone_equals_the_row_in_any_batch(sampler_bench, seed):
    rng = random.Random(seed)
    bench = sampler_bench(max_rows=ROWS, vocab_size=VOCAB)
    samplings, prompts = filled(bench, rng)
    logits = torch.randn(STEPS, ROWS, VOCAB, generator=torch.Generator().manual_seed(seed)) * 2
    together = []
    for step in range(STEPS):
        order = rng.sample(range(ROWS), ROWS)
        tokens = bench.step(order, logits[step, order], top_logprobs=step % 3 - 1).tokens
        together.append(tokens[torch.tensor(order).argsort()].tolist())
    for row in range(ROWS):
        alone = sampler_bench(max_rows=1, vocab_size=VOCAB)
        alone.init(0, samplings[row], prompts[row])
        tokens = [int(alone.step([0], logits[s, row : row + 1]).tokens[0]) for s in range(STEPS)]
        assert tokens == [step[row] for step in together], samplings[row]


@pytest.mark.parametrize(
    "sampling",
    [
        RowSampling(seed=1),
        RowSampling(seed=2, temperature=0.5),
        RowSampling(seed=3, temperature=2.0, top_k=7),
        RowSampling(seed=4, top_p=0.7),
        RowSampling(seed=5, temperature=1.5, min_p=0.1),
        RowSampling(seed=6, temperature=1.3, min_p=0.02, top_k=15, top_p=0.9),
    ],
    ids=["plain", "temperature", "top_k", "top_p", "min_p", "all"],
)
def test_tokens_follow_hf_probabilities(sampler_bench, sampling):
    rows, rounds, vocab = 2000, 10, 30
    bench = sampler_bench(max_rows=rows, vocab_size=vocab)
    for row in range(rows):
        bench.init(row, sampling, [0])
    logits = torch.randn(1, vocab, generator=torch.Generator().manual_seed(sampling.seed)) * 1.5
    counts = np.zeros(vocab)
    for start in range(rounds):
        positions = list(range(start * rows, (start + 1) * rows))
        tokens = bench.step(list(range(rows)), logits.expand(rows, vocab), positions=positions)
        counts += np.bincount(tokens.tokens.numpy(), minlength=vocab)
    expected = hf_probabilities(logits, sampling) * rows * rounds
    support = expected > 0
    assert counts[~support].sum() == 0
    chi_square = float(((counts - expected)[support] ** 2 / expected[support]).sum())
    freedom = int(support.sum()) - 1
    # Wilson and Hilferty's cube-root bound, 3.1 standard deviations (p = 1e-3)
    bound = freedom * (1 - 2 / (9 * freedom) + 3.1 * (2 / (9 * freedom)) ** 0.5) ** 3
    assert chi_square < bound


def hf_probabilities(logits: torch.Tensor, sampling: RowSampling) -> np.ndarray:
    scores = TemperatureLogitsWarper(sampling.temperature)(None, logits)
    if sampling.min_p > 0:
        scores = MinPLogitsWarper(sampling.min_p)(None, scores)
    if sampling.top_k > 0:
        scores = TopKLogitsWarper(sampling.top_k)(None, scores)
    if sampling.top_p < 1:
        scores = TopPLogitsWarper(sampling.top_p)(None, scores)
    return scores[0].double().softmax(-1).numpy()


def test_seed_and_sample_index_give_independent_streams(sampler_bench):
    rows = 64
    bench = sampler_bench(max_rows=rows, vocab_size=VOCAB)
    for row in range(rows):
        bench.init(row, RowSampling(seed=row // 8, sample_index=row % 8), [1])
    logits = torch.zeros(rows, VOCAB)
    streams = [bench.step(list(range(rows)), logits).tokens.tolist() for _ in range(8)]
    assert len(set(zip(*streams, strict=True))) == rows


class NoSynchronisation(TorchFunctionMode):
    """Fails on calls that make the CPU wait for a CUDA device."""

    WAITING = {"item", "tolist", "cpu", "numpy", "__bool__", "__int__", "__float__", "__index__"}
    SHAPED_BY_DATA = {"nonzero", "argwhere", "masked_select", "unique", "equal", "allclose"}

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = func.__name__
        assert name not in self.WAITING | self.SHAPED_BY_DATA, name
        if name in ("__getitem__", "__setitem__"):
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            masks = [i for i in index if isinstance(i, torch.Tensor) and i.dtype is torch.bool]
            assert not masks, "boolean index"
        return func(*args, **(kwargs or {}))


def test_no_step_waits_for_the_device(sampler_bench):
    bench = sampler_bench(max_rows=ROWS, vocab_size=VOCAB)
    filled(bench, random.Random(9))
    state = bench.state
    used = (state.random, state.has_top_p, state.has_top_k, state.has_min_p, state.has_penalties)
    assert all(feature.any() and not feature.all() for feature in used)
    logits = torch.randn(ROWS, VOCAB, generator=torch.Generator().manual_seed(9))
    with NoSynchronisation():
        bench.step(list(range(ROWS)), logits, top_logprobs=5)
        bench.step(list(range(ROWS)), logits)


def test_the_watch_sees_waiting_operations():
    flags = torch.tensor([True, False])
    for waiting in (flags.nonzero, flags.tolist, lambda: flags[flags], lambda: bool(flags[0])):
        with pytest.raises(AssertionError), NoSynchronisation():
            waiting()


@pytest.mark.usefixtures("triton_interpreter")
@pytest.mark.skipif(torch.cuda.is_available(), reason="the bench's tensors are on the CPU")
@pytest.mark.parametrize("seed", range(2))
def test_the_kernel_draws_what_the_sampler_draws(sampler_bench, seed):
    """Truncated rows and plain ones in one batch, drawn by the kernel and without it."""
    from kvasir_engine.sampling.mask_kernel import ban_unset
    from kvasir_engine.sampling.penalty_kernel import penalise
    from kvasir_engine.sampling.sample_kernel import sample
    from kvasir_engine.sampling.sampler import Kernels

    rng = random.Random(seed)
    plain, fused = (sampler_bench(max_rows=ROWS, vocab_size=VOCAB) for _ in range(2))
    fused.sampler._kernels = Kernels(partial(sample, quads=16, chunk_quads=32), penalise, ban_unset)
    filled(plain, random.Random(seed))
    filled(fused, random.Random(seed))
    for _ in range(2):
        rows = rng.sample(range(ROWS), ROWS // 2)
        logits = torch.randn(len(rows), VOCAB) * 2
        want = plain.step(rows, logits).tokens.tolist()
        assert fused.step(rows, logits).tokens.tolist() == want


@pytest.mark.usefixtures("_chunking")
@pytest.mark.parametrize(("ranks", "width"), [(2, 52), (4, 28), (8, 16)])
def test_shards_of_the_vocabulary_give_the_tokens_of_the_whole(
    sampler_bench, ranks: int, width: int, monkeypatch
) -> None:
    """Of 8 ranks the last has no token of the vocabulary."""
    bench = sampler_bench(max_rows=ROWS, vocab_size=VOCAB)
    for row in range(ROWS):
        bench.init(row, RowSampling(seed=row, temperature=row % 4 / 3), [row, 3])
    # Halves: many scores of greedy rows are equal.
    logits = (torch.randn(ROWS, VOCAB, generator=torch.Generator().manual_seed(1)) * 6).round() / 2
    rows = torch.arange(ROWS)
    batch = SampleBatch(
        rows, rows.to(torch.int32).numpy(), rows + 2, bench.history, bench.num_prompt
    )
    want = bench.sampler(logits.clone(), batch).tokens
    padded = torch.nn.functional.pad(logits, (0, ranks * width - VOCAB), value=99.0)
    bests: list[torch.Tensor] = []

    def keep(best: torch.Tensor) -> torch.Tensor:
        bests.append(best)
        return torch.cat(bests, -1)

    monkeypatch.setattr(sampler, "all_gather", keep)
    for rank in range(ranks):
        first = rank * width
        shard = VocabShard(first, max(0, min(width, VOCAB - first)))
        found = bench.sampler.of_shard(padded[:, first : first + width].clone(), batch, shard)
    assert found.tokens.tolist() == want.tolist()
