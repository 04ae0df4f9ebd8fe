"""Log lines of requests, for --enable-log-requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from kvasir.logs import get_logger
from kvasir_engine.sampling_params import SamplingParams
from kvasir_engine.server.generation.run import PromptRun

log = get_logger(__name__)

_DEFAULTS = SamplingParams()
_LISTS = (
    *("stop", "stop_token_ids", "bad_words", "bad_words_token_ids", "allowed_token_ids"),
    "logit_bias",
)
"""Parameters that a line has the lengths of: they may be long, and hold a user's words."""


@dataclass(frozen=True, slots=True)
class RequestLog:
    """Log requests, one line a prompt."""

    enabled: bool
    max_prompt: int
    """Most characters, or ids, of a prompt; 0 = none."""

    def write(self, runs: Sequence[PromptRun]) -> None:
        """Log what goes to the core: no keys and headers, of a prompt only what was asked for."""
        if not self.enabled:
            return
        for run in runs:
            request = run.request
            line: dict[str, Any] = {
                "request_id": request.request_id,
                "choice": run.first_choice,
                "prompt_tokens": request.num_prompt_tokens,
                "resumed_tokens": run.num_resumed_tokens,
                "priority": request.priority,
                "params": shown_params(request.params),
            }
            if self.max_prompt:
                text, most = run.prompt_text, self.max_prompt
                line["prompt"] = text[:most] if text else list(request.prompt_token_ids[:most])
            log.info("request", **line)


def shown_params(params: SamplingParams) -> dict[str, Any]:
    """Return the parameters that are not the default; of lists their lengths."""
    shown: dict[str, Any] = {}
    for each in fields(params):
        value = getattr(params, each.name)
        if value == getattr(_DEFAULTS, each.name):
            continue
        if each.name in _LISTS:
            value = f"{len(value)} entries"
        shown[each.name] = value
    return shown
