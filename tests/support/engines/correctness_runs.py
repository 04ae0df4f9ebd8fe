"""The core on a model directory, and transformers as the judge of what it produced."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from kvasir_engine.core.build import Core, build_core
from kvasir_engine.request import EngineRequest, FinishReason, LogprobEntry, Resume
from kvasir_engine.sampling_params import SamplingParams
from kvasir_engine.scheduler import admission
from kvasir_engine.settings import make_settings

TOLERANCE = 1e-3


@dataclass
class Result:
    """Everything that came back for one sample."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[LogprobEntry] = field(default_factory=list)
    prompt_logprobs: list[LogprobEntry] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    num_cached: int | None = None
    seed: int | None = None
    score: float | None = None


@dataclass
class Job:
    """A prompt and how to sample it."""

    prompt: list[int]
    params: SamplingParams
    resume: Resume | None = None
    eos: list[int] = field(default_factory=list)


class Engine:
    """The core without processes: jobs in, results out."""

    def __init__(self, model_dir: Path, **settings: Any) -> None:
        options = {"max_model_len": 128, "max_num_seqs": 8, "max_num_batched_tokens": 256}
        self.core: Core = build_core(
            make_settings(str(model_dir), **{**options, **settings}), model_dir
        )
        self._handle = 0

    @property
    def counters(self) -> Any:
        """The scheduler's totals."""
        return self.core.scheduler.counters

    def run(self, jobs: list[Job], *, arrive: int | None = None) -> list[list[Result]]:
        """Results by job and sample. `arrive`: this many jobs are added a step, None = at once."""
        loop, scheduler = self.core.loop, self.core.scheduler
        waiting, results, first = [*jobs], {}, []
        while waiting or not loop.idle:
            for job in waiting[: arrive or len(waiting)]:
                first.append((self._handle, job.params.n))
                self._add(job, results)
            waiting = waiting[arrive or len(waiting) :]
            self._take(loop.step(), results)
            scheduler.kv.check_integrity()
        loop.check_idle()
        return [[results[start + i] for i in range(n)] for start, n in first]

    def _add(self, job: Job, results: dict[int, Result]) -> None:
        request = EngineRequest(
            "test", self._handle, job.prompt, job.params, eos_token_ids=job.eos, resume=job.resume
        )
        assert admission.check(self.core.scheduler, request) is None
        for i in range(job.params.n):
            results[self._handle + i] = Result()
        self._handle += job.params.n
        self.core.loop.add(request)

    @staticmethod
    def _take(news: Any, results: dict[int, Result]) -> None:
        if news is None:
            return
        for handle, token in zip(news.handles.tolist(), news.tokens.tolist(), strict=True):
            results[handle].tokens.append(token)
        for _, delta in news.deltas:
            result = results[delta.handle]
            assert result.finish_reason is None, "something came after the end"
            result.tokens.extend(delta.token_ids)
            result.logprobs.extend(delta.logprobs or [])
            result.prompt_logprobs.extend(delta.prompt_logprobs or [])
            result.finish_reason = delta.finish_reason
            result.score = delta.cumulative_logprob
            if delta.seed is not None:
                result.seed, result.num_cached = delta.seed, delta.num_cached_tokens


class Judge:
    """transformers' own model, fp32, eager attention, no cache."""

    def __init__(self, model_dir: Path) -> None:
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(
            model_dir, attn_implementation="eager", dtype=torch.float32
        ).eval()
        self._seen: dict[tuple[int, ...], torch.Tensor] = {}
        self.verdicts: Counter[str] = Counter()

    @torch.inference_mode()
    def logprobs(self, tokens: list[int]) -> torch.Tensor:
        """[len(tokens), vocab]: row p predicts token p + 1."""
        key = tuple(tokens)
        if key not in self._seen:
            logits = self.model(torch.tensor([tokens]), use_cache=False).logits[0]
            self._seen[key] = logits.float().log_softmax(-1)
        return self._seen[key]

    def check_greedy(self, prompt: list[int], result: Result) -> None:
        """Each token is the most likely one, and its 5 best log-probabilities are the judge's."""
        scores = self.logprobs(prompt + result.tokens)
        for i, token in enumerate(result.tokens):
            row = scores[len(prompt) - 1 + i]
            assert row[token] >= row.max() - TOLERANCE
            if result.logprobs:
                self.check_entry(result.logprobs[i], token, row, top=5)

    @staticmethod
    def check_entry(entry: LogprobEntry, token: int, row: torch.Tensor, top: int) -> None:
        """One reported token against the judge's row."""
        assert entry.token_id == token
        assert entry.logprob == pytest.approx(row[token].item(), abs=TOLERANCE)
        best = row.topk(top).values.tolist()
        assert entry.top_logprobs == pytest.approx(best, abs=TOLERANCE)
        assert [row[i].item() for i in entry.top_ids] == pytest.approx(best, abs=TOLERANCE)

    def same_tokens(self, prompt: list[int], one: list[int], other: list[int]) -> None:
        """Identical, or two greedy candidates that the judge scores equally at the first
        divergence. Counts what it saw; `settle` allows 1 % of the second kind."""
        self.verdicts["compared"] += 1
        if one == other:
            return
        at = next(i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
        row = self.logprobs(prompt + one[:at])[-1]
        assert abs((row[one[at]] - row[other[at]]).item()) < TOLERANCE, f"diverged at {at}"
        self.verdicts["equal scores"] += 1

    def settle(self) -> None:
        """At most 1 % of the compared sequences diverged at all."""
        print(dict(self.verdicts))
        assert self.verdicts["equal scores"] <= max(0.01 * self.verdicts["compared"], 0)
