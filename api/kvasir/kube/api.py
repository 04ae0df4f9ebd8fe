"""Paths of the Kubernetes API, and its errors."""

from __future__ import annotations

from dataclasses import dataclass


class AccessError(Exception):
    """No cluster can be reached; one sentence on why and what to do."""


class ApiError(Exception):
    """The API server refused; `status` is HTTP's, 0 when it was not reached."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason

    @property
    def is_transient(self) -> bool:
        """True if the same request may succeed later though nobody changes anything."""
        if "field not declared in schema" in str(self):
            return False  # what an apply has too much is answered with 500
        return self.status in (0, 401, 408, 409, 429) or self.status >= 500


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of objects, and where the API has them."""

    api_version: str
    plural: str
    namespaced: bool = True

    def path(self, namespace: str | None = None, name: str | None = None, part: str = "") -> str:
        """Return the path of one object, of its subresource `part`, or of the list in `namespace`
        or everywhere."""
        prefix = "/apis" if "/" in self.api_version else "/api"
        steps = [prefix, self.api_version]
        if namespace is not None and self.namespaced:
            steps += ["namespaces", namespace]
        steps.append(self.plural)
        steps += [step for step in (name, part) if step]
        return "/".join(steps)
