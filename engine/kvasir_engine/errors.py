"""Errors whose message is all that has to be said; any other is a defect."""

from __future__ import annotations


class UserError(ValueError):
    """Settings or a model that cannot work; one sentence says what to change.

    A command exits with status 2 and the sentence alone. Any other error exits with status 1 and
    logs its traceback.
    """


class FatalError(RuntimeError):
    """The engine cannot go on, for the cause that the message names."""


class DeviceError(FatalError):
    """The device takes no further work: its process ends, and a new one may begin."""
