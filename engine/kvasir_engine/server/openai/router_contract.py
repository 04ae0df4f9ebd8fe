"""Additions to each answer for a router that proves itself with the fleet secret.

Streams. Every SSE event is preceded, in the same chunk, by one comment line

    : kvasir {"i":0,"t":[17,4],"s":81,"c":32,"u":{...}}

`i` is the choice the event is about and `t` the ids of the tokens that this event accounts for:
all tokens of the choice since its last event. `s`, the effective seed of the request, and `c`, the
prompt tokens found in the cache, are in the first comment of each choice; `u`, the usage, is in
the last comment of the stream (before [DONE] or in a handover). Events about no choice (usage,
[DONE]) have no `i` and no `t`.

Why this is enough to go on from any event. What an engine does with a sample (which text is
certain, which is held back because it may become a stop string or is half a character, penalties,
limits, stops, random numbers) is a function of the body, the seed, and the sample's ids so far. An
event's ids are all ids that the engine had taken when it wrote the event, also those whose text it
holds back, so the joined `t` of the received events is exactly that state: an engine that is given
them replays them through the same detokeniser and stop strings and stands where this one stood. Its
text continues the client's, because text becomes certain in one order only; the caller says how
many characters the client has (`sent_chars`) and these are skipped. Where the text is taken apart
into reasoning, content and tool calls, the parser reads it all again, and the pieces that the
client has are skipped: they, too, come in one order only. So `sent_chars` counts the characters of
`content`, of `reasoning_content` (`reasoning` repeats it) and of arguments, and one for each call's
name. A call's id is made of the answer's id, so it stays. Log-probabilities travel in the event of
their ids, so none is repeated or missing. Ids without an event are not lost: they are sampled
again, with the same result. If the ids turn out to be the whole sample, the new answer is its end:
finish reason, usage and [DONE]. A caller whose client has the choice's finish reason already (the
break came behind that event) says so by `finished`; then the new answer is what comes behind it
alone: the usage, if the body asked for it, and [DONE].

To resume, the caller sends the original body with

    "resume": {"output_token_ids": [...], "seed": 81, "sample_index": 0, "sent_chars": 12,
               "opened": true, "finished": false, "cached_tokens": 32,
               "id": "...", "created": 1700000000}

The answer has that id and creation time, no second role (unless `opened` is false: the client has
no event of the choice yet), and the one choice `sample_index` (a body with several choices is
resumed one request a choice); usage counts the whole sample, `cached_tokens` as given.

A response (/v1/responses) repeats its text at its end, so all of it is made again. Its events that
add no text come in one order, too; the caller says how many of these the client has (`sent_steps`),
and how many events in all (`sent_events`), from which the numbers go on. Its last event says how it
ended, so it is never `finished` before. Several of its events may follow one comment.

A message (/v1/messages) is made again, too, and its events are told apart by the same two numbers:
`sent_chars` counts the characters of texts, of thinking and of arguments, and `sent_steps` every
other event, `ping` too. It has no creation time, and is `finished` only with its message_stop.

Unary answers carry `x-kvasir-usage` and `x-kvasir-seed` headers.

Handover. At the drain deadline a stream ends with

    event: handover
    data: {"choices":[{"i":0,"t":[...],"finish_reason":null}],"seed":81,"usage":{...}}

written between two events, so `t`, all output ids of the choice, equals what the comments gave. A
unary request ends as a 503 whose error object has the same under `handover`. Callers without the
secret get an error event, or the plain 503.
"""

from __future__ import annotations

from typing import Any

import msgspec

from kvasir_engine.server.generation.generation import Generation
from kvasir_engine.server.generation.run import PromptRun

_encode = msgspec.json.encode


def comment(choice: int, token_ids: list[int]) -> bytes:
    """The line before an event about `choice`."""
    return b': kvasir {"i":%d,"t":%s}\n' % (choice, _encode(token_ids))


def first_comment(choice: int, token_ids: list[int], run: PromptRun) -> bytes:
    """The line before the first event about `choice`."""
    made = {"i": choice, "t": token_ids, "s": _seed_of(run), "c": run.num_cached_tokens}
    return b": kvasir %s\n" % _encode(made)


def bare_comment(usage: dict[str, Any] | None = None) -> bytes:
    """The line before an event about no choice; `usage` in the last one."""
    return b": kvasir %s\n" % _encode({} if usage is None else {"u": usage})


def handover_state(generation: Generation, usage: dict[str, Any]) -> dict[str, Any]:
    """Return the state of every choice, the seed and the usage."""
    choices = [
        {
            "i": run.first_choice + sample.index,
            "t": sample.token_ids,
            "finish_reason": sample.finish_reason,
        }
        for run in generation.runs
        for sample in run.assembler.samples
    ]
    return {"choices": choices, "seed": effective_seed(generation), "usage": usage}


def handover_event(generation: Generation, usage: dict[str, Any]) -> bytes:
    """The last event of a stream that is to be resumed elsewhere."""
    state = _encode(handover_state(generation, usage))
    return bare_comment(usage) + b"event: handover\ndata: %s\n\n" % state


def unary_headers(generation: Generation, usage: dict[str, Any]) -> dict[str, str]:
    """Headers of a unary answer."""
    headers = {"x-kvasir-usage": _encode(usage).decode()}
    seed = effective_seed(generation)
    if seed is not None:
        headers["x-kvasir-seed"] = str(seed)
    return headers


def effective_seed(generation: Generation) -> int | None:
    """The seed the first run samples with, once known."""
    return _seed_of(generation.runs[0])


def _seed_of(run: PromptRun) -> int | None:
    if run.assembler.seed is None and run.request.resume is not None:
        return run.request.resume.seed
    return run.assembler.seed
