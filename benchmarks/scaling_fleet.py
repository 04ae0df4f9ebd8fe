"""A fleet of up to 1,000 replicas as a fluid, second by second, for days of load in seconds.

Streams are spread evenly over the replicas that are ready; a step takes what the engine's own
speed profile says for so many streams and prompt tokens. Requests that do not fit wait in one line,
in the order of their arrival, and their time to first token is followed exactly. Lengths of answers
are exponential; the time between a stream's tokens counts as it is when it begins. Left out are the
differences between replicas and hits of the prefix cache.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from kvasir_engine.sim.latency_model import BLOCK_TOKENS, SpeedProfile
from kvasir_operator.scaling.load import WINDOW_SECONDS, Load

MAX_STREAMS = 256
"""Streams that a replica runs at once."""
STEP_TOKENS = 8192
"""Tokens of one step."""


class Slo(NamedTuple):
    """Targets of one request, in seconds."""

    ttft: float = 2.0
    itl: float = 0.03


class Second(NamedTuple):
    """Load of one second."""

    requests: float
    prompt: float
    """Prompt tokens of each, the mean."""


class Scaler(Protocol):
    """Controller that is asked every `every` seconds."""

    every: int

    def decide(self, now: float, wanted: int, ready: int, load: Load) -> int:
        """Return the replicas that there shall be."""


@dataclass
class Outcome:
    """Result of one day."""

    gpu_seconds: float = 0.0
    requests: float = 0.0
    late: float = 0.0
    """Requests whose first token was late."""
    slow: float = 0.0
    """Requests whose tokens came too slowly."""
    missed: float = 0.0
    """Requests that missed either target."""
    most: int = 0
    """Replicas at once."""
    replicas: list[int] = field(default_factory=list)
    """Ready replicas each minute."""

    @property
    def gpu_hours(self) -> float:
        return self.gpu_seconds / 3600

    @property
    def attained(self) -> float:
        """Share of requests that met both targets."""
        return 1 - self.missed / self.requests


class Fleet:
    """Replicas that start, serve and drain."""

    def __init__(
        self,
        profile: SpeedProfile,
        replicas: int,
        *,
        output: float,
        cold_start: float,
        seed: int,
        slo: Slo,
    ) -> None:
        """`output`: tokens of an answer, the mean; `cold_start`: seconds, the median."""
        self._profile = profile
        self._output = output
        self._cold_start = cold_start
        self._random = random.Random(seed)
        self._slo = slo
        self.ready = replicas
        self._starting: list[float] = []
        """Times at which replicas will be ready, sorted."""
        self._draining: list[float] = []
        """Times until which replicas drain."""
        self._streams = 0.0
        self._line: deque[tuple[int, float]] = deque()
        """Requests that wait, by the second of their arrival."""
        self._waiting = 0.0
        self._prompt = 1000.0
        self._step = 0.01
        self._firsts: deque[tuple[int, float, float]] = deque()
        """First tokens of the last minute: when, seconds, how many."""
        self._ended: deque[float] = deque(maxlen=int(WINDOW_SECONDS))
        self._steps: deque[float] = deque(maxlen=int(WINDOW_SECONDS))
        self.outcome = Outcome()

    @property
    def wanted(self) -> int:
        return self.ready + len(self._starting)

    def scale(self, now: int, wanted: int) -> None:
        """Start replicas, or take away first those that start, then some that drain."""
        for _ in range(wanted - self.wanted):
            spread = math.exp(self._random.gauss(0.0, 0.15))
            self._starting.append(now + self._cold_start * spread)
        self._starting.sort()
        fewer = self.wanted - wanted
        while fewer > 0 and self._starting:
            self._starting.pop()
            fewer -= 1
        if fewer <= 0:
            return
        each = self._streams / self.ready
        # The last of n answers whose lengths are exponential: the mean times the n-th harmonic
        last = self._output * self._step * (math.log(each + 1) + 0.58)
        self._draining += [now + last] * fewer
        self.ready -= fewer
        self._streams -= each * fewer

    def second(self, now: int, coming: Second) -> None:
        """Let one second pass."""
        while self._starting and self._starting[0] <= now:
            self._starting.pop(0)
            self.ready += 1
        if self._draining:
            self._draining = [until for until in self._draining if until > now]
        self._prompt += 0.05 * (coming.prompt - self._prompt)
        if coming.requests:
            self._line.append((now, coming.requests))
            self._waiting += coming.requests
        begun = self._admit(now)
        ended = min(self._streams, self._streams / (self._output * self._step))
        self._streams += begun - ended
        self._ended.append(ended)
        self._steps.append(self._step)
        outcome = self.outcome
        outcome.gpu_seconds += self.wanted + len(self._draining)
        outcome.most = max(outcome.most, self.wanted)
        if now % 60 == 0:
            outcome.replicas.append(self.ready)

    def _admit(self, now: int) -> float:
        """Begin what fits, and count what missed its targets; return how many began."""
        room = self._room()
        ready = max(self.ready, 1)
        begun = min(self._waiting, room)
        self._step = self._step_seconds(self._streams / ready, begun * self._prompt / ready)
        slow = self._step > self._slo.itl
        # A prompt is computed beside others, in steps of what fits into one
        steps = max(1.0, self._prompt / STEP_TOKENS)
        own = self._step * steps + self._prompt * _PREFILL_SHARE / STEP_TOKENS
        left = begun
        while left > 1e-9 and self._line:
            came, count = self._line[0]
            taken = min(count, left)
            left -= taken
            ttft = now - came + own
            self._firsts.append((now, ttft, taken))
            late = ttft > self._slo.ttft
            self.outcome.late += taken * late
            self.outcome.slow += taken * slow
            self.outcome.missed += taken * (late or slow)
            self.outcome.requests += taken
            if taken >= count - 1e-9:
                self._line.popleft()
            else:
                self._line[0] = came, count - taken
        self._waiting = max(0.0, self._waiting - begun)
        while self._firsts and self._firsts[0][0] <= now - WINDOW_SECONDS:
            self._firsts.popleft()
        return begun

    def _room(self) -> float:
        """Requests that can begin in a second: rows, KV blocks, and the time for prompts."""
        if not self.ready:
            return 0.0
        tokens = self._profile.num_kv_blocks * BLOCK_TOKENS
        rows = min(MAX_STREAMS, tokens / (self._prompt + self._output))
        each = self._streams / self.ready
        free = max(0.0, rows - each + each / (self._output * self._step))
        enough = self.ready * min(free, STEP_TOKENS / self._prompt / 2)
        if self._waiting <= enough:  # a whole step takes much less than a second
            return enough
        budget = STEP_TOKENS - each
        full = self._profile.step_ms(STEP_TOKENS, each * self._context, budget * self._prompt / 2)
        return self.ready * min(free, budget / full * 1e3 / self._prompt)

    @property
    def _context(self) -> float:
        return self._prompt + self._output / 2

    def _step_seconds(self, streams: float, prompt_tokens: float) -> float:
        """Seconds of a step that decodes `streams` and takes its part of `prompt_tokens` a
        second: a fixed point, since a longer step takes more."""
        step = self._step
        for _ in range(2):
            chunk = min(prompt_tokens * step, STEP_TOKENS - streams)
            pairs = chunk * self._prompt / 2
            tokens = max(1, int(streams + chunk))
            step = self._profile.step_ms(tokens, streams * self._context, pairs) / 1e3
        return step

    def load(self) -> Load:
        """Return what the routers would tell."""
        running = self._streams
        return Load(
            concurrency=running + self._waiting,
            queue=self._waiting,
            in_flight_tokens=self._waiting * self._prompt,
            kv_usage=min(
                1.0,
                running
                / max(self.ready, 1)
                * self._context
                / (self._profile.num_kv_blocks * BLOCK_TOKENS),
            ),
            requests=sum(self._ended),
            ttft=_percentile([(ttft, count) for _, ttft, count in self._firsts]),
            itl=_percentile([(step, 1.0) for step in self._steps]),
        )


_PREFILL_SHARE = 0.2
"""Seconds that a whole step of prompt tokens takes: 8,192 of them at about 41,000 a second."""


def _percentile(weighted: list[tuple[float, float]]) -> float | None:
    """Return the 90th percentile."""
    weighted.sort()
    left = 0.9 * sum(weight for _, weight in weighted)
    for value, weight in weighted:
        left -= weight
        if left <= 0:
            return value
    return weighted[-1][0] if weighted else None


def play(fleet: Fleet, trace: Sequence[Second], scaler: Scaler) -> Outcome:
    """Let a day pass."""
    for now, coming in enumerate(trace):
        fleet.second(now, coming)
        if now % scaler.every == 0:
            wanted = scaler.decide(float(now), fleet.wanted, fleet.ready, fleet.load())
            if wanted != fleet.wanted:
                fleet.scale(now, wanted)
    # What still waits is late
    fleet.outcome.requests += fleet.load().queue
    fleet.outcome.missed += fleet.load().queue
    return fleet.outcome
