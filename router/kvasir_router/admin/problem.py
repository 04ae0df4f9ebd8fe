"""Refusal of what was asked for on the admin port."""

from kvasir_router.admin.audit_log import ActionRefusedError


class ProblemError(ActionRefusedError):
    """An answer other than what was asked for: a status, a sentence and a code."""

    def __init__(self, status: int, message: str, code: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
