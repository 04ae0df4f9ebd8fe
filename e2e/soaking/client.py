"""Client of one request that follows the rule for retries: everything else is lost."""

from __future__ import annotations

import asyncio
import json
import random
import time
from dataclasses import dataclass

import aiohttp
from soaking.questions import Answer, Collected, Question, answer_of

from harness.traffic.client import difference

REROUTE_SECONDS = 30.0
"""After a router was killed: so long the cluster may still lead connections to it."""
RETRY_SECONDS = 0.5
DEADLINE = 180.0
"""Seconds after which a request that has not ended is lost."""
_MAX_SHOWN = 300


class WrongAnswerError(Exception):
    """An answer that is not the right one; the message says how."""


class BrokenAnswerError(Exception):
    """The end of the connection before that of the answer."""


@dataclass(frozen=True)
class Outcome:
    """Outcome of one request; times are time.monotonic() seconds."""

    kind: str
    model: str
    started: float
    ended: float
    retries: int
    """Times that it was sent again because its router had been killed."""
    left: bool
    """The client left in the middle, as it had planned."""
    failure: str | None
    """Reason why it is lost; None = it was answered."""


_BROKEN = (
    *(BrokenAnswerError, aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, OSError),
)
"""Errors of connections; one of the protocol's form is none."""


class RouterKills:
    """The moments at which routers were killed. Nothing else explains a broken connection: a router
    that is stopped in order finishes its answers, and engines that die are the routers' business.
    """

    def __init__(self) -> None:
        self._moments: list[float] = []

    def note(self, moment: float) -> None:
        """A router is killed now."""
        self._moments.append(moment)

    def explain(self, moment: float) -> bool:
        """Return True if a connection that broke then may be its router's."""
        return any(0 <= moment - killed <= REROUTE_SECONDS for killed in self._moments)


class Client:
    """Ask and compare. A request is sent again if its connection broke, or could not be made, while
    a router had just been killed; any status but 200, error event, wrong or missing part is a loss.
    """

    def __init__(self, session: aiohttp.ClientSession, kills: RouterKills, seed: int) -> None:
        self._session = session
        self._kills = kills
        self._random = random.Random(seed)

    async def ask(
        self,
        endpoint: str,
        question: Question,
        expected: Answer,
        *,
        model: str,
        key: str,
        leave_after: int | None = None,
    ) -> Outcome:
        """Ask and compare; never raises but for being cancelled. With `leave_after` the client goes
        away after so many events of a stream."""
        started = time.monotonic()
        body = question.body(model, self._random)
        retries, failure = 0, None
        try:
            async with asyncio.timeout(DEADLINE):
                while True:
                    try:
                        await self._once(
                            endpoint, question, expected, body=body, key=key, leave=leave_after
                        )
                        break
                    except _BROKEN as error:
                        if isinstance(error, TimeoutError) and not _of_connecting(error):
                            raise
                        if not self._kills.explain(time.monotonic()):
                            raise
                    retries += 1
                    await asyncio.sleep(RETRY_SECONDS)
        except WrongAnswerError as error:
            failure = str(error)
        except TimeoutError:
            failure = f"no end within {DEADLINE:.0f} s"
        except (BrokenAnswerError, aiohttp.ClientError, OSError) as error:
            failure = f"{type(error).__name__}: {error}"[:_MAX_SHOWN]
        except (ValueError, LookupError, TypeError) as error:
            failure = f"no answer in the protocol's form: {error!r}"[:_MAX_SHOWN]
        left = leave_after is not None and failure is None
        return Outcome(question.kind, model, started, time.monotonic(), retries, left, failure)

    async def _once(
        self,
        endpoint: str,
        question: Question,
        expected: Answer,
        *,
        body: dict[str, object],
        key: str,
        leave: int | None,
    ) -> None:
        headers = {"Authorization": f"Bearer {key}"}
        if self._random.random() < 0.1:
            # Kept connections would all end up at the router that is never killed
            headers["Connection"] = "close"
        url = endpoint + question.path
        async with self._session.post(url, json=body, headers=headers) as response:
            if response.status != 200:
                said = (await response.text())[:_MAX_SHOWN]
                raise WrongAnswerError(f"status {response.status}: {said}")
            if not question.stream:
                compare(answer_of(await response.json()), expected)
                return
            collected, is_whole = await _stream(response, leave)
            if is_whole:
                compare(collected.answer(), expected)
            else:
                compare_beginning(collected, expected)
                response.close()


async def _stream(response: aiohttp.ClientResponse, leave: int | None) -> tuple[Collected, bool]:
    """The parts of an event stream, and if it is whole: if [DONE] came before the client left."""
    collected, events, done = Collected(), 0, False
    async for line in response.content:
        if not line.startswith(b"data:"):
            continue
        if done:
            raise WrongAnswerError("an event after [DONE]")
        data = line[5:].strip()
        done = data == b"[DONE]"
        if done:
            continue
        event = json.loads(data)
        if "error" in event:
            raise WrongAnswerError(f"error event: {json.dumps(event['error'])[:_MAX_SHOWN]}")
        collected.add(event)
        events += 1
        if events == leave:
            return collected, False
    if not done:
        raise BrokenAnswerError(f"no [DONE] after {events} events")
    return collected, True


def compare(found: Answer, expected: Answer) -> None:
    """Raise WrongAnswerError where an answer is another one."""
    if found != expected:
        for text, right in zip(found.texts, expected.texts, strict=False):
            if text != right:
                raise WrongAnswerError(f"wrong text: {difference(text, right)}")
        raise WrongAnswerError(
            f"ends {found.ends} and usage {found.usage} of {len(found.texts)} choices,"
            f" not {expected.ends} and {expected.usage} of {len(expected.texts)}"
        )


def compare_beginning(found: Collected, expected: Answer) -> None:
    """Raise WrongAnswerError where what came until the client left is no beginning of the
    answer."""
    for index, text in found.texts.items():
        if not expected.texts[index].startswith(text):
            raise WrongAnswerError(f"wrong beginning: {difference(text, expected.texts[index])}")


def _of_connecting(error: Exception) -> bool:
    return isinstance(error, aiohttp.ConnectionTimeoutError)
