"""Engines whose streams break, and what the client of such a stream gets."""

import json
from collections.abc import Callable
from typing import Any

PATH = "/v1/chat/completions"


def event(comment: dict[str, Any], data: Any) -> bytes:
    text = data if data == "[DONE]" else json.dumps(data, separators=(",", ":"))
    line = json.dumps(comment, separators=(",", ":"))
    return f": kvasir {line}\ndata: {text}\n\n".encode()


def chunk(**choice: Any) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "created": 17, "choices": [{"index": 0, **choice}]}


WORDS = ["über ", "den ", "Fluß ", "😀", " und", " weg"]
USAGE = {
    "prompt_tokens": 7,
    "completion_tokens": len(WORDS),
    "prompt_tokens_details": {"cached_tokens": 3},
}


def stream_of(body: dict[str, Any]) -> list[bytes]:
    """What a Kvasir engine answers to `body`: token n is word n."""
    resume = body.get("resume", {})
    done = len(resume.get("output_token_ids", []))
    head = {} if resume else {"c": 3}
    first = {"i": 0, "t": [], "s": 5, **head}
    events = []
    if not resume.get("opened"):
        events.append(event(first, chunk(delta={"role": "assistant", "content": ""})))
    for number in range(done, len(WORDS)):
        reason = "stop" if number == len(WORDS) - 1 else None
        comment = {"i": 0, "t": [number]}
        events.append(event(comment, chunk(delta={"content": WORDS[number]}, finish_reason=reason)))
    if done == len(WORDS) and not resume.get("finished"):
        events.append(event({"i": 0, "t": []}, chunk(delta={}, finish_reason="stop")))
    if body.get("stream_options"):
        events.append(event({}, {"id": "chatcmpl-1", "choices": [], "usage": USAGE}))
    return [*events, event({"u": USAGE}, "[DONE]")]


def engine(
    *,
    events: int | None = None,
    last: bytes = b"",
    after: Any = None,
    stream: Callable[[dict[str, Any]], list[bytes]] = stream_of,
) -> Any:
    """A script: the whole `stream`, or its first events, `last`, and `after` (default: death)."""

    async def answer(exchange: Any) -> None:
        made = stream(json.loads(exchange.request.body))
        await exchange.start_events()
        for each in made[:events]:
            await exchange.chunk(each)
        if last:
            await exchange.chunk(last)
        if events is None:
            await exchange.end()
        elif after is not None:
            await after(exchange)
        else:
            exchange.reset()

    return answer


def text_of(answer: str) -> str:
    """The words that an SSE client has."""
    datas = [
        line.removeprefix("data: ") for line in answer.split("\n") if line.startswith("data: ")
    ]
    chunks = [json.loads(data) for data in datas if data != "[DONE]"]
    assert [chunk for chunk in chunks if "error" in chunk] == []
    return "".join(
        choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"]
    )


def code_of(answer: str) -> str:
    """Of the error that ends a stream."""
    last = answer.strip().split("\n\n")[-1]
    code: str = json.loads(last.removeprefix("data: "))["error"]["code"]
    return code


BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
