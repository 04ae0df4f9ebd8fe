"""Client of one request over a kept connection: any answer but the right one is a failure."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable

import aiohttp

from harness.traffic.outcomes import Kind, Outcome
from harness.traffic.plan import Question

MAX_SHOWN = 300


class AnswerError(Exception):
    """An answer that is not the right one; the message says how."""


class Client:
    """Ask questions of one model. No request is ever sent twice."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        model: str,
        key: str | None,
        timeout: float,
        silence: Callable[[float], None],
    ) -> None:
        """`silence` hears of the seconds before each line of a stream, as it comes."""
        self._session = session
        self._model = model
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._timeout = timeout
        self._silence = silence

    async def ask(self, endpoint: str, question: Question, kind: Kind, expected: str) -> Outcome:
        """Ask and compare; never raises but for being cancelled."""
        started = time.monotonic()
        failure = None
        try:
            async with asyncio.timeout(self._timeout):
                text = await self._answer(endpoint, question, stream=kind == "stream")
            if text != expected:
                failure = f"wrong text: {difference(text, expected)}"
        except AnswerError as error:
            failure = str(error)
        except TimeoutError:
            failure = f"no end within {self._timeout:.0f} s"
        except (aiohttp.ClientError, OSError, ValueError, LookupError) as error:
            failure = f"{type(error).__name__}: {error}"[:MAX_SHOWN]
        return Outcome(kind, endpoint, started, time.monotonic(), failure)

    async def _answer(self, endpoint: str, question: Question, *, stream: bool) -> str:
        body = question.body(self._model, stream=stream)
        url = f"{endpoint}/v1/chat/completions"
        async with self._session.post(url, json=body, headers=self._headers) as response:
            if response.status != 200:
                said = (await response.text())[:MAX_SHOWN]
                raise AnswerError(f"status {response.status}: {said}")
            if stream:
                return await _stream_text(response, self._silence)
            answer = await response.json()
            return str(answer["choices"][0]["message"]["content"])


async def _stream_text(response: aiohttp.ClientResponse, silence: Callable[[float], None]) -> str:
    """The text of an event stream that ends with [DONE]."""
    pieces: list[str] = []
    last, done = time.monotonic(), False
    async for line in response.content:
        now = time.monotonic()
        silence(now - last)
        last = now
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if done:
            raise AnswerError("an event after [DONE]")
        if data == b"[DONE]":
            done = True
            continue
        event = json.loads(data)
        if "error" in event:
            raise AnswerError(f"error event: {json.dumps(event['error'])[:MAX_SHOWN]}")
        pieces += [choice["delta"].get("content") or "" for choice in event["choices"]]
    if not done:
        raise AnswerError(f"no [DONE] after {len(pieces)} events")
    return "".join(pieces)


def difference(text: str, expected: str) -> str:
    """Say where two texts part."""
    same = next(
        (i for i, (a, b) in enumerate(zip(text, expected, strict=False)) if a != b),
        min(len(text), len(expected)),
    )
    return (
        f"{len(text)} characters instead of {len(expected)}, different from {same}:"
        f" {text[same : same + 40]!r}, not {expected[same : same + 40]!r}"
    )
