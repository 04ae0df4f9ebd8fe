"""Answers the router writes itself: status lines, whole responses and OpenAI error objects."""

import re
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import msgspec

from kvasir.anthropic_error import anthropic_error
from kvasir_router.wire.endpoints import Endpoint

STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
JSON = b"application/json"

_NOT_DESCRIBED = re.compile(r"[^\x20\x21\x23-\x5b\x5d-\x7e]")
"""Characters that an error_description may not have."""
_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error"}


@dataclass(slots=True, eq=False)
class Answer:
    """A whole response that is not relayed."""

    status: int
    body: bytes
    content_type: bytes = JSON
    lines: bytes = b""
    """Further header lines, each with its line end."""

    def encode(
        self,
        request_id: bytes,
        keep_alive: bool,
        head_only: bool = False,
        request_lines: bytes = b"",
    ) -> bytes:
        """The bytes to send; `request_lines` are the request's `answer_lines`."""
        return b"%bContent-Type: %b\r\nContent-Length: %d\r\n%b%b%b%b\r\n%b" % (
            status_line(self.status),
            self.content_type,
            len(self.body),
            b"X-Request-Id: %b\r\n" % request_id if request_id else b"",
            self.lines,
            request_lines,
            b"" if keep_alive else b"Connection: close\r\n",
            b"" if head_only else self.body,
        )


class RefusalError(Exception):
    """Refusal of a request that is not relayed, with its answer."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.status)
        self.answer = answer


def status_line(status: int) -> bytes:
    """The first line of a response; a status without a name in the standard has an empty one."""
    return STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status


def error_object(
    status: int, message: str, code: str | None = None, param: str | None = None
) -> dict[str, Any]:
    """OpenAI's error body: https://platform.openai.com/docs/guides/error-codes."""
    kind = "server_error" if status >= 500 else _TYPES.get(status, "invalid_request_error")
    if status == 429:
        kind = "rate_limit_error"
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def error(
    status: int,
    message: str,
    code: str | None = None,
    param: str | None = None,
    retry_after: int | None = None,
    allow: str = "GET, HEAD, POST, DELETE, OPTIONS",
) -> Answer:
    """An error answer; `retry_after` in seconds, `allow` the methods for status 405."""
    lines = b"" if retry_after is None else b"Retry-After: %d\r\n" % retry_after
    if status == 405:
        lines += f"Allow: {allow}\r\n".encode()
    return Answer(
        status, msgspec.json.encode(error_object(status, message, code, param)), JSON, lines
    )


def bearer_refusal(status: int, message: str, code: str, reason: str) -> Answer:
    """An error answer that refuses an access token. Its WWW-Authenticate has the `reason`, one of
    those of RFC 6750, 3.1, and the message, of which other characters than those that it allows
    there (3) are replaced: whatever the message quotes, the header stays one line."""
    answer = error(status, message, code)
    said = _NOT_DESCRIBED.sub("?", message.replace('"', "'")).encode()
    answer.lines = b'WWW-Authenticate: Bearer error="%b", error_description="%b"\r\n' % (
        reason.encode(),
        said,
    )
    return answer


def in_form_of(endpoint: Endpoint, answer: Answer) -> Answer:
    """An answer as the clients of `endpoint` expect it: errors differ."""
    if endpoint.errors == "openai" or answer.status < 400 or answer.content_type != JSON:
        return answer
    message = msgspec.json.decode(answer.body)["error"]["message"]
    body = msgspec.json.encode(anthropic_error(answer.status, message))
    return Answer(answer.status, body, JSON, answer.lines)


def error_event(endpoint: Endpoint, answer: Answer, number: int) -> bytes:
    """The event by which the clients of `endpoint` learn of an error within a stream; `number` is
    its own, where events have one."""
    body = in_form_of(endpoint, answer).body
    if endpoint.events == "completion":
        return b"data: %b\n\n" % body
    if endpoint.events == "response":
        told = msgspec.json.decode(body)["error"]
        fields = {name: told.get(name) for name in ("code", "message", "param")}
        body = msgspec.json.encode(
            {"type": "error", "sequence_number": number, **fields, "error": told}
        )
    return b"event: error\ndata: %b\n\n" % body
