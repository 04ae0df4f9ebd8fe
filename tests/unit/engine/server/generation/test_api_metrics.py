from __future__ import annotations


async def test_metrics_count_what_clients_saw(server):
    await server.post("/v1/completions", {"prompt": "abc", "max_tokens": 5, "n": 2})
    await server.post("/v1/completions", {"prompt": "abcd", "max_tokens": 90, "stop": "quick"})
    await server.get("/nope")
    text = (await server.get("/metrics")).text
    values = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            values[name] = float(value)

    def of(name: str, labels: str = "") -> float:
        return values[f'kvasir_{name}{{engine="0",{labels}model_name="tiny"}}']

    stopped = len("The quick")
    assert of("prompt_tokens_total") == 7
    assert of("generation_tokens_total") == 10 + stopped
    assert of("request_success_total", 'finished_reason="length",') == 2
    assert of("request_success_total", 'finished_reason="stop",') == 1
    assert of("time_to_first_token_seconds_count") == 2
    assert of("inter_token_latency_seconds_count") == 4 + stopped - 1
    assert of("e2e_request_latency_seconds_count") == 2
    assert of("request_time_per_output_token_seconds_count") == 2
    assert of("request_prompt_tokens_sum") == 7
    assert of("request_generation_tokens_sum") == 10 + stopped
    assert of("request_params_n_sum") == 3
    assert of("request_params_max_tokens_sum") == 95
    assert 'handler="other"' in text
    assert "/nope" not in text
