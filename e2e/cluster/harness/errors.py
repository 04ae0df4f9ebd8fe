"""Errors of the harness: one sentence that says what to do."""

from __future__ import annotations


class HarnessError(RuntimeError):
    """The cluster, or a part of it, cannot be made or used; the message names the remedy."""
