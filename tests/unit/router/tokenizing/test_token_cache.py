"""Tokens made in parts are those of the whole text."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvasir.text.tokenizer import Tokenizer
from kvasir.wire.prompt_report.token_cuts import token_ends
from kvasir_router.tokenizing.token_cache import TokenCache

PROSE = (
    "The engine reads prompts, 12345 of them: <|im_start|>über Größe\n\n\tand x = f(y)[0] 東京 😀. "
)
SPECIALS = ["<|im_end|>", "<|bos|>", "", " ", "\n", "é", "a", "😀", "1", "the"]


@pytest.fixture
def cache(tokenizer: Tokenizer) -> TokenCache:
    return TokenCache(tokenizer)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    parts=st.lists(
        st.tuples(st.integers(0, 200), st.sampled_from(SPECIALS), st.integers(0, 60)),
        min_size=2,
        max_size=4,
    ),
    special=st.booleans(),
)
def test_every_text_has_its_own_tokens(
    tokenizer: Tokenizer, parts: list[tuple[int, str, int]], special: bool
) -> None:
    cache = TokenCache(tokenizer)
    base = PROSE * 50
    for keep, joint, more in parts:
        text = base[: 20 * keep + 3] + joint + PROSE * more
        made = cache.tokens(text, add_special_tokens=special)
        whole = tokenizer.encode(text, add_special_tokens=special)
        assert made is not None
        assert list(made.ids) == whole
        assert list(made.ends) == token_ends(tokenizer, text, whole, add_special_tokens=special)


def test_what_a_text_shares_is_not_tokenised_again(
    cache: TokenCache, tokenizer: Tokenizer, words: Callable[[int, int], str]
) -> None:
    shared = words(1, 3000)
    first = cache.tokens(shared + words(2, 50), add_special_tokens=False)
    second = cache.tokens(shared + words(3, 50), add_special_tokens=False)
    assert first is not None
    assert second is not None
    assert cache.reused > 0.8 * len(second.ids)
    # A conversation that goes on takes the place of what it was before
    size = cache.size
    third = cache.tokens(shared + words(3, 50) + words(4, 400), add_special_tokens=False)
    assert third is not None
    assert cache.size < size + len(third.ids)


def test_memory_is_bounded(tokenizer: Tokenizer, words: Callable[[int, int], str]) -> None:
    cache = TokenCache(tokenizer, max_tokens=20_000)
    for seed in range(20):
        cache.tokens(words(seed, 1500), add_special_tokens=False)
    assert 0 < cache.size <= 20_000
    assert cache.reused == 0
    cache.tokens(words(19, 1500), add_special_tokens=False)
    assert cache.reused > 0
    reused = cache.reused
    cache.tokens(words(0, 1500), add_special_tokens=False)
    assert cache.reused == reused, "the oldest was forgotten"


def test_text_that_is_no_unicode_is_refused(cache: TokenCache) -> None:
    for text in ("\ud800", "a" * 3000 + "\ud800"):
        with pytest.raises(ValueError, match="surrogate"):
            cache.tokens(text, add_special_tokens=False)
