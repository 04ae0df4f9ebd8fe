"""Access tokens, spend and the audit log with several workers."""

import asyncio

import httpx
import pytest
import yaml
from support.token_issuer import TokenIssuer

pytestmark = pytest.mark.slow


async def ask(url: str, bearer: str) -> int:
    """Return the status, over a connection of its own."""
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    async with httpx.AsyncClient(timeout=10, trust_env=False) as http:
        path, headers = f"{url}/v1/chat/completions", {"Authorization": bearer}
        return (await http.post(path, json=body, headers=headers)).status_code


async def test_tokens_spend_and_audit_are_those_of_all(
    config, fleet_of_two, start_workers, tmp_path, client, until
) -> None:
    """Each worker fetches the issuer's keys, their limits are one, and the index process has the
    table and the log."""
    await fleet_of_two()
    server = TokenIssuer()
    runner = await server.start()
    tenants = [{"tenant": "team-a", "requests_per_minute": 20}]
    issuers, audit = tmp_path / "issuers.yaml", tmp_path / "audit"
    issuers.write_text(yaml.safe_dump({"issuers": [server.entry(tenants=tenants)]}))
    options = ("--issuers-file", str(issuers), "--spend-store", f"sqlite:///{tmp_path}/spend.db")
    router = await start_workers(config, 2, *options, "--audit-log", str(audit))
    bearer = f"Bearer {server.token()}"

    async def is_known() -> bool:
        """By every worker, as far as many new connections show."""
        url, headers = f"{router.url}/v1/models", {"Authorization": bearer}
        for _ in range(24):
            async with httpx.AsyncClient(timeout=10, trust_env=False) as http:
                if (await http.get(url, headers=headers)).status_code != 200:
                    return False
        return True

    await until(is_known)
    statuses = await asyncio.gather(*(ask(router.url, bearer) for _ in range(60)))
    assert 20 <= statuses.count(200) < 40
    assert statuses.count(200) + statuses.count(429) == 60

    async def is_written() -> bool:
        table = (await client.get(f"{router.admin_url}/spend")).text.splitlines()
        rows = [row.split(",") for row in table[1:]]
        return sum(int(row[4]) for row in rows if row[1] == "sso:team-a") == statuses.count(200)

    await until(is_written)
    await until(lambda: "spend.read" in audit.read_text())
    await runner.cleanup()
