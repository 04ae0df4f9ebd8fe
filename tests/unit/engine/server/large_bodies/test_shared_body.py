"""Bytes in shared memory, and the budget that bounds them."""

from __future__ import annotations

import os

import pytest

from kvasir_engine.server.large_bodies.shared_body import (
    BudgetExceededError,
    ByteBudget,
    SharedBody,
    memory_file,
    read_all,
)


def test_what_was_appended_is_read_through_another_descriptor() -> None:
    body = SharedBody(ByteBudget(100))
    for chunk in (b"one ", b"two ", b"three"):
        body.append(chunk)
    other = os.dup(body.fd)
    body.close()
    assert read_all(other) == b"one two three"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(other)


@pytest.mark.parametrize("content", [b"", b"x" * 300_000])
def test_a_memory_file_holds_what_it_was_given(content: bytes) -> None:
    assert read_all(memory_file(content)) == content


def test_the_budget_counts_a_body_until_it_is_closed_once() -> None:
    budget = ByteBudget(10)
    body, other = SharedBody(budget), SharedBody(budget)
    body.append(b"12345678")
    with pytest.raises(BudgetExceededError):
        other.append(b"123")
    body.close_file()
    assert budget.held == 8
    body.close()
    body.close()
    assert budget.held == 0
    other.append(b"123")
    other.close()
    assert budget.held == 0
