"""Tokenising processes: what they answer, and when they end."""

import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kvasir_router.tasks import SupervisedTasks
from kvasir_router.tokenizing import tokenizer_pool as pool_module
from kvasir_router.tokenizing.job_messages import Job, Made
from kvasir_router.tokenizing.tokenizer_pool import TokenizerPool

BODY = json.dumps({"model": "m", "prompt": "some words " * 100}).encode()


@pytest.fixture
async def pool() -> AsyncIterator[TokenizerPool]:
    pool = TokenizerPool(1, SupervisedTasks())
    yield pool
    await pool.stop()


def job(tokenizer: Path, body: bytes = BODY) -> Job:
    return Job(0, str(tokenizer), body=body)


async def ask(pool: TokenizerPool, asked: Job, eventually) -> Made | None:
    answers: list[Made | None] = []
    if not pool._processes:
        pool.load(asked.tokenizer, lambda made: None)
    await eventually(lambda: pool.send(asked, 0, answers.append), 30)
    await eventually(lambda: len(answers) == 1, 30)
    return answers[0]


async def test_prompts_are_tokenised_elsewhere(pool, tiny, eventually) -> None:
    made = await ask(pool, job(tiny), eventually)
    assert made is not None
    assert made.kv_blocks[-1] > 0
    assert len(made.kv_hashes) == 16 * len(made.kv_blocks)


async def test_what_cannot_be_tokenised_is_said(pool, tiny, tmp_path, eventually) -> None:
    refused = await ask(pool, job(tiny, b"no json"), eventually)
    assert refused is not None
    assert refused.refused
    assert not refused.broken
    broken = await ask(pool, job(tmp_path), eventually)
    assert broken is not None
    assert "holds no tokenizer" in broken.broken


@pytest.mark.slow
async def test_a_process_that_ends_is_replaced(pool, tiny, eventually, monkeypatch) -> None:
    monkeypatch.setattr(pool_module, "_RESTART_SECONDS", 0.0)
    await ask(pool, job(tiny), eventually)
    process = pool._processes[0]._process
    os.kill(process.pid, signal.SIGSTOP)
    answers: list[Made | None] = []
    assert pool.send(job(tiny), 0, answers.append)
    os.kill(process.pid, signal.SIGKILL)
    await eventually(lambda: answers == [None])
    made = await ask(pool, job(tiny), eventually)
    assert made is not None
    assert made.kv_blocks


@pytest.mark.slow
async def test_a_stuck_process_takes_a_bounded_number_and_is_ended(
    pool, tiny, eventually, monkeypatch
) -> None:
    monkeypatch.setattr(pool_module, "_RESTART_SECONDS", 0.0)
    await ask(pool, job(tiny), eventually)
    os.kill(pool._processes[0]._process.pid, signal.SIGSTOP)
    answers: list[Made | None] = []
    taken = 0
    assert pool._processes[0].waiting == 0
    while pool.send(job(tiny), 0, answers.append):
        taken += 1
    assert taken == pool_module.MAX_WAITING
    with monkeypatch.context() as patch:
        patch.setattr(pool_module, "STUCK_SECONDS", 0.0)
        assert not pool.send(job(tiny), 0, answers.append)
    await eventually(lambda: answers == [None] * taken)
    assert await ask(pool, job(tiny), eventually) is not None


async def test_the_end_of_the_pool_is_theirs(pool, tiny, eventually) -> None:
    await ask(pool, job(tiny), eventually)
    process = pool._processes[0]._process
    await pool.stop()
    await eventually(lambda: process.returncode is not None)


async def test_a_process_that_could_not_be_told_of_is_ended_and_replaced(
    tiny, eventually, monkeypatch
) -> None:
    tasks, seen = SupervisedTasks(), []
    real = TokenizerPool._load_all

    def told(self: TokenizerPool, process: pool_module.TokenizerProcess) -> None:
        seen.append(process._process)
        if len(seen) == 1:
            raise ZeroDivisionError
        real(self, process)

    monkeypatch.setattr(TokenizerPool, "_load_all", told)
    pool = TokenizerPool(1, tasks)
    assert await ask(pool, job(tiny), eventually) is not None
    first, second = seen
    await eventually(lambda: first.returncode is not None)
    assert second.returncode is None
    assert tasks.failures == {"tokenizer process": 1}
    await pool.stop()
