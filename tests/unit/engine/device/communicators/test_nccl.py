"""The end of a group of GPUs, which must not wait for ranks that are gone."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest
import torch
import torch.distributed as dist

from kvasir_engine.device.communicators import nccl
from kvasir_engine.device.communicators.nccl import NcclCommunicator


class Group:
    """Rank 1 of 2."""

    def rank(self) -> int:
        return 1

    def size(self) -> int:
        return 2


@pytest.fixture
def communicator() -> NcclCommunicator:
    group: Any = Group()
    return NcclCommunicator(group, torch.device("cuda", 1))


def test_closing_aborts_the_group(communicator, monkeypatch, caplog) -> None:
    aborted: list[Any] = []
    monkeypatch.setattr(dist.distributed_c10d, "_abort_process_group", aborted.append)
    before = sys.getrefcount(communicator)
    communicator.close()
    assert sys.getrefcount(communicator) == before + 1
    assert aborted == [communicator.group]
    assert caplog.text == ""


def test_after_a_failure_all_stays_as_it_is(communicator, monkeypatch) -> None:
    aborted: list[Any] = []
    monkeypatch.setattr(dist.distributed_c10d, "_abort_process_group", aborted.append)
    communicator.close(failed=True)
    assert aborted == []


def test_closing_does_not_wait_for_ever(communicator, monkeypatch, caplog) -> None:
    ended = threading.Event()
    monkeypatch.setattr(dist.distributed_c10d, "_abort_process_group", lambda _: ended.wait())
    monkeypatch.setattr(nccl, "CLOSE_SECONDS", 0.01)
    communicator.close()
    ended.set()
    assert "left as it is" in caplog.text
