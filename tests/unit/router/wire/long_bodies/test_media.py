"""Images and sound are counted by their kind."""

import json

import pytest

from kvasir_router.admission.ticket import prompt_estimate
from kvasir_router.wire.endpoints import endpoint_of
from kvasir_router.wire.envelope import OUTLINED, decode_envelope
from kvasir_router.wire.http_request import Request
from kvasir_router.wire.long_bodies import body_scan
from kvasir_router.wire.long_bodies.body_scan import outline_of
from kvasir_router.wire.long_bodies.media import (
    BYTES_PER_SOUND_TOKEN,
    IMAGE_TOKENS,
    NONE,
    Media,
    media_in,
)
from kvasir_router.wire.query import Query


@pytest.fixture(autouse=True, scope="module")
def compiled() -> None:
    assert body_scan.build(), "these tests need a C compiler"


CHAT = endpoint_of("/v1/chat/completions")
DATA = "A" * 100_000


def image(prefix: str = "data:image/png;base64,") -> dict[str, object]:
    return {"type": "image_url", "image_url": {"url": prefix + DATA, "detail": "low"}}


def sound() -> dict[str, object]:
    return {"type": "input_audio", "input_audio": {"format": "wav", "data": DATA}}


def chat(*parts: object) -> bytes:
    body = {"model": "m", "messages": [{"role": "user", "content": list(parts)}]}
    return json.dumps(body).encode()


SOUND_TOKENS = len(DATA) // BYTES_PER_SOUND_TOKEN


@pytest.mark.parametrize(
    ("parts", "tokens"),
    [
        ([image()], IMAGE_TOKENS),
        ([image(), image("data:image/svg+xml;charset=utf-8;base64,")], 2 * IMAGE_TOKENS),
        ([sound()], SOUND_TOKENS),
        ([image("data:audio/wav;base64,")], SOUND_TOKENS),
        ([image(), sound(), {"type": "text", "text": "x"}], IMAGE_TOKENS + SOUND_TOKENS),
    ],
)
def test_media_count_by_their_kind(parts: list[object], tokens: int) -> None:
    body = chat(*parts)
    media = media_in(body, CHAT)
    assert media.tokens == tokens
    assert len(body) - media.size < 400
    assert tokens < prompt_estimate(len(body), media) < tokens + 100
    assert media_in(body, CHAT, outline_of(body, OUTLINED)) == media
    spaced = json.dumps(json.loads(body), indent=1).encode()
    assert media_in(spaced, CHAT) == media_in(spaced, CHAT, outline_of(spaced, OUTLINED)) == media


@pytest.mark.parametrize(
    "text",
    [
        "data:image/png;base64," + DATA,
        '"url": "data:image/png;base64,' + DATA,
        '{"url":"data:image/png;base64,' + DATA + '"}',
        '"input_audio": {"data": "' + DATA,
    ],
)
def test_a_text_does_not_pass_for_an_image(text: str) -> None:
    body = chat({"type": "text", "text": text})
    assert media_in(body, CHAT) == media_in(body, CHAT, outline_of(body, OUTLINED)) == NONE


def test_what_is_scanned_counts_wherever_it_is() -> None:
    """Searching for it would take as long at once as the body is long."""
    text = {"type": "text", "text": "x" * (9 << 20)}
    body = chat(text, image(), text, sound())
    media = media_in(body, CHAT, outline_of(body, OUTLINED))
    assert media == Media(2 * len(DATA), IMAGE_TOKENS + SOUND_TOKENS)
    assert media_in(body, CHAT) == NONE, "a body that was not scanned is searched in part"


def test_an_upload_is_what_its_route_takes() -> None:
    audio = endpoint_of("/v1/audio/transcriptions")
    assert media_in(b"x" * 50_000, audio, form=True) == Media(50_000, 50)
    edits = endpoint_of("/v1/images/edits")
    assert media_in(b"x" * 50_000, edits, form=True) == Media(50_000, IMAGE_TOKENS)


def test_many_marks_cost_bounded_work() -> None:
    body = chat({"type": "text", "text": ";base64," * 100_000})
    assert media_in(body, CHAT) == NONE
    assert media_in(b'"input_audio":{"' * 100_000, CHAT) == NONE
    body = chat(*[image()] * 1100)
    media = media_in(body, CHAT, outline_of(body, OUTLINED))
    assert media.tokens == body_scan.MAX_STRINGS * IMAGE_TOKENS


def test_a_replica_s_load_is_of_tokens_not_of_base64() -> None:
    request = Request()
    request.path, request.body = CHAT.path, chat(image())
    media = media_in(request.body, CHAT)
    query = Query(request, decode_envelope(request.body), media=media)
    assert query.text_bytes < 4 * IMAGE_TOKENS + 400
    assert len(query.chain) > 40, "it is still told from other images"
