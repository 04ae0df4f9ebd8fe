"""Processes that compile grammars by xgrammar, one for each connection.

    python -m kvasir_engine.grammar.isolation.compile_server FD FD

Each compilation runs in a fork of its own, which is killed when it takes too long: the library
cannot be interrupted, and what it needs can grow with the cube of a grammar's size.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeAlias

import msgspec

from kvasir_engine.grammar.compiler import MAX_CPU_SECONDS, MAX_SECONDS
from kvasir_engine.grammar.constraint import Constraint
from kvasir_engine.grammar.constraint_error import ConstraintError
from kvasir_engine.grammar.xgrammar_backend import Vocabulary, XGrammarBackend

MAX_MEMORY = 2 << 30
"""Memory that one compilation may take."""
MAX_GRAMMAR_BYTES = 16 << 20
"""A compiled grammar, written; the engine reads it beside its steps."""
NICENESS = 5
"""Steps, which others wait for, come first where there are few cores."""
QUICK_SECONDS = 0.05
"""A grammar that takes less is compiled again rather than written and read."""

Answer: TypeAlias = tuple[str | None, str]
"""A compiled grammar, written, or empty if it takes no time; or None and why there is none."""
# What comes from a process that reads foreign grammars is decoded by its type, never unpickled
encode = msgspec.msgpack.Encoder().encode
decode_answer: Callable[[bytes], Answer] = msgspec.msgpack.Decoder(Answer).decode
_decode_constraint = msgspec.msgpack.Decoder(Constraint).decode
_decode_vocabulary = msgspec.msgpack.Decoder(Vocabulary).decode
READY = b"ready"
"""Message behind which a server takes constraints."""
TOO_LONG: Answer = (None, f"it takes longer than {MAX_CPU_SECONDS} s to compile; make it simpler")
TOO_LARGE: Answer = (None, "it takes too much memory to compile; make it simpler")


def answer(backend: XGrammarBackend, constraint: Constraint, *, seconds: float) -> Answer:
    """Compile in a fork, which is no more when this returns, `seconds` from now at the latest."""
    ours, theirs = Pipe(duplex=False)
    fork = os.fork()
    if fork == 0:
        try:
            os.nice(NICENESS)
            _limit_time()
            _limit_memory()
            theirs.send_bytes(encode(_compiled(backend, constraint)))
        finally:
            os._exit(0)
    theirs.close()
    try:
        made = decode_answer(ours.recv_bytes()) if ours.poll(seconds) else TOO_LONG
    except EOFError:
        made = None
    finally:
        ours.close()
        os.kill(fork, signal.SIGKILL)
        _, status = os.waitpid(fork, 0)
    return made or _why_it_ended(status)


def _why_it_ended(status: int) -> Answer:
    """Return why a fork has ended without an answer; out of memory, the library ends it."""
    is_late = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU
    return TOO_LONG if is_late else TOO_LARGE


def _compiled(backend: XGrammarBackend, constraint: Constraint) -> Answer:
    began = time.monotonic()
    try:
        made = backend.compile(constraint)
        is_quick = time.monotonic() - began < QUICK_SECONDS
        written = "" if is_quick else made.written()
    except ConstraintError as error:
        return None, str(error)
    except MemoryError:
        return TOO_LARGE
    return TOO_LARGE if len(written) > MAX_GRAMMAR_BYTES else (written, "")


def _limit_time() -> None:
    """Have the system end the process by SIGXCPU once it has had its CPU time."""
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_SECONDS, MAX_CPU_SECONDS + 1))


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MAX_MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def serve(connection: Connection, backend: XGrammarBackend) -> None:
    """Answer until the other end is closed."""
    while True:
        try:
            constraint = _decode_constraint(connection.recv_bytes())
        except EOFError:
            return
        connection.send_bytes(encode(answer(backend, constraint, seconds=MAX_SECONDS)))


def main() -> None:
    """Load the library once, then serve each connection in a fork; end when the first one ends."""
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # The engine ends first, which closes the other end.
    connections = [Connection(int(fd)) for fd in sys.argv[1:]]
    backend = XGrammarBackend(_decode_vocabulary(connections[0].recv_bytes()))
    backend.load()
    connections[0].send_bytes(READY)
    for connection in connections:
        if os.fork() == 0:
            for other in connections:
                if other is not connection:
                    other.close()
            serve(connection, backend)
            os._exit(0)
    for connection in connections:
        connection.close()
    os.wait()


if __name__ == "__main__":
    main()
