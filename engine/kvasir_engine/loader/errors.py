"""What a model that cannot be loaded raises."""

from __future__ import annotations


class ModelLoadError(ValueError):
    """A model cannot be found or loaded; the message says what is wrong and what to do."""
