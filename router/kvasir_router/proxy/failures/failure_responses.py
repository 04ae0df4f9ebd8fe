"""Answers to requests that no replica has answered to the end; in a stream its last event."""

from kvasir_router.fleet.model import Model
from kvasir_router.wire.responses import Answer, bearer_refusal, error


def stopping() -> Answer:
    """Answer when the router does not wait any longer."""
    return error(503, "The router is stopping.", "router_stopping", retry_after=1)


def not_ready(model: Model) -> Answer:
    """Answer when the replicas that were asked failed, and no more may be."""
    message = f"Model `{model.name}` has no ready replica; try again soon."
    return error(503, message, "model_not_ready", retry_after=1)


def no_endpoint(model: Model, *, full: bool) -> Answer:
    """Answer when a gateway can send the request to no replica that has room; `full`: to one that
    serves."""
    if full:
        message = (
            f"All replicas of model `{model.name}` that this gateway may send requests to have all "
            "the requests they may; try again soon."
        )
        return error(429, message, "overloaded", retry_after=1)
    message = (
        f"Model `{model.name}` has no ready replica that this gateway may send requests to: look "
        "at the InferencePool's selector and target port."
    )
    return error(503, message, "model_not_ready", retry_after=1)


def adapter_not_loaded(model: Model, adapter: str) -> Answer:
    """Answer when no replica holds the LoRA adapter that a request names."""
    message = (
        f"No replica of model `{model.name}` has its adapter `{adapter}` loaded; try again soon."
    )
    return error(503, message, "adapter_not_loaded", "model", retry_after=2)


def adapter_is_missing(model: Model, adapter: str) -> bool:
    """Return whether the model is served, and no replica holds the LoRA adapter or is about to
    serve it."""
    return model.ready and not model.holds(adapter)


def waited_in_vain(model: Model, adapter: str, answer: Answer) -> Answer:
    """Return the answer to a request that has waited for too long: the queue's, unless it is an
    adapter that was missing."""
    return adapter_not_loaded(model, adapter) if adapter_is_missing(model, adapter) else answer


def policy_failed(model: Model) -> Answer:
    """Answer when the model's policy raised for this request."""
    message = f"The routing policy of model `{model.name}` failed on this request; see its log."
    return error(500, message, "policy_failed")


def defect() -> Answer:
    """Answer when the router's own code raised for this request."""
    message = "The router failed on this request by a defect of its own; its log has the reason."
    return error(500, message, "internal_error")


def poison() -> Answer:
    """Answer to a request that was in flight at two engine deaths, or is like one that was."""
    message = (
        "Two engines ended while they worked on this request. It and requests like it are refused "
        "for a minute."
    )
    made = error(500, message, "poison_request")
    made.lines = b"x-should-retry: false\r\n"  # OpenAI's clients obey it
    return made


def too_late(seconds: float) -> Answer:
    """Answer when the deadline has passed."""
    message = f"The request was not answered within its time of {seconds:g} s (x-request-timeout)."
    return error(504, message, "deadline_exceeded")


def token_expired() -> Answer:
    """Answer when the access token of a request under way is no longer valid, and its issuer's
    entry says `at_expiry: end`."""
    message = "The access token expired while the request was under way; get a new one."
    return bearer_refusal(401, message, "token_expired", "invalid_token")


def silent(model: Model, replica_id: str, seconds: float) -> Answer:
    """Answer when a replica sent no part of a stream for so long, and no other one can be asked."""
    message = (
        f"Replica {replica_id} of model {model.name} sent no data for {seconds:.0f} s; try again, "
        "with a shorter prompt if it was a long one, or have the router's --first-byte-timeout and "
        "--stream-idle-timeout raised."
    )
    return error(504, message, "replica_timeout", retry_after=1)


def refused_upstream(model: Model, replica_id: str, status: int) -> Answer:
    """Answer when the only server asked, which is not of the fleet, did not take the router's key
    or sent it elsewhere: nothing that its client could mend."""
    what = "refused the router's key" if status in (401, 403) else "redirects to another address"
    message = (
        f"Upstream {replica_id} of model {model.name} {what} (status {status}); whoever runs the "
        "router has to correct its key or URL."
    )
    return error(502, message, "upstream_refused")


def broken_off(model: Model, replica_id: str) -> Answer:
    """Return the error event of a stream that cannot migrate."""
    message = f"Replica {replica_id} of model {model.name} broke off this answer."
    return error(502, message, "replica_failed")
