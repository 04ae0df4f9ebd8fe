"""What can be set on tokenising."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenizingSettings:
    """How prompts are tokenised, for models with a tokenizer."""

    processes: int = 1
    deadline: float = 0.005
    """Seconds that a choice waits at most; 0 = never: what is learned serves later requests."""
