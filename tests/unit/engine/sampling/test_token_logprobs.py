"""Log-probabilities, ranks and alternatives against torch's own log-softmax, in any chunking."""

import pytest
import torch

from kvasir_engine.sampling import logits as edits
from kvasir_engine.sampling.token_logprobs import prompt_logprobs, token_logprobs

ROWS, VOCAB, HIDDEN = 11, 97, 8


@pytest.fixture(params=["one chunk", "two rows a chunk"])
def _chunking(request, monkeypatch):
    if request.param == "two rows a chunk":
        monkeypatch.setattr(edits, "CHUNK_BYTES", 2 * 4 * VOCAB)
        assert edits.chunk_rows(VOCAB) == 2


@pytest.fixture
def logits() -> torch.Tensor:
    return torch.randn(ROWS, VOCAB, generator=torch.Generator().manual_seed(3)) * 4


@pytest.mark.usefixtures("_chunking")
@pytest.mark.parametrize("top", [0, 1, 5, VOCAB, VOCAB + 10])
def test_values_ranks_and_alternatives(logits, top):
    tokens = torch.arange(ROWS) * 7
    result = token_logprobs(logits, tokens, top)
    reference = logits.double().log_softmax(-1)
    for row in range(ROWS):
        expected = reference[row].sort(descending=True)
        assert result.logprobs[row].item() == pytest.approx(
            reference[row, tokens[row]].item(), 1e-5
        )
        rank = expected.indices.tolist().index(int(tokens[row])) + 1
        assert result.ranks[row].item() == rank
        assert result.top_ids[row].tolist() == expected.indices[:top].tolist()
        assert result.top_logprobs[row].tolist() == pytest.approx(
            expected.values[:top].tolist(), 1e-5
        )
    assert result.ranks.dtype == result.top_ids.dtype == torch.int32


def test_equal_logits_share_the_better_rank():
    result = token_logprobs(torch.tensor([[1.0, 3.0, 3.0, 2.0]] * 3), torch.tensor([1, 2, 3]), 0)
    assert result.ranks.tolist() == [1, 1, 3]


@pytest.mark.usefixtures("_chunking")
@pytest.mark.parametrize("top", [0, 4])
def test_prompt_logprobs_equal_those_of_the_whole_logits(top):
    generator = torch.Generator().manual_seed(4)
    hidden = torch.randn(ROWS, HIDDEN, generator=generator)
    weight = torch.randn(HIDDEN, VOCAB, generator=generator)
    tokens = torch.randint(VOCAB, (ROWS,), generator=generator)
    seen: list[int] = []

    def head(states: torch.Tensor) -> torch.Tensor:
        seen.append(len(states))
        return states @ weight

    result = prompt_logprobs(hidden, head, tokens, vocab_size=VOCAB, top=top)
    whole = token_logprobs(hidden @ weight, tokens, top)
    torch.testing.assert_close(result.logprobs, whole.logprobs)
    torch.testing.assert_close(result.top_logprobs, whole.top_logprobs)
    assert torch.equal(result.ranks, whole.ranks)
    assert torch.equal(result.top_ids, whole.top_ids)
    assert sum(seen) == ROWS
    assert max(seen) <= edits.chunk_rows(VOCAB)


def test_a_long_prompt_is_never_taken_to_logits_at_once():
    seen: list[int] = []

    def head(states: torch.Tensor) -> torch.Tensor:
        seen.append(len(states))
        return states

    hidden = torch.randn(1000, 3, generator=torch.Generator().manual_seed(5))
    prompt_logprobs(hidden, head, torch.zeros(1000, dtype=torch.int64), vocab_size=3, top=0)
    assert max(seen) == 256
    assert sum(seen) == 1000
