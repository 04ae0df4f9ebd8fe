"""Limits whose state several processes share."""

import fcntl
import os

import pytest
import structlog

from kvasir_router.admission.limits import Allowance, Limit
from kvasir_router.workers.process_metrics import limit_families
from kvasir_router.workers.shared_memory.shared_limits import SharedKeyLimits, SharedLimitTable

NOON = 20_000 * 86_400 + 43_200.0


@pytest.fixture
def ledger() -> SharedLimitTable:
    return SharedLimitTable(64)


def test_requests_and_tokens_are_everybodys(ledger) -> None:
    allowance = Allowance(requests_per_minute=3, tokens_per_minute=1000)
    one, other = (ledger.limits("key", allowance, 100.0) for _ in range(2))
    assert one.admit(400, 100.0, NOON) is None
    assert other.admit(400, 100.0, NOON) is None
    excess = one.admit(400, 100.0, NOON)
    assert excess is not None
    assert excess.limit is Limit.TOKENS
    other.settle(400, 0, NOON, 100.0, NOON)
    assert one.admit(400, 100.0, NOON) is None
    excess = other.admit(1, 100.0, NOON)
    assert excess is not None
    assert excess.limit is Limit.REQUESTS
    assert other.admit(1, 160.0, NOON) is None


def test_the_days_budget_is_everybodys_and_turns(ledger) -> None:
    allowance = Allowance(tokens_per_day=100)
    one, other = (ledger.limits("key", allowance, 1.0) for _ in range(2))
    assert one.admit(100, 1.0, NOON) is None
    excess = other.admit(1, 1.0, NOON)
    assert excess is not None
    assert excess.limit is Limit.BUDGET
    assert other.admit(1, 1.0, NOON + 86_400) is None


def test_another_limit_keeps_what_is_used_however_often_it_is_said(ledger) -> None:
    one, other = (ledger.limits("key", Allowance(tokens_per_minute=1000), 1.0) for _ in range(2))
    assert one.admit(600, 1.0, NOON) is None
    for limits in (one, other):
        limits.change(Allowance(tokens_per_minute=700), 1.0)
        limits.change(Allowance(tokens_per_minute=700), 1.0)
    assert other.admit(101, 1.0, NOON) is not None
    assert one.admit(99, 1.0, NOON) is None


def test_keys_have_records_of_their_own(ledger) -> None:
    allowance = Allowance(requests_per_minute=1)
    for number in range(32):
        assert ledger.limits(f"key-{number}", allowance, 1.0).admit(1, 1.0, NOON) is None
        assert ledger.limits(f"key-{number}", allowance, 1.0).admit(1, 1.0, NOON) is not None


def test_processes_at_once_do_not_pass_a_limit_together() -> None:
    ledger = SharedLimitTable(64)
    allowance = Allowance(requests_per_minute=500, tokens_per_day=1e9)
    children = []
    for _ in range(3):
        reader, writer = os.pipe()
        pid = os.fork()
        if not pid:
            limits = ledger.limits("key", allowance, 1.0)
            admitted = sum(limits.admit(1, 1.0, NOON) is None for _ in range(400))
            os.write(writer, str(admitted).encode())
            os._exit(0)
        os.close(writer)
        children.append((pid, reader))
    admitted = 0
    for pid, reader in children:
        admitted += int(os.read(reader, 16))
        os.close(reader)
        os.waitpid(pid, 0)
    assert admitted == 500


def test_a_process_that_died_with_a_record_locked_holds_nobody_up(ledger) -> None:
    allowance = Allowance(requests_per_minute=10)
    limits = ledger.limits("key", allowance, 1.0)
    pid = os.fork()
    if not pid:
        fcntl.lockf(ledger._fd, fcntl.LOCK_EX)
        os._exit(0)
    os.waitpid(pid, 0)
    assert limits.admit(1, 1.0, NOON) is None


def test_a_process_that_was_stopped_with_a_record_locked_does_not_hold_others_for_long(
    ledger,
) -> None:
    limits = ledger.limits("key", Allowance(requests_per_minute=10), 1.0)
    ready, go_on = os.pipe(), os.pipe()
    pid = os.fork()
    if not pid:
        fcntl.lockf(ledger._fd, fcntl.LOCK_EX)
        os.write(ready[1], b"x")
        os.read(go_on[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    assert limits.admit(1, 1.0, NOON) is None
    os.write(go_on[1], b"x")
    os.waitpid(pid, 0)
    for fd in (*ready, *go_on):
        os.close(fd)


def test_a_key_without_a_place_is_limited_here_alone_and_that_is_told() -> None:
    ledger, allowance = SharedLimitTable(4), Allowance(requests_per_minute=1)
    with structlog.testing.capture_logs() as logs:
        made = [ledger.limits(f"key{number}", allowance, 1.0) for number in range(6)]
    assert [isinstance(each, SharedKeyLimits) for each in made] == [True] * 4 + [False] * 2
    assert ledger.unshared == {"key4", "key5"}
    [entry] = logs
    assert "table of limits is full" in entry["event"]
    [family] = limit_families(ledger)
    assert [sample.value for sample in family.samples] == [2]
    assert made[5].admit(1, 1.0, NOON) is None
    assert made[5].admit(1, 1.0, NOON) is not None
