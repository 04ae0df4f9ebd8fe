"""Error of a model that cannot be loaded."""

from __future__ import annotations

from kvasir_engine.errors import UserError


class ModelLoadError(UserError):
    """A model cannot be found or loaded; the message says what is wrong and what to do."""
