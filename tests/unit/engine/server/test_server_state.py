from __future__ import annotations

import pytest

from kvasir_engine.server.openai.api_error import ApiError
from kvasir_engine.server.reports import reporter as reporter_module


async def test_requests_are_made_only_for_the_served_names_once_ready(start_server, until):
    server = await start_server(ready=False)
    state = server.app.state.server
    with pytest.raises(ApiError, match="still loading"):
        state.intake("tiny")
    with pytest.raises(ApiError, match="has 'tiny', 'alias'") as caught:
        state.intake("gpt-9")
    assert caught.value.status == 404
    server.core.become_ready()
    await until(lambda: state.lifecycle.ready)
    assert state.intake("alias") is state.intake(None)
    assert state.intake(None).max_model_len == 512


async def test_dropped_prompt_reports_are_in_the_metrics(server, monkeypatch):
    monkeypatch.setattr(reporter_module, "MAX_QUEUED_PROMPTS", 0)
    state = server.app.state.server
    reporter = state.make_reporter(await server.core.wait_ready())
    assert state.prompt_reporter is reporter
    with reporter.subscribe():
        for _ in range(2):
            await server.post("/v1/completions", {"prompt": "a", "max_tokens": 1})
    text = (await server.get("/metrics")).text
    assert 'kvasir_prompt_reports_dropped_total{engine="0",model_name="tiny"} 2.0' in text
