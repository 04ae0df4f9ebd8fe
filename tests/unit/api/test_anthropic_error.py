from __future__ import annotations

import pytest

from kvasir.anthropic_error import anthropic_error


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (409, "invalid_request_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (503, "overloaded_error"),
        (504, "api_error"),
    ],
)
def test_types_follow_the_status(status: int, kind: str) -> None:
    made = anthropic_error(status, "No.", {"param": "model"})
    inner = {"type": kind, "message": "No.", "param": "model"}
    assert made == {"type": "error", "error": inner}
