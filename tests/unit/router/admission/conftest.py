"""Queues whose clock a test sets."""

import pytest
from support.waiting_requests import Clock

from kvasir_router.admission.request_queue import RequestQueue
from kvasir_router.options.router_settings import QueueLimits


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make_queue(clock):
    return lambda **settings: RequestQueue(QueueLimits(**settings), clock, lambda callback: None)
