"""Answers that scripted replicas give."""

import asyncio
from typing import Any


async def ok(exchange: Any) -> None:
    await exchange.json(200, {"ok": True})


async def reset(exchange: Any) -> None:
    exchange.reset()


async def silent(exchange: Any) -> None:
    """Works on the request until the router gives it up."""
    await exchange.client_left()


def status(number: int, **error: Any) -> Any:
    async def answer(exchange: Any) -> None:
        content = {"error": error} if error else {"from": number}
        await exchange.json(number, content, b"Retry-After: 7")

    return answer


def after(seconds: float, script: Any) -> Any:
    async def answer(exchange: Any) -> None:
        await asyncio.sleep(seconds)
        await script(exchange)

    return answer
