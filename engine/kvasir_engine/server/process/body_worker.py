"""Process that reads large bodies: `python -m ...body_worker SOCKET_FD PARENT_PID`.

It takes one job at a time from the API process that started it, and ends with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from functools import cached_property, partial
from pathlib import Path

from kvasir_engine.parent_death import die_with_parent
from kvasir_engine.server.anthropic.messages_request import count_tokens, prepare_messages
from kvasir_engine.server.large_bodies.body_workers import too_much_memory
from kvasir_engine.server.large_bodies.shared_body import memory_file, read_all
from kvasir_engine.server.large_bodies.worker_messages import (
    MAX_PACKET_BYTES,
    Answered,
    BodyRefusal,
    Document,
    FromWorker,
    Job,
    Next,
    Prepared,
    Reported,
    Result,
    Setup,
    decode_to_worker,
    encode,
    encode_reports,
)
from kvasir_engine.server.oip.infer import prepare_infer
from kvasir_engine.server.openai.api_error import FAILED_SENTENCE, ApiError
from kvasir_engine.server.openai.intake import Intake
from kvasir_engine.server.openai.prepared_wire import encode_prepared
from kvasir_engine.server.openai.preparer import PreparedRequest, Preparer
from kvasir_engine.server.openai.reporting import report_runs
from kvasir_engine.server.openai_responses.responses_request import prepare_response
from kvasir_engine.server.reports.collected_reports import CollectedReports
from kvasir_engine.server.served_model import load_served_model
from kvasir_engine.server.server_state import check_model

log = logging.getLogger(__name__)

RETIRING_BYTES = 512 * 2**20
"""Bytes that the process may keep after a body; with more it ends, and another one starts."""
NICENESS = 5
"""The API process, which has the streams, comes first."""


class BodyWorker:
    """Read bodies for one model."""

    def __init__(self, setup: Setup) -> None:
        self._model = load_served_model(setup.settings)
        maker = self._model.request_maker(setup.info, setup.settings.max_logprobs)
        self._whole = Intake(maker, setup.info.max_model_len)
        self._preparer = Preparer(self._intake, self._model.defaults, self._model.parsing)
        self._block_size = setup.info.block_size
        self._watch = 0
        self._routes: dict[str, Callable[[bytes, Job], Awaitable[Result]]] = {
            "completions": self._completion,
            "chat": self._chat,
            "messages": self._messages,
            "responses": self._response,
            "count_tokens": self._count_tokens,
            "infer": self._infer,
            "tokenize": self._tokenize,
            "detokenize": self._detokenize,
            "generate": self._generate,
        }
        self._last: PreparedRequest | None = None
        self._adapters: list[str] = []

    async def read(self, body: int, job: Job) -> bytes:
        """Return the Result, encoded, of the body in descriptor `body`."""
        self._last, self._adapters = None, job.adapters
        try:
            return encode(await self._routes[job.route](read_all(body), job))
        except ApiError as error:
            refusal = BodyRefusal(
                error.status, error.message, error.param, error.code, error.headers, error.extra
            )
        except MemoryError:
            refusal = too_much_memory()
        except Exception:
            log.exception("a body could not be read")
            refusal = BodyRefusal(500, FAILED_SENTENCE, None, None, {})
        return encode(refusal)

    def reports_on(self, job: Job) -> bool:
        """Return True if the prompts read last are to be reported."""
        return job.watch != 0 and self._last is not None

    def reports(self, job: Job) -> bytes:
        """Return the reports, encoded, of the prompts read last."""
        if job.watch != self._watch:
            self._watch = job.watch
            self._reports = self._reports.fresh()
        if self._last is not None:
            template = self._model.chat_template
            report_runs(self._reports, template, self._last.body, self._last.runs)
        return encode_reports(self._reports.take())

    @cached_property
    def _reports(self) -> CollectedReports:
        return CollectedReports(self._model.tokenizer, self._block_size)

    def _intake(self, name: str | None) -> Intake:
        check_model(self._model, name, self._adapters)
        return self._whole.for_adapter(name) if name and name in self._adapters else self._whole

    async def _completion(self, raw: bytes, job: Job) -> Result:
        return self._prepared(await self._preparer.completion(raw, job.request_id))

    async def _chat(self, raw: bytes, job: Job) -> Result:
        return self._prepared(await self._preparer.chat(raw, job.request_id))

    async def _messages(self, raw: bytes, job: Job) -> Result:
        return self._prepared(await prepare_messages(self._preparer, raw, job.request_id))

    async def _response(self, raw: bytes, job: Job) -> Result:
        return self._prepared(await prepare_response(self._preparer, raw, job.request_id))

    async def _count_tokens(self, raw: bytes, _job: Job) -> Result:
        return Document(await count_tokens(self._preparer, raw))

    async def _infer(self, raw: bytes, job: Job) -> Result:
        model = job.model or self._model.name
        return self._prepared(await prepare_infer(self._preparer, raw, model, job.request_id))

    async def _tokenize(self, raw: bytes, _job: Job) -> Result:
        return Document(await self._preparer.tokenize(raw))

    async def _detokenize(self, raw: bytes, _job: Job) -> Result:
        return Document(await self._preparer.detokenize(raw))

    async def _generate(self, raw: bytes, job: Job) -> Result:
        # Imported here: protobuf costs a worker that serves HTTP alone its time and memory.
        from kvasir_engine.server.rpc.convert import prepare_generate

        return Prepared(encode_prepared(await prepare_generate(raw, self._whole)))

    def _prepared(self, request: PreparedRequest) -> Result:
        self._last = request
        return Prepared(encode_prepared(request))


def main() -> int:
    """Serve until the API process closes the socket."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    die_with_parent(int(sys.argv[2]))
    # A Ctrl-C at the terminal is for the engine, which ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICENESS)
    _, descriptors, _, _ = socket.recv_fds(connection, MAX_PACKET_BYTES, 1)
    setup = decode_to_worker(read_all(descriptors[0]))
    if not isinstance(setup, Setup):
        raise SystemExit(f"the first message is a {type(setup).__name__}, not a Setup.")
    worker = BodyWorker(setup)
    _limit_memory(setup.memory_bytes)
    with asyncio.Runner() as runner, contextlib.suppress(BrokenPipeError, ConnectionResetError):
        _serve(worker, connection, runner)
    return 0


def _limit_memory(size: int) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    limit = _status_bytes("VmData") + size
    if most == resource.RLIM_INFINITY or limit < most:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, most))


def _serve(worker: BodyWorker, connection: socket.socket, runner: asyncio.Runner) -> None:
    send = partial(_send, connection)
    at_start = _status_bytes("VmRSS")
    then = Next.FREE
    while then is not Next.ENDS:
        packet, descriptors, _, _ = socket.recv_fds(connection, MAX_PACKET_BYTES, 1)
        if not packet:
            return
        job = decode_to_worker(packet)
        if not isinstance(job, Job):
            raise SystemExit(f"a {type(job).__name__} came in place of a Job.")
        content = runner.run(worker.read(descriptors[0], job))
        then = Next.FREE
        if worker.reports_on(job):
            then = Next.REPORT
        elif _status_bytes("VmRSS") > at_start + RETIRING_BYTES:
            then = Next.ENDS
        send(Answered(then), content)
        if then is Next.REPORT:
            then = Next.FREE
            send(Reported(then), worker.reports(job))


def _send(connection: socket.socket, message: FromWorker, content: bytes | None = None) -> None:
    if content is None:
        connection.send(encode(message))
        return
    descriptor = memory_file(content)
    try:
        socket.send_fds(connection, [encode(message)], [descriptor])
    finally:
        os.close(descriptor)


def _status_bytes(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) * 1024
    raise LookupError(name)


if __name__ == "__main__":
    sys.exit(main())
