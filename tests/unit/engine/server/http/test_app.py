from __future__ import annotations

import httpx


def error_of(answer: httpx.Response, status: int) -> dict:
    assert answer.status_code == status, answer.text
    [(key, error)] = answer.json().items()
    assert key == "error"
    assert set(error) >= {"message", "type", "param", "code"}
    assert answer.headers["x-request-id"]
    return error


async def test_unknown_routes_and_methods_are_error_objects(server):
    assert "/nope" in error_of(await server.get("/nope"), 404)["message"]
    answer = await server.get("/v1/completions")
    error = error_of(answer, 405)
    assert error["message"] == "'/v1/completions' does not take GET; use POST."
    assert error["code"] == "method_not_allowed"
    assert answer.headers["allow"] == "POST"


async def test_a_fault_of_ours_is_a_500_with_the_request_id(server, monkeypatch):
    def broken():
        raise ZeroDivisionError

    monkeypatch.setattr(server.core, "load", broken)
    answer = await server.get("/load", headers={"x-request-id": "mine"})
    assert "its log says why" in error_of(answer, 500)["message"]
    assert answer.headers["x-request-id"] == "mine"
    assert (await server.get("/version")).status_code == 200
