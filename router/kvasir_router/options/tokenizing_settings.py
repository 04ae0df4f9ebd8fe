"""What can be set on tokenising."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenizingSettings:
    """How prompts are tokenised, for models with a tokenizer."""

    processes: int = 1
    deadline: float = 0.005
    """Maximum seconds a choice waits for tokens; 0 = never wait, later requests profit."""
