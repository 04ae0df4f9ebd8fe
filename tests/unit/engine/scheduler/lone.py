"""What a request produces when it runs alone: a pure function of the request.

A token depends on the row's sampling parameters, its position and the identity of the prefix
before it; a beam search's candidates on the identity alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvasir_engine.core.beam_search import BeamSearch, FinishedBeam
from kvasir_engine.request import EngineRequest, FinishReason
from kvasir_engine.step_plan import Float32Array, RowSampling

from .fake_grammar import VOCAB, may_follow_all


def extend(identity: int, token: int) -> int:
    """The identity of a prefix one token longer."""
    return hash((identity, token))


def identities(salt: str, tokens: Sequence[int]) -> list[int]:
    """The identity of every non-empty prefix of `tokens`."""
    out, last = [], int.from_bytes(salt.encode(), "little")
    for token in tokens:
        last = extend(last, int(token))
        out.append(last)
    return out


def draw(
    sampling: RowSampling,
    identity: int,
    position: int,
    outputs: int,
    allowed: Sequence[int] = range(VOCAB),
) -> int:
    """The token sampled at `position`: a pure function, stop ids banned before min_tokens."""
    banned = sampling.stop_ids if outputs < sampling.min_tokens else []
    attempt = 0
    while True:
        key = (sampling.seed, sampling.sample_index, position, identity, attempt)
        token = (hash(key) >> 7) % VOCAB
        if token not in banned and (token in allowed or not allowed):
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


def lone_run(
    request: EngineRequest, index: int, limit: int
) -> tuple[list[int], FinishReason, int | None]:
    """Tokens, finish reason and stop reason of sample `index`; `limit` counts the prompt."""
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
    out: list[int] = []
    while True:
        position = len(prefix) + len(out)
        outputs = position - request.num_prompt_tokens
        allowed = _allowed(request, [*resumed, *out])
        token = draw(sampling, last, position, outputs, allowed)
        last = extend(last, token)
        out.append(token)
        if token in stops:
            eos = token in request.eos_token_ids and not params.ignore_eos
            return out, FinishReason.STOP, None if eos else token
        if position + 1 >= limit:
            return out, FinishReason.LENGTH, None


def _allowed(request: EngineRequest, output: Sequence[int]) -> Sequence[int]:
    """Tokens that may follow; any where a grammar that nobody asked for has come to its end."""
    grammar, thinking = request.params.structured_outputs, request.thinking
    asked = grammar is not None and not request.may_be_free

    def fitting(at: int) -> Sequence[int]:
        found = may_follow_all(grammar, thinking, output[:at])
        # What was asked for has to come: reasoning before it is not the end.
        barred = request.eos_token_ids if asked and len(found) == VOCAB else ()
        return [each for each in found if each not in barred]

    found = fitting(len(output))
    fits = all(token in fitting(at) for at, token in enumerate(output))
    free = request.may_be_free and not (fits and found)
    return may_follow_all(None, thinking, output) if free else found
