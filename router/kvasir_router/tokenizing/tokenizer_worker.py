"""A tokenising process: `python -m kvasir_router.tokenizing.tokenizer_worker`.

It reads jobs from stdin, writes answers to stdout, and ends with its router."""

import os
import signal
import sys
from contextlib import suppress
from typing import BinaryIO

# A job is one core's: the pool has as many processes as it may have cores
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# The log is the router's
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"

from kvasir_router.tokenizing.job_messages import Job, Made, frame, read_job
from kvasir_router.tokenizing.prompt_tokenizer import PromptTokenizer, tokenizer_directory


class TokenizerWorker:
    """Answers jobs; keeps every tokenizer that was asked for."""

    def __init__(self) -> None:
        self._tokenizers: dict[str, PromptTokenizer] = {}

    def answer(self, job: Job) -> Made:
        """Return an answer whatever happens: tokenizers and templates are other people's."""
        try:
            tokenizer = self._tokenizer(job.tokenizer)
        except Exception as error:
            return Made(job.number, broken=_one_line(error))
        if not job.body:
            return Made(job.number)
        try:
            report = tokenizer.report(job)
        except Exception as error:
            return Made(job.number, refused=_one_line(error))
        return Made(job.number, list(report.kv_blocks), report.kv_hashes)

    def _tokenizer(self, name: str) -> PromptTokenizer:
        found = self._tokenizers.get(name)
        if found is None:
            found = self._tokenizers[name] = PromptTokenizer(tokenizer_directory(name))
        return found


def run(jobs: BinaryIO, answers: BinaryIO) -> None:
    """Answer jobs until there are no more."""
    worker = TokenizerWorker()
    while (job := read_job(jobs)) is not None:
        answers.write(frame(worker.answer(job)))
        answers.flush()


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:500]


if __name__ == "__main__":
    # Ctrl-C is for the router, which then closes stdin
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(BrokenPipeError):
        run(sys.stdin.buffer, sys.stdout.buffer)
