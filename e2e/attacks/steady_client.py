"""The well-behaved client beside an attack: python steady_client.py PORT MODEL SECONDS

A process of its own, so that what attacks cost their own process is not measured. Four connections
ask for one short answer after the other, every second one a stream. Prints JSON: seconds of each
answer, and what was wrong with those that were not whole.
"""

import asyncio
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from faults.load import ask, completion

CLIENTS = 4
PAUSE = 0.01


async def client(port: int, model: str, number: int, until: float) -> tuple[list[float], list[str]]:
    """Ask until then; the seconds of good answers, and what the others were."""
    seconds, problems, turn = [], [], 0
    while time.monotonic() < until:
        turn += 1
        body = completion(f"{number} {turn}", model=model, stream=(number + turn) % 2 == 0)
        answer = await ask(port, body)
        if answer.is_good:
            seconds.append(answer.ended - answer.begun)
        else:
            problems.append(answer.problem or "cut off")
        await asyncio.sleep(PAUSE)
    return seconds, problems


async def main(port: int, model: str, seconds: float) -> None:
    until = time.monotonic() + seconds
    each = await asyncio.gather(*(client(port, model, at, until) for at in range(CLIENTS)))
    took = [one for seconds, _ in each for one in seconds]
    print(json.dumps({"seconds": took, "problems": [one for _, bad in each for one in bad]}))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2], float(sys.argv[3])))
