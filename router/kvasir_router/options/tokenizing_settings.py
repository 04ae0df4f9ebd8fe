"""Settings of tokenising."""

from dataclasses import dataclass

from kvasir.cli.flags import flag
from kvasir_router.options.router_panels import ENGINES


@dataclass(frozen=True, slots=True)
class TokenizingSettings:
    """Settings of tokenising prompts, for models with a tokenizer."""

    processes: int = flag(
        1,
        "Processes that tokenise prompts of models with a `tokenizer` in the discovery file.",
        ENGINES,
        "tokenizer_processes",
        min=1,
        max=64,
    )
    deadline: float = flag(
        0.005,
        "Maximum seconds a request waits for its prompt to be tokenised; then the approximate "
        "index decides. 0 = it never waits.",
        ENGINES,
        "tokenizer_deadline",
        min=0.0,
        max=1.0,
    )
