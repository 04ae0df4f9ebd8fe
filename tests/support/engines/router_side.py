"""The router's side of the engine contract: what it asks, and how it reads the answer."""

from __future__ import annotations

import json
from typing import Any


class RouterSide:
    """The router's side of the engine contract: what it asks, and how it reads the answer."""

    SECRET = {"x-kvasir-fleet-secret": "fleet"}

    @staticmethod
    async def stream_events(server: Any, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """Each event with its comment: {"comment": ..., "data": ..., "event": ...}."""
        answer = await server.post(path, {**body, "stream": True}, headers=RouterSide.SECRET)
        assert answer.status_code == 200, answer.text
        return RouterSide.parse(answer.text)

    @staticmethod
    def parse(text: str) -> list[dict[str, Any]]:
        events = []
        for block in text.split("\n\n")[:-1]:
            lines = block.split("\n")
            assert lines[0].startswith(": kvasir "), block
            event = {"comment": json.loads(lines[0].removeprefix(": kvasir ")), "event": None}
            for line in lines[1:]:
                name, value = line.split(": ", 1)
                event[name] = value if name == "event" or value == "[DONE]" else json.loads(value)
            events.append(event)
        return events

    @staticmethod
    def merge(events: list[dict[str, Any]]) -> dict[str, Any]:
        """The answer as the openai client accumulates it from data lines."""
        merged: dict[str, Any] = {"choices": {}}
        for event in events:
            data = event["data"]
            if data == "[DONE]":
                merged["done"] = True
                continue
            assert "error" not in data, data
            for name in ("id", "created", "model", "usage"):
                merged[name] = data.get(name) or merged.get(name)
            for choice in data["choices"]:
                RouterSide._merge_choice(merged["choices"].setdefault(choice["index"], {}), choice)
        return merged

    @staticmethod
    def _merge_choice(into: dict[str, Any], choice: dict[str, Any]) -> None:
        delta = choice.get("delta", choice)
        into["roles"] = into.get("roles", 0) + ("role" in delta)
        into["text"] = into.get("text", "") + (delta.get("content") or delta.get("text") or "")
        into["reasoning"] = into.get("reasoning", "") + (delta.get("reasoning_content") or "")
        RouterSide._merge_calls(into.setdefault("calls", {}), delta.get("tool_calls") or [])
        for name, values in (choice.get("logprobs") or {}).items():
            into[name] = (into.get(name) or []) + (values or [])
        into["ids"] = into.get("ids", []) + (choice.get("token_ids") or [])
        into["prompt_ids"] = into.get("prompt_ids", []) + (choice.get("prompt_token_ids") or [])
        into["ends"] = into.get("ends", 0) + (choice.get("finish_reason") is not None)
        for name in ("finish_reason", "stop_reason"):
            into[name] = choice.get(name) or into.get(name)

    @staticmethod
    def _merge_calls(into: dict[int, dict[str, Any]], calls: list[dict[str, Any]]) -> None:
        for call in calls:
            known = into.setdefault(call["index"], {"arguments": ""})
            known["arguments"] += call["function"].get("arguments", "")
            if "name" in call["function"]:
                assert "name" not in known, "a call begins once"
                known |= {"id": call["id"], "name": call["function"]["name"]}

    @staticmethod
    def _sent(choice: dict[str, Any]) -> int:
        """What the client has of a choice, in the contract's units."""
        calls = choice.get("calls", {}).values()
        texts = [choice.get("text", ""), choice.get("reasoning", "")]
        texts += [call["arguments"] for call in calls]
        return sum(map(len, texts)) + len(calls)

    @staticmethod
    def resume_fields(events: list[dict[str, Any]], index: int) -> dict[str, Any]:
        """What a router knows of choice `index` after `events`."""
        comments = [event["comment"] for event in events if event["comment"].get("i") == index]
        merged = RouterSide.merge(events)
        choice = merged["choices"].get(index, {})
        return {
            "output_token_ids": [token for comment in comments for token in comment["t"]],
            "seed": next(e["comment"]["s"] for e in events if "s" in e["comment"]),
            "cached_tokens": next(e["comment"]["c"] for e in events if "c" in e["comment"]),
            "opened": bool(comments),
            "sample_index": index,
            "finished": bool(choice.get("finish_reason")),
            "sent_chars": RouterSide._sent(choice),
            "id": merged["id"],
            "created": merged["created"],
        }
