"""The works of `router_benefit.py`: whose sessions arrive, and how often.

- capacity: llm-d's benchmark 73-capacity: 150 groups of 5 prompts, 6,000 tokens of system text and
  a question of 1,200, 1,000 tokens out, Poisson arrivals; prompts fill 73 % of the fleet's cache
- chat: conversations of up to 6 rounds: 1,500 tokens of system text of 20 kinds, 300 a question,
  250 an answer, 10 s between rounds; conversations arrive at a Poisson rate
- agent: runs of up to 12 calls that grow with their tools' results: one of 10 system texts of
  4,000 tokens, results of 800, answers of 80, 1 s for a tool
- nosharing: single requests of 500 to 8,000 tokens, 50 to 600 out, with nothing in common
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from sim_fleet import Scale, Words
from stream_load import Load, Session


@dataclass(frozen=True)
class Workload:
    """`sessions` yields one session for each arrival; `rates` a second, by stage."""

    name: str
    sessions: Callable[[Scale, Words, random.Random], AsyncIterator[Session]]
    rates: dict[str, float]
    warmup_rate: float


def message(role: str, content: str) -> dict[str, Any]:
    if role == "tool":
        return {"role": role, "tool_call_id": "call", "content": content}
    return {"role": role, "content": content}


async def capacity(scale: Scale, words: Words, source: random.Random) -> AsyncIterator[Session]:
    systems = [words.text(source, scale.count(6000)) for _ in range(150)]
    prompts = [(system, words.text(source, scale.count(1200))) for system in systems * 5]
    while True:
        for system, question in source.sample(prompts, len(prompts)):

            async def session(load: Load, system: str = system, question: str = question) -> None:
                await load.ask([message("system", system), message("user", question)], 1000)

            yield session


async def chat(scale: Scale, words: Words, source: random.Random) -> AsyncIterator[Session]:
    systems = [words.text(source, scale.count(1500)) for _ in range(20)]

    async def session(load: Load) -> None:
        messages = [message("system", source.choice(systems))]
        for _ in range(source.randint(2, 6)):
            messages.append(message("user", words.text(source, scale.count(300))))
            call = await load.ask(messages, 250)
            messages.append(message("assistant", call.text))
            await load.sleep(source.expovariate(1 / 10))

    while True:
        yield session


async def agent(scale: Scale, words: Words, source: random.Random) -> AsyncIterator[Session]:
    systems = [words.text(source, scale.count(4000)) for _ in range(10)]

    async def session(load: Load) -> None:
        messages = [message("system", source.choice(systems))]
        messages.append(message("user", words.text(source, scale.count(400))))
        for _ in range(source.randint(4, 12)):
            call = await load.ask(messages, 80)
            messages.append(message("assistant", call.text))
            await load.sleep(source.expovariate(1))
            messages.append(message("tool", words.text(source, scale.count(800))))

    while True:
        yield session


async def nosharing(scale: Scale, words: Words, source: random.Random) -> AsyncIterator[Session]:
    async def session(load: Load) -> None:
        prompt = words.text(source, scale.count(source.choice((500, 1000, 2000, 4000, 8000))))
        await load.ask([message("user", prompt)], source.randint(50, 600))

    while True:
        yield session


WORKLOADS = (
    Workload("capacity", capacity, {"below": 8, "knee": 20, "past": 30}, 15),
    Workload("chat", chat, {"below": 6, "knee": 22, "past": 34}, 12),
    Workload("agent", agent, {"below": 3, "knee": 10, "past": 15}, 5),
    Workload("nosharing", nosharing, {"below": 12, "knee": 25, "past": 40}, 12),
)
