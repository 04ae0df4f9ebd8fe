from __future__ import annotations

import json
import logging

import httpx
import openai
import pytest

from kvasir_engine.core.client import RequestRejectedError

CHAT = {"messages": [{"role": "user", "content": "hi"}]}


def error_of(answer: httpx.Response, status: int) -> dict:
    assert answer.status_code == status, answer.text
    [(key, error)] = answer.json().items()
    assert key == "error"
    assert set(error) >= {"message", "type", "param", "code"}
    assert answer.headers["x-request-id"]
    return error


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"max_tokens": 0}, "max_tokens", "at least 1"),
        ({"max_tokens": -4}, "max_tokens", "at least 1"),
        ({"top_p": 0}, "top_p", "(0, 1]"),
        ({"top_p": 1.5}, "top_p", "(0, 1]"),
        ({"temperature": -1}, "temperature", "[0, 100]"),
        ({"temperature": "hot"}, "temperature", "Expected `float | null`, got `str`"),
        ({"n": 257}, "n", "[1, 256]"),
        ({"n": 0}, "n", "[1, 256]"),
        ({"n": True}, "n", "got `bool`"),
        ({"stop": ["x"] * 65}, "stop", "at most 64"),
        ({"stop": [""]}, "stop", "1 to 1024 characters"),
        ({"stop": "x" * 1025}, "stop", "1 to 1024 characters"),
        ({"stop": ["a", 3]}, "stop[1]", "Expected `str`"),
        ({"logit_bias": {"258": 1}}, "logit_bias", "0 to 257"),
        ({"logit_bias": {"-1": 1}}, "logit_bias", "0 to 257"),
        ({"logit_bias": {"1": 101}}, "logit_bias", "-100 and 100"),
        ({"logit_bias": {"abc": 1}}, "logit_bias", "Expected `int`"),
        ({"logprobs": 21}, "logprobs", "--max-logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs", "--max-logprobs"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens", "must not exceed"),
        ({"seed": 2**63}, "seed", "64 bits"),
        ({"stop_token_ids": [999]}, "stop_token_ids", "0 to 257"),
        ({"allowed_token_ids": []}, "allowed_token_ids", "must not be empty"),
        ({"prompt": None}, "prompt", "required"),
        ({"prompt": []}, "prompt", "must not be empty"),
        ({"prompt": ""}, "prompt", "no tokens"),
        ({"prompt": {"a": 1}}, "prompt", "a string or a list"),
        ({"prompt": [1, "a"]}, "prompt", "all of one kind"),
        ({"prompt": [258]}, "prompt", "0 to 257"),
        ({"prompt": ["a"] * 257}, "prompt", "at most 256"),
        ({"prompt": ["a"] * 10, "n": 200}, "n", "more than 1024 choices"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "stream to be true"),
        ({"stream": True, "prompt_logprobs": 1}, "prompt_logprobs", "stream"),
        ({"stream": True, "use_beam_search": True}, "use_beam_search", "stream"),
        ({"cache_salt": "x" * 257}, "cache_salt", "at most 256"),
        ({"priority": 2**31}, "priority", "within"),
        ({"best_of": 3, "n": 2}, "best_of", "not supported"),
        ({"suffix": "x"}, "suffix", "not supported"),
        ({"guided_json": {}}, "guided_json", "not supported"),
        ({"structured_outputs": {}}, "structured_outputs", "not supported"),
        ({"resume": {"sample_index": 1}}, "resume.sample_index", "0 to 0"),
        ({"resume": {"sent_chars": -1}}, "resume.sent_chars", "at least 0"),
        ({"resume": {"output_token_ids": [258]}}, "resume.output_token_ids", "0 to 257"),
        ({"resume": {}, "use_beam_search": True}, "resume", "use_beam_search"),
    ],
)
async def test_a_bad_field_of_a_completion_is_named(server, fields, param, words):
    answer = await server.post("/v1/completions", {"prompt": "hi", **fields})
    error = error_of(answer, 400)
    assert error["param"] == param
    assert words in error["message"]
    assert error["type"] == "invalid_request_error"
    assert server.core.requests == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0]",
        ),
        ({"messages": [{"role": "user", "content": "refuse"}]}, "messages"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"audio": {"voice": "x"}}, "audio"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"chat_template": "{{ 1 }}"}, "chat_template"),
        ({"guided_regex": "a"}, "guided_regex"),
        ({"echo": True}, "echo"),
    ],
)
async def test_a_bad_field_of_a_chat_is_named(server, fields, param):
    error = error_of(await server.post("/v1/chat/completions", {**CHAT, **fields}), 400)
    assert error["param"] == param
    assert server.core.requests == []


async def test_the_templates_own_words_come_back(server):
    chat = {"messages": [{"role": "user", "content": "refuse"}]}
    error = error_of(await server.post("/v1/chat/completions", chat), 400)
    assert "I refuse." in error["message"]


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [], "tool_choice": "none", "response_format": {"type": "text"}},
        {"tools": None, "functions": None, "modalities": ["text"], "store": False, "user": "u"},
        {"n": 1, "best_of": 1},
    ],
)
async def test_fields_that_ask_for_nothing_are_taken(server, fields):
    answer = await server.post("/v1/chat/completions", {**CHAT, "max_tokens": 3, **fields})
    assert answer.status_code == 200


async def test_an_unknown_field_is_ignored_and_logged_once(server, caplog):
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            body = {**CHAT, "max_tokens": 1, "frobnicate": 1}
            assert (await server.post("/v1/chat/completions", body)).status_code == 200
    logged = [record.message for record in caplog.records]
    assert logged.count("ignoring unknown request field 'frobnicate'") == 1


@pytest.mark.parametrize(
    ("content", "code", "words"),
    [
        (b"{", "invalid_json", "truncated (1 bytes"),
        (b"", "invalid_json", "JSON"),
        (b'{"prompt": "a",}', "invalid_json", "byte 15"),
        (rb'{"prompt": "\ud800"}', "invalid_json", "JSON"),
        (b"[1]", "invalid_json", "JSON object"),
        (b'{"prompt": "a", "temperature": NaN}', "invalid_json", "NaN"),
        (b'{"prompt": "\xff\xfe"}', "invalid_utf8", "UTF-8"),
        (b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "invalid_json", "nested"),
    ],
)
async def test_what_is_not_json_says_where(server, content, code, words):
    error = error_of(await server.post("/v1/completions", content=content), 400)
    assert error["code"] == code
    assert words in error["message"]


async def test_prompts_beyond_the_context_get_all_numbers(server):
    error = error_of(await server.post("/v1/completions", {"prompt": "x" * 600}), 400)
    assert error["code"] == "context_length_exceeded"
    assert "600" in error["message"]
    assert "512" in error["message"]
    error = error_of(
        await server.post("/v1/completions", {"prompt": "x" * 500, "max_tokens": 13}), 400
    )
    assert error["param"] == "max_tokens"
    assert all(number in error["message"] for number in ("512", "513", "500", "13"))
    answer = await server.post("/v1/completions", {"prompt": "x" * 500, "max_tokens": 12})
    assert answer.status_code == 200


async def test_a_huge_text_is_refused_before_it_is_tokenised(server):
    error = error_of(await server.post("/v1/completions", {"prompt": "x" * 1_000_000}), 400)
    assert error["code"] == "context_length_exceeded"
    assert "characters" in error["message"]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize"])
async def test_an_unknown_model_is_404(server, path):
    body = {**CHAT, "prompt": "x", "model": "gpt-9"}
    error = error_of(await server.post(path, body), 404)
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert "tiny" in error["message"]


async def test_the_openai_client_raises_its_own_errors(server):
    async with openai.AsyncOpenAI(
        base_url=server.url + "/v1", api_key="x", max_retries=0
    ) as client:
        with pytest.raises(openai.NotFoundError):
            await client.completions.create(model="nope", prompt="x")
        with pytest.raises(openai.BadRequestError) as caught:
            await client.completions.create(model="tiny", prompt="x", top_p=0)
        assert caught.value.param == "top_p"


async def test_unknown_routes_and_methods_are_error_objects(server):
    assert "/nope" in error_of(await server.get("/nope"), 404)["message"]
    answer = await server.get("/v1/completions")
    assert "GET" in error_of(answer, 405)["message"]
    assert answer.headers["allow"] == "POST"


async def test_a_body_over_the_limit_is_refused(start_server):
    server = await start_server(max_body_bytes=1000)
    big = {"prompt": "x" * 1000}
    error = error_of(await server.post("/v1/completions", big), 413)
    assert "--max-body-bytes" in error["message"]

    async def chunks():
        for _ in range(20):
            yield b" " * 100

    error_of(await server.post("/v1/completions", content=chunks()), 413)
    fits = json.dumps({"prompt": "x", "max_tokens": 1}).encode().ljust(1000)
    assert (await server.post("/v1/completions", content=fits)).status_code == 200


@pytest.mark.parametrize(
    ("rejection", "status", "retry_after"),
    [
        (RequestRejectedError("The queue is full.", status=429, retry_after=7), 429, "7"),
        (RequestRejectedError("Draining.", status=503), 503, "1"),
        (RequestRejectedError("Too wide.", status=400, param="n"), 400, None),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_the_cores_refusal_comes_before_any_head(
    server, rejection, status, retry_after, stream
):
    server.core.reject = rejection
    answer = await server.post("/v1/completions", {"prompt": "x", "stream": stream})
    error = error_of(answer, status)
    assert error["message"] == str(rejection)
    assert error["param"] == rejection.param
    assert answer.headers.get("retry-after") == retry_after


async def test_of_several_prompts_all_are_taken_back_when_one_is_refused(server):
    submit = server.core.submit

    async def second_is_refused(request):
        if server.core.requests:
            raise RequestRejectedError("The queue is full.", status=429)
        return await submit(request)

    server.core.submit = second_is_refused
    error_of(await server.post("/v1/completions", {"prompt": ["a", "b"]}), 429)
    assert [still_ran for _, still_ran in server.core.closed] == [True]


async def test_an_error_of_one_request_leaves_the_others_alone(server):
    server.core.error = "This request ran into a wall."
    error = error_of(await server.post("/v1/completions", {"prompt": "x"}), 500)
    assert error["message"] == "This request ran into a wall."
    answer = await server.post("/v1/completions", {"prompt": "x", "stream": True})
    assert answer.status_code == 200
    assert "ran into a wall" in answer.text
    assert "[DONE]" not in answer.text
    server.core.error = None
    assert (await server.post("/v1/completions", {"prompt": "x"})).status_code == 200


async def test_a_fault_of_ours_is_a_500_with_the_request_id(server, monkeypatch):
    def broken():
        raise ZeroDivisionError

    monkeypatch.setattr(server.core, "load", broken)
    answer = await server.get("/load", headers={"x-request-id": "mine"})
    assert "its log says why" in error_of(answer, 500)["message"]
    assert answer.headers["x-request-id"] == "mine"
    assert (await server.get("/version")).status_code == 200
