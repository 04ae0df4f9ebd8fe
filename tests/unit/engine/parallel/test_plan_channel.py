"""The ring: order, wrap-around, back-pressure, closing; across threads and processes."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from kvasir_engine.parallel.plan_channel import PlanReader, PlanWriter

SLOTS, SLOT_BYTES = 4, 64
PAYLOAD = SLOT_BYTES - 16


def reader(writer: PlanWriter, index: int) -> PlanReader:
    """A reader with descriptors of its own, as another process has them."""
    end = writer.reader(index)
    memory, written, read = map(os.dup, end.descriptors)
    return PlanReader(replace(end, memory=memory, written=written, read=read))


@pytest.fixture
def make_ring() -> Iterator[Callable[..., tuple[PlanWriter, list[PlanReader]]]]:
    made: list[tuple[PlanWriter, list[PlanReader]]] = []

    def make(readers: int = 1) -> tuple[PlanWriter, list[PlanReader]]:
        writer = PlanWriter(readers, slots=SLOTS, slot_bytes=SLOT_BYTES)
        made.append((writer, [reader(writer, i) for i in range(readers)]))
        return made[-1]

    yield make
    for writer, readers in made:
        writer.close()
        for each in readers:
            each.close()


def messages(count: int) -> list[bytes]:
    rng = random.Random(count)
    sizes = [0, 1, PAYLOAD - 1, PAYLOAD, PAYLOAD + 1, 2 * PAYLOAD, SLOTS * SLOT_BYTES * 3]
    return [rng.randbytes(rng.choice(sizes)) for _ in range(count)]


def test_a_message_arrives_at_every_reader(make_ring) -> None:
    writer, readers = make_ring(3)
    writer.send(b"one")
    writer.send(b"")
    assert [[r.receive(), r.receive()] for r in readers] == [[b"one", b""]] * 3


def test_messages_larger_than_the_ring_pass_through_in_order(make_ring) -> None:
    """Wrap around many times, with readers of different speed."""
    writer, readers = make_ring(2)
    sent, received = messages(300), [[], []]

    def read(index: int) -> None:
        while len(received[index]) < len(sent):
            received[index].append(readers[index].receive())

    threads = [threading.Thread(target=read, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for message in sent:
        writer.send(message)
    for thread in threads:
        thread.join()
    assert received == [sent, sent]


def test_the_writer_waits_for_the_slowest_reader(make_ring) -> None:
    writer, (fast, slow) = make_ring(2)
    for i in range(SLOTS):
        writer.send(bytes([i]))
    for _ in range(SLOTS):
        fast.receive()
    done = threading.Event()

    def send() -> None:
        writer.send(b"more")
        done.set()

    thread = threading.Thread(target=send)
    thread.start()
    assert not done.wait(0.2)
    assert slow.receive() == bytes([0])
    thread.join()
    assert [slow.receive() for _ in range(SLOTS)] == [b"\1", b"\2", b"\3", b"more"]


def test_closing_comes_after_what_was_sent(make_ring) -> None:
    writer, readers = make_ring(2)
    writer.send(b"last")
    writer.close()
    assert [[r.receive(), r.receive()] for r in readers] == [[b"last", None]] * 2


def test_closing_a_full_ring_does_not_wait(make_ring) -> None:
    writer, (unread,) = make_ring()
    for _ in range(SLOTS):
        writer.send(b"sent")
    writer.close()
    assert [unread.receive() for _ in range(SLOTS)] == [b"sent"] * SLOTS


def test_a_reader_in_another_process_sleeps_until_it_is_told() -> None:
    """Its processor time stays that of its start, however long it waits."""
    writer = PlanWriter(1)
    end = writer.reader(0)
    code = (
        "import resource, sys\n"
        "from kvasir_engine.parallel.plan_channel import PlanReader, ReaderEnd\n"
        "def used(): return sum(resource.getrusage(resource.RUSAGE_SELF)[:2])\n"
        "reader = PlanReader(ReaderEnd(*map(int, sys.argv[1:])))\n"
        "print('reading', flush=True)\n"
        "before = used()\n"
        "while (message := reader.receive()) is not None: print(bytes(message), flush=True)\n"
        "print('idle' if used() - before < 0.1 else 'busy')\n"
    )
    arguments = [str(n) for n in (*end.descriptors, end.slots, end.slot_bytes)]
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        pass_fds=end.descriptors,
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"reading\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        writer.send(b"plan")
        writer.close()
        assert process.stdout.read() == b"b'plan'\nidle\n"
