"""What goes into a pipe as one."""

import os
from select import PIPE_BUF

from kvasir_router.workers.whole_lines import WholeLines


def test_pieces_are_whole_lines_that_the_kernel_does_not_mix(monkeypatch) -> None:
    pieces: list[bytes] = []

    def write(fd: int, data: bytes) -> int:
        pieces.append(data)
        return len(data)

    monkeypatch.setattr(os, "write", write)
    lines = [b"%d " % number + b"x" * 1000 + b"\n" for number in range(20)]
    WholeLines(1).write(b"".join(lines))
    assert b"".join(pieces) == b"".join(lines)
    assert len(pieces) > 1
    assert all(len(piece) <= PIPE_BUF and piece.endswith(b"\n") for piece in pieces)


def test_a_line_that_is_longer_is_written_all_the_same() -> None:
    reader, writer = os.pipe()
    line = b"y" * (PIPE_BUF + 100) + b"\n"
    WholeLines(writer).write(line + b"short\n")
    assert os.read(reader, 2 * len(line)) == line + b"short\n"
    os.close(reader)
    os.close(writer)
