"""Images and sound in a body: how long they are, and how many tokens engines make of them.

Their base64 is no text: by its length an image of 2 MiB would pass for 700,000 tokens.
"""

import re
from typing import NamedTuple

from kvasir_router.wire.endpoints import Endpoint
from kvasir_router.wire.long_bodies.body_scan import Outline

IMAGE_TOKENS = 1200
"""Tokens of an image, about: models cut it into some hundreds to two thousand patches."""
BYTES_PER_SOUND_TOKEN = 1000
"""Bytes of sound or film for one token, about: 25 tokens a second, of 16 to 40 KB in base64."""

_MAX_PARTS = 1024
_MAX_SEARCHED = 8 * 1024 * 1024
"""Bytes that are searched; what begins behind them counts as text."""
_BASE64 = b";base64,"
# The member's name keeps texts apart that look like a data URL: engines take no text from it.
_URL = re.compile(
    rb'"url"\s{0,9}:\s{0,9}"data:(image|audio|video)/[^;",]{1,80}(?:;[^;",]{1,80})?\Z'
)
_SOUND = b'"input_audio"'
_DATA = re.compile(rb'\s{0,9}:\s{0,9}\{[^{}]{0,80}?"data"\s{0,9}:\s{0,9}"')
_LOOK_BACK = 300
_LONGEST_TYPE = 200
_SOUND_AT = re.compile(rb'"input_audio"\s{0,9}:\s{0,9}\{[^{}]{0,80}?"data"\s{0,9}:\s{0,9}"\Z')


class Media(NamedTuple):
    """Everything in a body that is neither text nor JSON."""

    size: int
    tokens: int


NONE = Media(0, 0)


def media_in(
    body: bytes, endpoint: Endpoint, outline: Outline | None = None, *, form: bool = False
) -> Media:
    """Return the images and the sound of a body; `form`: it is a form, most of it a file. A body
    with an `outline`, which is that of the body as it is, is not searched."""
    if form:
        is_image = "/images/" in endpoint.path
        tokens = IMAGE_TOKENS if is_image else len(body) // BYTES_PER_SOUND_TOKEN
        return Media(len(body), tokens)
    if endpoint.prompt not in ("messages", "system", "input", "items"):
        return NONE
    return _search(body) if outline is None else _noted(body, outline)


def _noted(body: bytes, outline: Outline) -> Media:
    """Judge the long strings: each by its first bytes and what stands before it."""
    size = tokens = sound = 0
    for start, end in outline.strings():
        begin = max(start - _LOOK_BACK, 0)
        mark = body.find(_BASE64, start, min(start + _LONGEST_TYPE, end))
        found = _URL.search(body, begin, mark) if mark >= 0 else None
        if found is not None:
            length = end - 1 - mark - len(_BASE64)
            size += length
            tokens += IMAGE_TOKENS if found[1] == b"image" else length // BYTES_PER_SOUND_TOKEN
        elif _SOUND_AT.search(body, begin, start + 1):
            sound += end - start - 2
    return Media(size + sound, tokens + sound // BYTES_PER_SOUND_TOKEN)


def _search(body: bytes) -> Media:
    """Search a body that is short, or was not scanned."""
    size = tokens = at = 0
    for _ in range(_MAX_PARTS):
        at = body.find(_BASE64, at, _MAX_SEARCHED)
        if at < 0:
            break
        found = _URL.search(body, max(at - _LOOK_BACK, 0), at)
        at += len(_BASE64)
        if found is not None:
            length = max(body.find(b'"', at) - at, 0)
            size += length
            tokens += IMAGE_TOKENS if found[1] == b"image" else length // BYTES_PER_SOUND_TOKEN
            at += length
    sound = _sound_in(body)
    return Media(size + sound, tokens + sound // BYTES_PER_SOUND_TOKEN)


def _sound_in(body: bytes) -> int:
    size = at = 0
    for _ in range(_MAX_PARTS):
        at = body.find(_SOUND, at, _MAX_SEARCHED)
        if at < 0:
            break
        at += len(_SOUND)
        found = _DATA.match(body, at)
        if found is not None:
            size += max(body.find(b'"', found.end()) - found.end(), 0)
            at = found.end()
    return size
