"""Refusal of a form that an output cannot be held to."""

from __future__ import annotations


class ConstraintError(ValueError):
    """A constraint cannot be enforced; the message is a clause that says why."""


NO_TEXT_HAS_IT = "no text has this form"
