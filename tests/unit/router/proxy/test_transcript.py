"""What is kept of streams, and its bounds."""

from kvasir_router.proxy.transcript import NO_BUDGET, Transcript, TranscriptBudget

KIB = 1024


def test_it_holds_what_was_added() -> None:
    room = TranscriptBudget(1024 * KIB, 1024 * KIB)
    transcript = Transcript(room)
    assert transcript.empty
    parts = [b"%d" % number * 100 for number in range(2000)]
    assert all(transcript.add(part) for part in parts)
    assert transcript.content() == b"".join(parts)
    assert len(transcript.content()) <= room.used < len(transcript.content()) + 64 * KIB
    transcript.close()
    transcript.close()
    assert room.used == 0


def test_a_stream_that_grows_too_large_is_dropped() -> None:
    room = TranscriptBudget(100 * KIB, 1024 * KIB)
    transcript = Transcript(room)
    assert transcript.add(b"x" * 100 * KIB)
    assert not transcript.add(b"x")
    assert room.used == 0
    assert transcript.content() == b""


def test_all_streams_together_are_bounded() -> None:
    room = TranscriptBudget(1024 * KIB, 128 * KIB)
    transcripts = [Transcript(room) for _ in range(3)]
    assert [transcript.add(b"x") for transcript in transcripts] == [True, True, False]
    transcripts[0].close()
    assert Transcript(room).add(b"x" * 64 * KIB)


def test_without_room_nothing_is_kept() -> None:
    transcript = Transcript(NO_BUDGET)
    assert transcript.empty
    assert not transcript.add(b"x")
    assert not transcript.empty
