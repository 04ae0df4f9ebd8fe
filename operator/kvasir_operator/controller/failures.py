"""Failures of an LLMDeployment's reconciles: those that keep coming back are told in its status."""

from __future__ import annotations

from collections.abc import Iterable

from kvasir.kube import ApiError
from kvasir.kube.objects import Object, name_of
from kvasir.resource.deployment_status import Reason
from kvasir_operator.controller.work_queue import Key
from kvasir_operator.plan.failure import Failure

TIMES = 3
WINDOW_SECONDS = 30.0
"""A failure that may pass is told when it was seen TIMES times within this time. The queue's first
delays are much shorter, so that one which does not pass is told after a few seconds."""
TERMINATING = "Terminating"
"""ApiError.reason of an object that cannot be written since it is being deleted."""
_SERVER = (0, 401, 429, 503)
_GARBAGE_COLLECTOR = ("foregroundDeletion", "orphan")


class Failures:
    """Memory of what failed, by LLMDeployment and object."""

    def __init__(self) -> None:
        self._seen: dict[Key, dict[str, list[float]]] = {}
        self._told: dict[Key, frozenset[str]] = {}

    def note(self, key: Key, failures: Iterable[Failure], now: float) -> list[Failure]:
        """Remember the failures of one reconcile at `now` seconds; return those to tell: what will
        not pass at once, the rest when it comes back, and then until it does not."""
        found = list(failures)
        before = self._seen.get(key, {})
        recent = {
            what: [at for at in times if now - at <= WINDOW_SECONDS]
            for what, times in before.items()
        }
        for what in {each.what for each in found}:
            recent[what] = [*recent.get(what, ()), now][-TIMES:]
        known = self._told.get(key, frozenset())
        telling = [
            each
            for each in found
            if not each.passing or each.what in known or len(recent[each.what]) >= TIMES
        ]
        self._seen[key] = {what: times for what, times in recent.items() if times}
        self._told[key] = frozenset(each.what for each in telling)
        if not self._seen[key]:
            self.forget(key)
        return telling

    def forget(self, key: Key) -> None:
        """The LLMDeployment is gone."""
        self._seen.pop(key, None)
        self._told.pop(key, None)


def failed_write(manifest: Object, error: ApiError) -> Failure:
    """Return the failure of a write that the API server answered with `error`."""
    what, words = described(manifest), str(error).rstrip(".")
    if error.reason == TERMINATING:
        return Failure(what, f"{words}.", Reason.DELETION_STUCK, True)
    how = "could not be written" if error.is_transient else "was refused"
    message = f"{what} {how}: {words}."
    return Failure(what, message, Reason.APPLY_FAILED, error.is_transient)


def failed_access(error: ApiError) -> Failure:
    """Return the failure of a reconcile that could not read or write what it needs."""
    words = str(error).rstrip(".")
    return Failure("", f"The API server answered: {words}.", Reason.API_ERROR, True)


def failed_inside(error: Exception) -> Failure:
    """Return the failure of a reconcile that hit a fault of the operator's own."""
    words = f"{type(error).__name__}: {error}".rstrip(".: ")
    message = f"The operator failed on this resource ({words}); its log has the traceback."
    return Failure("", message, Reason.OPERATOR_ERROR, True)


def is_about_the_server(error: ApiError) -> bool:
    """Tell if an error is about the API server as a whole, so that other requests would only meet
    it too."""
    return error.status in _SERVER


def foreign_finalizers(it: Object) -> list[str]:
    """Return an object's finalizers that the garbage collector does not remove by itself."""
    finalizers = it["metadata"].get("finalizers") or ()
    return [each for each in finalizers if each not in _GARBAGE_COLLECTOR]


def still_there(it: Object) -> ApiError:
    """Return the error of an object that is being deleted and is in the way until it is gone."""
    what, since = described(it), it["metadata"].get("deletionTimestamp")
    holding = foreign_finalizers(it)
    why = "waits for what belongs to it"
    if holding:
        why = f"is held by its finalizers {', '.join(holding)}; whoever set them must remove them"
    return ApiError(409, TERMINATING, f"{what} is being deleted since {since} and {why}")


def described(it: Object) -> str:
    """Return an object's kind and name."""
    return f"{it['kind']} {name_of(it)}"
