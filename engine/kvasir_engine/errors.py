"""The one kind of error that is the user's to mend."""

from __future__ import annotations


class UserError(ValueError):
    """Settings or a model that cannot work; one sentence says what to change.

    A command ends with status 2 and the sentence alone. Anything else is a defect or the
    machine's: it ends with status 1, and its traceback is logged.
    """
