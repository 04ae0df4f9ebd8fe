"""Who did what: records of the admin port's actions and of other keys."""

import io
import json

import pytest

from kvasir_router.admin import audit_log
from kvasir_router.admin.audit_log import AuditFile, AuditLog, AuditRecord, fingerprint, open_audit
from kvasir_router.admission.keys import ApiKey, KeyFile, dump_keys, hash_key
from kvasir_router.options.proxy_settings import ProxySettings
from kvasir_router.options.spend_settings import SpendSettings
from kvasir_router.telemetry.router_metrics import Metrics
from kvasir_router.wire.forwarding.client_address import parse_networks

SECRET = "a-secret-of-a-fleet-0123456789abcdef"
HEADERS = {"x-kvasir-fleet-secret": SECRET}


def records(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
async def start(start_replica, start_router, model_entry, tmp_path):
    """Start a router whose audit log is the file `router.audit`."""

    async def start(**options):
        path = tmp_path / "audit.jsonl"
        router = await start_router(
            [model_entry("m", await start_replica())],
            audit_log=str(path),
            fleet_secret=SECRET,
            **options,
        )
        router.audit = path
        return router

    return start


async def said(router, eventually, count: int) -> list[dict]:
    await eventually(lambda: len(records(router.audit)) >= count)
    return records(router.audit)


async def test_what_changes_something_is_recorded_with_who_and_from_where(
    start, client, eventually
) -> None:
    router = await start()
    change = {"policy": "round_robin"}
    url = f"{router.admin_url}/policy/m"
    assert (await client.put(url, json=change, headers=HEADERS)).status_code == 200
    await client.put(url, json=change, headers={"x-kvasir-fleet-secret": "wrong"})
    await client.put(url, json={"policy": "magic"}, headers=HEADERS)
    await client.put(f"{router.admin_url}/policy/none", json=change, headers=HEADERS)
    await client.get(f"{router.admin_url}/debug/fleet")
    done, unknown, bad, missing = await said(router, eventually, 4)
    assert done.pop("time") > 0
    assert done == {
        "audit": "policy.set",
        "who": fingerprint(SECRET),
        "client": "127.0.0.1",
        "target": "m",
        "details": {"policy": "round_robin", "options": {}, "was": "kv_aware"},
    }
    assert (unknown["result"], "who" in unknown) == ("refused", False)
    assert "send the fleet secret" in unknown["reason"]
    assert (bad["result"], bad["details"]["policy"]) == ("refused", "magic")
    assert missing["target"] == "none"
    text = router.audit.read_text()
    assert SECRET not in text
    assert "wrong" not in text


async def test_a_defect_is_failed_and_long_details_are_left_out(
    start, client, eventually, monkeypatch
) -> None:
    router = await start()
    monkeypatch.setattr(router.server.fleet, "_make_policy", lambda *_: 1 / 0)
    change = {"policy": "kv_aware", "options": {"x": "y" * 2000}}
    await client.put(f"{router.admin_url}/policy/m", json=change, headers=HEADERS)
    [record] = await said(router, eventually, 1)
    assert (record["result"], record["reason"]) == ("failed", "ZeroDivisionError")
    assert record["details"] == {"left_out": "too long"}


async def test_spend_that_is_read_and_trusted_proxies(start, client, eventually, tmp_path) -> None:
    router = await start(
        spend=SpendSettings(f"sqlite:///{tmp_path}/spend.db"),
        proxies=ProxySettings(trusted=parse_networks(["127.0.0.1"])),
    )
    url = f"{router.admin_url}/spend"
    for value in ("192.0.2.1", "nonsense"):
        await client.get(url, params={"to": "2026-01-01"}, headers={"X-Forwarded-For": value})
    one, two = await said(router, eventually, 2)
    assert (one["audit"], one["client"]) == ("spend.read", "192.0.2.1")
    assert one["details"] == {"to": "2026-01-01"}
    assert two["client"] == "127.0.0.1"


async def test_other_keys_are_told_by_their_ids(start, eventually, tmp_path) -> None:
    path = tmp_path / "keys.yaml"

    def write(**tenants: str) -> None:
        keys = tuple(
            ApiKey(id=name, hash=hash_key(f"kv-{name}".encode()), tenant=tenant)
            for name, tenant in tenants.items()
        )
        new = tmp_path / "new"
        new.write_bytes(dump_keys(KeyFile(keys=keys)))
        new.replace(path)

    write(a="t", b="t", c="t")
    router = await start(keys_file=path)
    keyring = router.server.gateway.admission.keyring
    await keyring.read_again()
    write(b="t", c="u", d="t")
    await keyring.read_again()
    [record] = await said(router, eventually, 1)
    assert record["audit"] == "keys.changed"
    assert record["details"] == {
        "added": ["d"],
        "added_count": 1,
        "removed": ["a"],
        "removed_count": 1,
        "changed": ["c"],
        "changed_count": 1,
    }
    assert hash_key(b"kv-d") not in router.audit.read_text()


def test_many_ids_are_cut() -> None:
    output = io.BytesIO()
    log = AuditLog(output, Metrics())
    log.keys_changed([f"k{at:04}" for at in range(1000)], [], [])
    log.close()
    details = json.loads(output.getvalue())["details"]
    assert (len(details["added"]), details["added_count"]) == (100, 1000)


def test_a_file_goes_on_as_a_new_one(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(audit_log, "MAX_FILE_BYTES", 20)
    path = tmp_path / "audit"
    path.write_bytes(b"before\n")
    file = AuditFile(path)
    for line in (b"one\n", b"two and more\n", b"x" * 30 + b"\n"):
        file.write(line)
        file.flush()
    file.close()
    assert path.read_bytes() == b"x" * 30 + b"\n"
    assert (tmp_path / "audit.1").read_bytes() == b"two and more\n"


def test_a_file_that_cannot_be_written_is_one_sentence(tmp_path) -> None:
    assert open_audit(None, io.BytesIO(), Metrics()) is None
    with pytest.raises(OSError, match=r"cannot write the audit log .*: No such .*--audit-log"):
        open_audit(str(tmp_path / "none" / "audit"), io.BytesIO(), Metrics())


def test_lines_go_to_stdout_or_are_counted() -> None:
    output, metrics = io.BytesIO(), Metrics()
    log = open_audit("-", output, metrics)
    assert log is not None
    log.write(AuditRecord(audit="a"))
    log.close()
    assert json.loads(output.getvalue())["audit"] == "a"

    class Gone(io.BytesIO):
        def write(self, data, /) -> int:
            raise BrokenPipeError

    log = open_audit("-", Gone(), metrics)
    assert log is not None
    log.write(AuditRecord(audit="b"))
    log.close()
    assert metrics.dropped_audit_lines == 1
