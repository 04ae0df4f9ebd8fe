"""A caller with the fleet secret, and what an openai client sees of the streams it joins."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import openai
from openai.lib.streaming.chat import ChatCompletionStreamState

SECRET = "fleet-secret-of-the-tests"


DONE = "[DONE]"


CHAT = "/v1/chat/completions"


@dataclass(frozen=True)
class Event:
    """One server-sent event as it came."""

    raw: bytes
    comment: dict[str, Any]
    name: str | None
    data: Any

    @property
    def choices(self) -> list[dict[str, Any]]:
        return [] if self.data == DONE else self.data["choices"]

    @classmethod
    def parse(cls, raw: bytes) -> Event:
        first, *lines = raw.decode().split("\n")
        assert first.startswith(": kvasir "), raw
        fields = dict(line.split(": ", 1) for line in lines)
        data = fields["data"]
        return cls(
            raw + b"\n\n",
            json.loads(first.removeprefix(": kvasir ")),
            fields.get("event"),
            data if data == DONE else json.loads(data),
        )


class FleetCaller:
    """Open streams as a router does, break them, and ask another engine to go on."""

    def __init__(self) -> None:
        # Without certificates, whose loading takes longer than a test.
        self.http = httpx.AsyncClient(
            timeout=60, trust_env=False, verify=False, headers={"x-kvasir-fleet-secret": SECRET}
        )

    async def events(
        self, engine: Any, path: str, body: dict[str, Any], count: int | None = None
    ) -> list[Event]:
        """The whole events that arrive until the end, or the first `count`, then hang up."""
        return [event async for event in self.stream(engine, path, body, count)]

    async def stream(
        self, engine: Any, path: str, body: dict[str, Any], count: int | None = None
    ) -> AsyncIterator[Event]:
        """`events` one by one. An engine that dies ends it, as its end does."""
        request = self.http.stream("POST", engine.url + path, json={**body, "stream": True})
        seen, rest = 0, b""
        try:
            async with request as answer:
                assert answer.status_code == 200, await answer.aread()
                async for chunk in answer.aiter_raw():
                    *blocks, rest = (rest + chunk).split(b"\n\n")
                    for block in blocks:
                        yield Event.parse(block)
                        seen += 1
                        if seen == count:
                            return
        except httpx.TransportError:
            return

    async def resumed(
        self, engine: Any, path: str, body: dict[str, Any], received: Sequence[Event]
    ) -> list[Event]:
        """`received` and what `engine` adds to it: one request a choice that still ran."""
        indices = range(body.get("n") or 1)
        ended = {c["index"] for e in received for c in e.choices if c["finish_reason"]}
        going_on = [index for index in indices if index not in ended] or [0]
        joined = list(received)
        for index in going_on:
            fields = self.resume_fields(received, index)
            rest = await self.events(engine, path, {**body, "resume": fields})
            # Only the last answer's usage and [DONE] end the joined stream.
            joined += [e for e in rest if e.choices or index == going_on[-1]]
        return joined

    @staticmethod
    def resume_fields(events: Sequence[Event], index: int) -> dict[str, Any]:
        """What is known of choice `index` after `events`, as the router contract asks for it."""
        mine = [event for event in events if event.comment.get("i") == index]
        first = next(event for event in events if "s" in event.comment)
        choices = [choice for event in mine for choice in event.choices]
        texts = [c["text"] if "text" in c else c["delta"].get("content", "") for c in choices]
        return {
            "output_token_ids": [token for event in mine for token in event.comment["t"]],
            "seed": first.comment["s"],
            "cached_tokens": first.comment["c"],
            "sample_index": index,
            "opened": bool(mine),
            "finished": any(choice["finish_reason"] for choice in choices),
            "sent_chars": len("".join(texts)),
            "id": first.data["id"],
            "created": first.data["created"],
        }


class ClientView:
    """Read a stream's bytes with the openai client and merge its chunks."""

    def __init__(self) -> None:
        self._raw = b""
        transport = httpx.MockTransport(self._answer)
        self._http = httpx.Client(transport=transport)
        self._client = openai.OpenAI(api_key="x", base_url="http://x/v1", http_client=self._http)

    def _answer(self, _request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=self._raw)

    def close(self) -> None:
        self._client.close()

    def __call__(self, path: str, events: Sequence[Event]) -> dict[str, Any]:
        """The merged answer, without its id and creation time, which all chunks must share."""
        assert [event.data for event in events].count(DONE) == 1
        assert events[-1].data == DONE
        ends = [c["index"] for event in events for c in event.choices if c["finish_reason"]]
        assert len(ends) == len(set(ends)), "a choice ended twice"
        self._raw = b"".join(event.raw for event in events)
        chunks = self._chat_chunks() if path == CHAT else self._completion_chunks()
        assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
        merged = merge_chat(chunks) if path == CHAT else merge_completion(chunks)
        for chunk in chunks:
            for choice in chunk.choices:
                into = merged["choices"][choice.index]
                extra = choice.model_extra or {}
                into["token_ids"] = into.get("token_ids", []) + (extra.get("token_ids") or [])
                into["stop_reason"] = extra.get("stop_reason") or into.get("stop_reason")
        return merged

    def _chat_chunks(self) -> list[Any]:
        return list(self._client.chat.completions.create(model="x", messages=[], stream=True))

    def _completion_chunks(self) -> list[Any]:
        return list(self._client.completions.create(model="x", prompt="x", stream=True))


def merge_chat(chunks: Sequence[Any]) -> dict[str, Any]:
    """As the openai client's own `chat.completions.stream()` merges."""
    state = ChatCompletionStreamState()
    for chunk in chunks:
        state.handle_chunk(chunk)
    merged = state.current_completion_snapshot.to_dict(exclude_none=True)
    return {"choices": merged["choices"], "usage": merged.get("usage")}


def merge_completion(chunks: Sequence[Any]) -> dict[str, Any]:
    """The client has no helper for completions: text and lists add up, the rest is replaced."""
    choices: dict[int, dict[str, Any]] = {}
    usage = None
    for chunk in chunks:
        usage = chunk.usage.to_dict() if chunk.usage else usage
        for choice in chunk.choices:
            into = choices.setdefault(choice.index, {"text": "", "finish_reason": None})
            into["text"] += choice.text
            into["finish_reason"] = choice.finish_reason or into["finish_reason"]
            for name, values in (choice.logprobs.to_dict() if choice.logprobs else {}).items():
                into[name] = into.get(name, []) + values
    return {"choices": [choices[index] for index in sorted(choices)], "usage": usage}
