from __future__ import annotations

import httpx
import pytest

CHAT = {"messages": [{"role": "user", "content": "hi"}]}


def error_of(answer: httpx.Response, status: int) -> dict:
    assert answer.status_code == status, answer.text
    [(key, error)] = answer.json().items()
    assert key == "error"
    assert set(error) >= {"message", "type", "param", "code"}
    assert answer.headers["x-request-id"]
    return error


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"max_tokens": 0}, "max_tokens", "at least 1"),
        ({"max_tokens": -4}, "max_tokens", "at least 1"),
        ({"top_p": 0}, "top_p", "(0, 1]"),
        ({"top_p": 1.5}, "top_p", "(0, 1]"),
        ({"temperature": -1}, "temperature", "[0, 100]"),
        ({"temperature": "hot"}, "temperature", 'must be a number or null, not "hot".'),
        ({"n": 257}, "n", "[1, 256]"),
        ({"n": 0}, "n", "[1, 256]"),
        ({"n": True}, "n", "must be a whole number or null, not true."),
        ({"stop": ["x"] * 65}, "stop", "at most 64"),
        ({"stop": [""]}, "stop", "1 to 1024 characters"),
        ({"stop": "x" * 1025}, "stop", "1 to 1024 characters"),
        ({"stop": ["a", 3]}, "stop[1]", "stop[1] must be a string, not 3."),
        ({"stop": {"a": "x" * 99}}, "stop", 'a string or a list or null, not {"a":"xx'),
        ({"stream_options": {"include_usage": "y"}}, "stream_options.include_usage", 'not "y".'),
        ({"logit_bias": {"258": 1}}, "logit_bias", "0 to 257"),
        ({"logit_bias": {"-1": 1}}, "logit_bias", "0 to 257"),
        ({"logit_bias": {"1": 101}}, "logit_bias", "-100 and 100"),
        ({"logit_bias": {"abc": 1}}, "logit_bias", "key of logit_bias must be a whole number."),
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
        ({"cache_salt": "x" * 1025}, "cache_salt", "at most 1024"),
        ({"priority": 2**31}, "priority", "within"),
        ({"priority": -(2**31)}, "priority", "within"),
        ({"best_of": 3, "n": 2}, "best_of", "not supported"),
        ({"suffix": "x"}, "suffix", "not supported"),
        ({"guided_json": {"not": {}}}, "guided_json", "#/not cannot be enforced"),
        ({"structured_outputs": {}}, "structured_outputs", "exactly one of json"),
        ({"resume": {"sample_index": 1}}, "resume.sample_index", "0 to 0"),
        ({"resume": {"sent_chars": -1}}, "resume.sent_chars", "at least 0"),
        ({"resume": {"output_token_ids": [258]}}, "resume.output_token_ids", "0 to 257"),
        ({"resume": {}, "use_beam_search": True}, "resume", "use_beam_search"),
        ({"resume": {"finished": True}}, "resume.finished", "stream to be true"),
    ],
)
async def test_a_bad_field_of_a_completion_is_named(server, fields, param, words):
    answer = await server.post("/v1/completions", {"prompt": "hi", **fields})
    error = error_of(answer, 400)
    assert error["param"] == param
    assert words in error["message"]
    assert len(error["message"]) < 200
    assert error["type"] == "invalid_request_error"
    assert server.core.requests == []


@pytest.mark.slow
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
        ({"tools": [{"type": "function"}]}, "tools[0]"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"audio": {"voice": "x"}}, "audio"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"chat_template": "{{ 1 }}"}, "chat_template"),
        ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice"),
        ({"echo": True}, "echo"),
    ],
)
async def test_a_bad_field_of_a_chat_is_named(server, fields, param):
    error = error_of(await server.post("/v1/chat/completions", {**CHAT, **fields}), 400)
    assert error["param"] == param
    assert server.core.requests == []


async def test_a_chat_s_name_of_a_field_is_not_put_into_a_flag(server):
    fields = {"logprobs": True, "top_logprobs": 21}
    error = error_of(await server.post("/v1/chat/completions", {**CHAT, **fields}), 400)
    assert "top_logprobs must be between 0 and 20" in error["message"]
    assert "--max-logprobs raises" in error["message"]


async def test_the_templates_own_words_come_back(server):
    chat = {"messages": [{"role": "user", "content": "refuse"}]}
    error = error_of(await server.post("/v1/chat/completions", chat), 400)
    assert "I refuse." in error["message"]


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


@pytest.mark.parametrize("priority", [2**31 - 1, -(2**31 - 1)])
async def test_the_largest_priorities_are_taken(server, priority):
    answer = await server.post("/v1/completions", {"prompt": "hi", "priority": priority})
    assert answer.status_code == 200
    assert server.core.requests[0].priority == priority
