"""slowhttptest in its four modes: slow headers, slow bodies, slow reading, and ranges."""

import asyncio
import csv
import shutil
from pathlib import Path

PROGRAM = "slowhttptest"

# By mode: its options.
MODES: dict[str, tuple[str, ...]] = {
    "slow headers": ("-H", "-t", "POST", "-x", "24"),
    "slow bodies": ("-B", "-s", "8192", "-x", "10", "-f", "application/json"),
    "slow reading": ("-X", "-w", "1", "-y", "64", "-n", "1", "-z", "5", "-k", "8"),
    "ranges": ("-R", "-t", "HEAD", "-a", "5", "-b", "2000"),
}


def check_installed() -> None:
    """Raises SystemExit without it."""
    if shutil.which(PROGRAM) is None:
        raise SystemExit("slowhttptest is missing; on Debian: apt-get install slowhttptest")


async def attack(port: int, mode: str, connections: int, seconds: int, folder: Path) -> str:
    """Open so many slow connections for so long; what came of them, in a few words. Raises
    RuntimeError when it could not attack."""
    prefix = folder / f"{port} {mode}"
    path = "/v1/models" if mode == "slow reading" else "/v1/completions"
    process = await asyncio.create_subprocess_exec(
        *("nice", "-n", "10", PROGRAM, *MODES[mode], "-c", str(connections), "-r", "200"),
        *("-i", "1", "-l", str(seconds), "-p", "5", "-u", f"http://127.0.0.1:{port}{path}"),
        *("-g", "-o", str(prefix)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(seconds + 60):
            output, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        raise RuntimeError(f"slowhttptest did not end ({mode})") from None
    rows = list(csv.DictReader(prefix.with_name(f"{prefix.name}.csv").read_text().splitlines()))
    if process.returncode or not rows:
        raise RuntimeError(f"slowhttptest failed: {output.decode(errors='replace')[-500:]}")
    last = {name.strip().lower(): value for name, value in rows[-1].items()}
    return f"{last['closed']} of {connections} closed, {last['connected']} left"
