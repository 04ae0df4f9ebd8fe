"""A load on a router: clients that ask for one answer after the other."""

import asyncio
import time

import httpx
from faults.processes import MODEL


class Load:
    """Clients that ask for one answer after the other; each must come."""

    def __init__(self, url: str, client: httpx.AsyncClient, clients: int) -> None:
        self.answers: list[tuple[float, float, int]] = []
        """Begin, end and status of each."""
        self._url = url
        self._client = client
        self._stopping = False
        self._tasks = [asyncio.create_task(self._ask(number)) for number in range(clients)]

    async def _ask(self, number: int) -> None:
        turn = 0
        while not self._stopping:
            turn += 1
            prompt = f"client {number} turn {turn} " + "word " * 60
            body = {"model": MODEL, "prompt": prompt, "max_tokens": 8, "ignore_eos": True}
            begun = time.monotonic()
            response = await self._client.post(f"{self._url}/v1/completions", json=body)
            self.answers.append((begun, time.monotonic(), response.status_code))

    async def stop(self) -> None:
        """After the answers that are under way."""
        self._stopping = True
        await asyncio.wait_for(asyncio.gather(*self._tasks), 60)

    def between(self, start: float, end: float) -> int:
        """Answers that came in that time."""
        return sum(start <= at < end for _, at, _ in self.answers)
