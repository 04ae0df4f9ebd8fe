"""Requests as servers that are not of the fleet get them, as tables."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from kvasir_router.discovery.specs import ReplicaSpec, Upstream
from kvasir_router.proxy.attempts.upstream_rendering import (
    head_lines,
    retry_seconds,
    returned_lines,
    target_of,
)
from kvasir_router.wire.http_request import Request


@pytest.mark.parametrize(
    ("prefix", "target", "expected"),
    [
        ("/v1", b"/v1/chat/completions?a=1", b"/v1/chat/completions?a=1"),
        ("/openai/v1", b"/v1/chat/completions", b"/openai/v1/chat/completions"),
        ("/v1beta/openai", b"/v1/embeddings", b"/v1beta/openai/embeddings"),
        ("/v1", b"/rerank", b"/rerank"),
        ("/x/v1", b"/v2/rerank", b"/x/v2/rerank"),
    ],
)
def test_the_path_of_its_url_stands_for_v1(prefix, target, expected) -> None:
    request = Request()
    request.target = target
    assert target_of(request, Upstream(prefix)) == expected


@pytest.mark.parametrize(
    ("spec", "host"),
    [
        (ReplicaSpec("r", "a.example", 443, tls=True), b"a.example"),
        (ReplicaSpec("r", "a.example", 80), b"a.example"),
        (ReplicaSpec("r", "a.example", 80, tls=True), b"a.example:80"),
        (ReplicaSpec("r", "fd00::1", 443, tls=True), b"[fd00::1]"),
        (ReplicaSpec("r", "fd00::1", 8000), b"[fd00::1]:8000"),
    ],
)
def test_the_host_has_a_port_only_where_it_needs_one(spec, host) -> None:
    assert spec.host_header == host


def test_a_header_that_nobody_knows_goes_nowhere() -> None:
    request = Request()
    request.lines = [b"ACCEPT: */*\r\n", b"X-New: 1\r\n", b"Authorization: Bearer c\r\n"]
    lines = head_lines(request, Upstream(key="k", key_header="api-key"))
    assert lines == b"ACCEPT: */*\r\napi-key: k\r\n"
    assert head_lines(request, Upstream()) == b"ACCEPT: */*\r\n"
    answered = [b"Content-Type: a/b\r\n", b"X-Account: 1\r\n", b"Set-Cookie: a=b\r\n"]
    assert returned_lines(answered) == [b"Content-Type: a/b\r\n"]


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (b"7", 7),
        (b"999999999999", 86400),
        (b"-5", 0),
        (b"soon", 0),
        (b"\xff", 0),
        (b"Wed, 21 Oct 2015 07:28:00 GMT", 0),
    ],
)
def test_seconds_of_a_retry_after(value, seconds) -> None:
    assert retry_seconds([b"X: 1\r\n", b"Retry-After: %b\r\n" % value]) == seconds


def test_a_date_of_a_retry_after() -> None:
    at = datetime.now(UTC) + timedelta(hours=1)
    line = b"retry-after: %b\r\n" % format_datetime(at, usegmt=True).encode()
    assert 3500 < retry_seconds([line]) <= 3600
    assert retry_seconds([]) == 0
