"""docs/guide.md's router, run as it is written there."""

import asyncio
import os
import re
import signal
import sys
from pathlib import Path

import httpx
import pytest
import yaml

from kvasir.cli.local.ports import free_ports

ROOT = Path(__file__).parents[3]
SECTION = "## The router alone\n"
PORTS = ("8000", "8001", "5557", "5558", "8010", "8080")


def blocks(language: str) -> list[str]:
    """The guide's code blocks on the router."""
    text = (ROOT / "docs/guide.md").read_text().split(SECTION, 1)[1].split("\n## ", 1)[0]
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def test_every_discovery_file_is_a_good_one(tmp_path: Path) -> None:
    from kvasir_router.discovery.file_source import read_snapshot
    from kvasir_router.policy.registry import check_policy

    files = [text for text in blocks("yaml") if "models" in yaml.safe_load(text)]
    assert len(files) >= 2
    for at, text in enumerate(files):
        path = tmp_path / f"{at}.yaml"
        path.write_text(text)
        assert read_snapshot(path, check_policy)


@pytest.mark.slow
async def test_the_routers_commands_serve_the_models_names(tmp_path: Path) -> None:
    ports = dict(zip(PORTS, map(str, free_ports(len(PORTS))), strict=True))
    admin = free_ports(1)[0]

    def here(text: str) -> str:
        return re.sub(r"\b(\d{4})\b", lambda found: ports.get(found[1], found[1]), text)

    config, commands = here(blocks("yaml")[0]), here(blocks("sh")[0]).rstrip()
    (tmp_path / "fleet.yaml").write_text(config)
    process = await asyncio.create_subprocess_exec(
        *("bash", "-c", f"{commands} --admin-port {admin}"),
        cwd=tmp_path,
        env=os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        start_new_session=True,
        stdout=asyncio.subprocess.DEVNULL,
    )
    try:
        await _served(f"http://127.0.0.1:{ports['8080']}", f"http://127.0.0.1:{admin}", config)
    finally:
        _stop(process.pid)
        await asyncio.wait_for(process.wait(), 60)
        async with asyncio.timeout(60):
            while _runs(process.pid):  # noqa: ASYNC110 - the shell's children, not ours
                await asyncio.sleep(0.05)


def _stop(shell: int) -> None:
    children = Path(f"/proc/{shell}/task/{shell}/children").read_text().split()
    for pid in (shell, *map(int, children)):
        os.kill(pid, signal.SIGTERM)


def _runs(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


async def _served(url: str, admin: str, config: str) -> None:
    [model] = yaml.safe_load(config)["models"]
    async with httpx.AsyncClient(timeout=60) as client, asyncio.timeout(120):
        while await _serving(client, admin) < len(model["replicas"]):  # noqa: ASYNC110 - others'
            await asyncio.sleep(0.1)
        for name in (model["name"], *model["aliases"]):
            for _ in model["replicas"]:
                chat = {"model": name, "messages": [{"role": "user", "content": "Sort: 3 1"}]}
                answer = await client.post(f"{url}/v1/chat/completions", json=chat)
                assert answer.status_code == 200, answer.text


async def _serving(client: httpx.AsyncClient, admin: str) -> int:
    try:
        return len((await client.get(f"{admin}/serving")).json()["serving"])
    except httpx.TransportError:
        return 0
