"""What the client of a broken stream of a message has."""

import pytest
from support.broken_messages import BODY, message_stream
from support.broken_streams import WORDS

from kvasir_router.proxy.resuming.message_progress import read_message_progress
from kvasir_router.proxy.resuming.obstacle import Obstacle, ObstacleError

EVENTS = message_stream(BODY)


def test_thinking_text_and_arguments_are_text() -> None:
    progress = read_message_progress(b"".join(EVENTS[:12]))
    assert progress.token_ids == [0, 1, 2, 3, 4]
    assert progress.sent_chars == len("".join(WORDS[:5]))
    assert (progress.sent_events, progress.sent_steps) == (12, 7)
    assert (progress.id, progress.seed, progress.cached_tokens) == ("msg_1", 5, 3)


def test_the_last_event_alone_ends_it() -> None:
    assert not read_message_progress(b"".join(EVENTS[:-1])).done
    assert read_message_progress(b"".join(EVENTS)).done


@pytest.mark.parametrize(
    "events",
    [
        b'event: message_start\ndata: {"type":"message_start"}\n\n',
        b": kvasir {\n\n",
        b': kvasir {"i":0,"t":[],"s":1}\ndata: nonsense\n\n',
        b': kvasir {"i":0,"t":[],"s":1}\ndata: {"type":"x","delta":"text"}\n\n',
    ],
)
def test_what_is_not_the_contract_is_refused(events: bytes) -> None:
    with pytest.raises(ObstacleError) as refused:
        read_message_progress(events)
    assert refused.value.obstacle is Obstacle.CONTRACT
