"""xgrammar's compilations in other processes, as the engine sees them."""

from __future__ import annotations

import os
import queue
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from multiprocessing.connection import Connection

import msgspec

from kvasir_engine.grammar.compiler import THREADS
from kvasir_engine.grammar.constraint import Constraint
from kvasir_engine.grammar.constraint_error import ConstraintError
from kvasir_engine.grammar.isolation.compile_server import Answer, decode_answer, encode
from kvasir_engine.grammar.xgrammar_backend import Vocabulary, XGrammar, XGrammarBackend

_MODULE = "kvasir_engine.grammar.isolation.compile_server"
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""A process with threads may not fork safely: a lock that one of them holds stays locked."""


class CompileServers:
    """As many processes as there are threads that compile."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Start them; they are `ready` later."""
        pairs = [socket.socketpair() for _ in range(THREADS)]
        fds = [theirs.fileno() for _, theirs in pairs]
        self.process = subprocess.Popen(
            [sys.executable, "-m", _MODULE, *map(str, fds)],
            stdin=subprocess.DEVNULL,
            pass_fds=fds,
            env={**os.environ, **_ONE_THREAD},
        )
        for _, theirs in pairs:
            theirs.close()
        self._connections = [Connection(ours.detach()) for ours, _ in pairs]
        self.close = weakref.finalize(self, _end, self.process, self._connections)
        """End them."""
        self._free: queue.SimpleQueue[Connection] = queue.SimpleQueue()
        self._connections[0].send_bytes(encode(vocabulary))

    def wait_ready(self) -> None:
        """Wait until the library is loaded. Raises EOFError."""
        self._connections[0].recv_bytes()
        for each in self._connections:
            self._free.put(each)

    def answer(self, constraint: Constraint) -> Answer:
        """Have a grammar compiled. Raises EOFError or OSError once a process is gone, and
        msgspec.DecodeError for an answer that is none."""
        connection = self._free.get()
        try:
            connection.send_bytes(encode(constraint))
            return decode_answer(connection.recv_bytes())
        finally:
            self._free.put(connection)


def _end(process: subprocess.Popen[bytes], connections: Sequence[Connection]) -> None:
    for each in connections:
        each.close()
    process.kill()
    process.wait()


class IsolatedBackend:
    """Backend: XGrammarBackend whose work is bounded in time and memory."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._lock = threading.Lock()
        self._servers: CompileServers | None = CompileServers(vocabulary)
        self._here = XGrammarBackend(vocabulary)
        self._here.load()
        self._servers.wait_ready()

    def compile(self, constraint: Constraint) -> XGrammar:
        """Backend.compile."""
        servers = self._there()
        try:
            written, reason = servers.answer(constraint)
        except (EOFError, OSError, msgspec.DecodeError) as error:
            self._forget(servers)
            raise RuntimeError("the process that compiles grammars has ended") from error
        if written is None:
            raise ConstraintError(reason)
        if not written:
            return self._here.compile(constraint)
        return self._here.read(constraint.kind, written)

    def close(self) -> None:
        """End the processes."""
        with self._lock:
            if self._servers is not None:
                self._servers.close()

    def _there(self) -> CompileServers:
        with self._lock:
            if self._servers is None:
                started = CompileServers(self._vocabulary)
                started.wait_ready()
                self._servers = started
            return self._servers

    def _forget(self, servers: CompileServers) -> None:
        with self._lock:
            if self._servers is servers:
                self._servers = None
        servers.close()
