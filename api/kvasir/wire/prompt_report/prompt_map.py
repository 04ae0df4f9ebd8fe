"""Leading KV blocks that a prompt's canonical text determines, text block by text block.

A router that sees a text chain again wants to know which KV blocks its prompt starts with, without
rendering or tokenising it. So a claim "this text block determines these KV blocks" must hold for
*every* request whose canonical text starts the same way. Two things can break it, and both are met
by claiming less:

**Rendering.** What a chat template writes for a message may depend on what follows: Qwen3 drops
the reasoning of turns before the last question, older Mistral templates put the system prompt into
the last question. A claim for the text up to the end of message j therefore reaches only as far as
this prompt and *probes* are the same: the first j messages rendered alone, followed by a question,
and followed by an answer and a question. Inside of a string content a claim needs a further probe,
with the content cut in half and other text behind it, to diverge exactly at the cut; then the
rendered text around the cut is the content verbatim, and its bytes are counted from there.
Contents of assistants get no claims inside: templates look for reasoning in them. Probes that the
template refuses say nothing, since a request of that shape is refused as well; where none with a
later question is accepted, nothing is claimed. Requests without any user message are left out of
consideration, since Gemma's template then drops the system prompt. A template that depends on later
messages in a way no probe shows can make a claim wrong too; then a router predicts a hit that is
none, and learns better from the usage. A template that writes the date is right until midnight.
For completions the rendered text is the prompt itself and no probe is needed.

**Tokens.** Text behind the boundary can merge with text before it. A claim therefore ends at a
token boundary that later text cannot move: beside a special token (they split text first), or
between a non-space and the space behind it, both within the text, provided that no token of the
vocabulary has that byte before a space inside (then no merge can cross). Then it is floored to
full KV blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from kvasir.wire.prompt_report.token_cuts import TokenCuts
from kvasir.wire.text_chain import BLOCK_ENDS, content_start

MAX_PROBED_MESSAGES = 8
"""Maximum messages probed, of those not reported yet; those between get no claims of their own."""

Messages = Sequence[Mapping[str, Any]]
Render = Callable[[Messages], str]
"""The prompt's text for other messages with the same tools, flags and template arguments; raises
ValueError when the template refuses them."""

_QUESTION = {"role": "user", "content": "\u29d6 next"}
_ANSWER = {"role": "assistant", "content": "\u29d6 reply"}
_TAILS: tuple[list[dict[str, str]], ...] = ([_QUESTION], [_ANSWER, _QUESTION])
_OTHER_TEXT = "\u29d7 other </think> text"


@dataclass(frozen=True, slots=True)
class Anchor:
    """Canonical text up to byte `text_end` determines the rendered text up to `rendered_end`.

    Between `text_start` and `text_end` both are the same bytes; usually the range is empty.
    """

    text_start: int
    text_end: int
    rendered_end: int

    def rendered_before(self, position: int) -> int:
        """Return how many bytes of rendered text canonical text up to `position` fixes, by this
        anchor."""
        if position < self.text_start:
            return 0
        return self.rendered_end - max(0, self.text_end - position)


def completion_anchors(pieces: Sequence[bytes]) -> list[Anchor]:
    """Anchors of a completion: the prompt is its own rendering."""
    first, prompt = pieces
    end = len(first) + len(prompt)
    return [Anchor(len(first), end, len(prompt))]


def chat_anchors(
    pieces: Sequence[bytes], messages: Messages, rendered: bytes, render: Render, *, known: int
) -> list[Anchor]:
    """Anchors of a chat, of messages that end behind byte `known` of the canonical text."""
    ends = list(accumulate(map(len, pieces)))
    new = [at for at in range(len(messages)) if ends[at + 1] > known]
    probed = new if len(new) <= MAX_PROBED_MESSAGES else [new[0], *new[1 - MAX_PROBED_MESSAGES :]]
    anchors: list[Anchor] = []
    for at in probed:
        stable = _stable_end(messages[: at + 1], rendered, render)
        if stable is None:
            continue
        inside = _content_anchor(
            messages[: at + 1], pieces[at + 1], ends[at], stable, rendered, render
        )
        if inside is not None:
            anchors.append(inside)
        anchors.append(Anchor(ends[at + 1], ends[at + 1], stable))
    return anchors


def kv_blocks(
    anchors: Sequence[Anchor],
    text_blocks: range,
    cuts: TokenCuts,
    block_size: int,
    *,
    claimed_before: int = 0,
) -> list[int]:
    """Return, for each text block of the range, how many leading KV blocks the text up to its end
    determines: at least `claimed_before`, which the text before the range does."""
    counts: list[int] = []
    last_end, last_count = 0, claimed_before
    for block in text_blocks:
        position = BLOCK_ENDS[block + 1]
        end = max((anchor.rendered_before(position) for anchor in anchors), default=0)
        if end > last_end:
            last_end, last_count = end, max(last_count, cuts.tokens_within(end) // block_size)
        counts.append(last_count)
    return counts


def _stable_end(messages: Messages, rendered: bytes, render: Render) -> int | None:
    """Return the bytes of `rendered` that stay the same whatever follows `messages`; None if
    unknown."""
    followed = [
        end
        for tail in _TAILS
        if (end := _common_with([*messages, *tail], rendered, render)) is not None
    ]
    if not followed:
        return None
    alone = _common_with(messages, rendered, render) if _has_question(messages) else None
    return min(followed if alone is None else [alone, *followed])


def _content_anchor(
    messages: Messages, piece: bytes, piece_start: int, stable: int, rendered: bytes, render: Render
) -> Anchor | None:
    """The verbatim range of the last message's content, if it has one."""
    last = messages[-1]
    content = last.get("content")
    if not isinstance(content, str) or last.get("role") == "assistant":
        return None
    text = content.rstrip()
    leading = len(content) - len(content.lstrip())
    half = (leading + len(text)) // 2
    if len(text) - leading < 2:
        return None
    cut = {**last, "content": content[:half] + _OTHER_TEXT}
    tail = [] if _has_question(messages) else [_QUESTION]
    diverges = _common_with([*messages[:-1], cut, *tail], rendered, render)
    if diverges is None:
        return None
    before, after = content[leading:half].encode(), text[half:].encode()
    begin = diverges - len(before)
    if not 0 <= begin <= stable or rendered[begin : diverges + len(after)] != before + after:
        return None
    start = piece_start + content_start(piece, content) + len(content[:leading].encode())
    length = min(len(before) + len(after), stable - begin)
    return Anchor(start, start + length, begin + length)


def _has_question(messages: Messages) -> bool:
    return any(message.get("role") == "user" for message in messages)


def _common_with(messages: Messages, rendered: bytes, render: Render) -> int | None:
    """Length of the common prefix with these messages rendered, None when they are refused."""
    try:
        probe = render(messages).encode("utf-8", "surrogatepass")
    except ValueError:
        return None
    return common_prefix(rendered, probe)


def common_prefix(one: bytes, other: bytes) -> int:
    """Length of the longest common prefix, by bisection over compared slices."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
