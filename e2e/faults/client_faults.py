"""Clients that behave badly, and the others beside them."""

import asyncio
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from faults.load import Answer, ask, completion
from faults.processes import BadEngine, get
from faults.rig import Rig, Row

_MEBIBYTE = 1 << 20


async def slow_clients(rig: Rig) -> Row:
    """Hundreds of connections that send a header byte a second (slow loris)."""
    row, count = Row("slow loris: clients"), 300
    load = rig.load()
    before = await rig.settle(load)

    async def dribble() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.router.port)
        ended = asyncio.ensure_future(reader.read())
        with suppress(OSError):
            for byte in b"POST /v1/completions HTTP/1.1\r\nHost: a":
                writer.write(bytes([byte]))
                await asyncio.wait({ended}, timeout=1)
                if ended.done():
                    break
        ended.cancel()
        writer.transport.abort()

    begun = time.monotonic()
    async with asyncio.timeout(60):
        await asyncio.gather(*(dribble() for _ in range(count)))
    row.recovered = time.monotonic() - begun
    during = load.rate(begun, time.monotonic())
    answers = await load.stop()
    row.count(answers)
    row.note = f"{during:.0f} answers a second beside {count} of them, {before:.0f} before"
    return row


async def many_names(rig: Rig) -> Row:
    """Requests for models that do not exist: metrics do not grow with their names."""
    count = 10_000 if rig.quick else 100_000
    row, connections = Row(f"{count} models' names"), 32
    series = len((await get(rig.router.admin_port, "/metrics")).splitlines())
    memory = rig.router.resident

    async def flood(first: int) -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.router.port)
        refused = 0
        for number in range(first, count, connections):
            body = b'{"model": "no-such-model-%d"}' % number
            writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\n")
            writer.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = head.split(b"content-length: ")[1].split(b"\r\n")[0]
            await reader.readexactly(int(length))
            refused += b" 404 " in head[:16]
        writer.close()
        return refused

    refused = sum(await asyncio.gather(*(flood(first) for first in range(connections))))
    grown = len((await get(rig.router.admin_port, "/metrics")).splitlines()) - series
    row.requests, row.lost = count, count - refused
    row.expect(grown < 200, f"{grown} more series")
    row.note = f"{grown} more series, {(rig.router.resident - memory) / _MEBIBYTE:.0f} MiB more"
    return row


async def large_bodies(rig: Rig) -> Row:
    """10 MB pass, 100 MB are refused, and both hold nobody up."""
    row, name = Row("10 MB and 100 MB bodies"), "large"
    await rig.add(name, BadEngine("ok", rig.folder, "ok"))
    load = rig.load()
    ten = completion("x" * 10_000_000, model=name)
    passed = await asyncio.gather(*(ask(rig.router.port, ten) for _ in range(4)))
    refused = await asyncio.gather(*(_too_large(rig.router.port) for _ in range(4)))
    answers = await load.stop()
    row.count([*answers, *passed])
    row.expect({each.status for each in refused} == {413}, "100 MB were not answered 413")
    row.note = "100 MB: 413"
    return row


async def _too_large(port: int) -> Answer:
    """The beginning of 100 MB: the router need not see more of them."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = Answer(time.monotonic())
    with suppress(OSError, asyncio.IncompleteReadError):
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\n")
        writer.write(b"Content-Length: 100000000\r\n\r\n" + b"x" * _MEBIBYTE)
        head = await reader.readuntil(b"\r\n\r\n")
        answer.status = int(head.split(b" ", 2)[1])
    writer.transport.abort()
    return answer


async def bad_requests(rig: Rig) -> Row:
    """Header floods and bodies that are no JSON."""
    row = Row("header floods, invalid JSON")
    load, port = rig.load(), rig.router.port
    good, bad = completion("x"), (b"{", b"[]", b'{"model": 7}', b"\xff" * 99, b"[" * 100_000)
    floods = [f"x-{number}: {'y' * 50}" for number in range(10_000)]
    statuses = []
    for _ in range(3 if rig.quick else 20):
        statuses += [(await ask(port, good, *floods)).status]
        statuses += [(await ask(port, good, f"x-long: {'y' * 100_000}")).status]
        statuses += [(await ask(port, body)).status for body in bad]
    answers = await load.stop()
    row.count(answers)
    # A flood may be cut before its answer is read: 0
    row.expect(set(statuses) <= {0, 400, 431}, f"answered {sorted(set(statuses))}")
    row.expect(rig.router.running, "the router ended")
    return row


async def fuzz(rig: Rig) -> Row:
    """e2e/http_fuzz.py, with a router of its own."""
    seconds = 10 if rig.quick else 60
    row = Row(f"random and hostile HTTP, {seconds} s")
    script = Path(__file__).parents[1] / "http_fuzz.py"
    made = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, str(script), "--seconds", str(seconds)],
        capture_output=True,
        text=True,
        check=False,
    )
    row.expect(made.returncode == 0, (made.stdout + made.stderr)[-500:])
    row.note = made.stdout.strip().splitlines()[-1] if made.stdout.strip() else ""
    return row
