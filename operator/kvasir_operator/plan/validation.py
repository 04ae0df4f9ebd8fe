"""Step 1: does the resource make sense here, and is everything there that it names?"""

from __future__ import annotations

from collections.abc import Callable

from kvasir.resource.deployment_status import ConditionType, Reason
from kvasir_operator.plan.draft import Draft
from kvasir_operator.spec_facts import device_of, image_of, secrets_of

Problem = tuple[Reason, str]


def accept(draft: Draft) -> None:
    """Sets Accepted; a problem keeps engines from being started or changed."""
    for check in _CHECKS:
        if (problem := check(draft)) is not None:
            draft.blocked = True
            draft.conditions.set(ConditionType.ACCEPTED, False, *problem)
            return
    if draft.deployment.spec.paused:
        message = "spec.paused is set: nothing but the status is changed."
        draft.conditions.set(ConditionType.ACCEPTED, True, Reason.PAUSED, message)
    elif draft.observed.crd_lacks:
        message = (
            "The installed CustomResourceDefinition is older than the operator and lacks"
            f" {', '.join(draft.observed.crd_lacks[:8])}; upgrade the chart with crds.enabled."
        )
        draft.conditions.set(ConditionType.ACCEPTED, True, Reason.CRD_OUTDATED, message)
    else:
        draft.conditions.set(ConditionType.ACCEPTED, True, Reason.ACCEPTED)


def _name(draft: Draft) -> Problem | None:
    name = draft.deployment.served_names[0]
    owner = draft.observed.name_owners.get(name)
    if owner is None:
        return None
    return Reason.NAME_CONFLICT, (
        f"Model name {name!r} is served by the older LLMDeployment {owner};"
        " give spec.model.name another value."
    )


def _image(draft: Draft) -> Problem | None:
    if image_of(draft.deployment.spec, draft.settings.images):
        return None
    device = device_of(draft.deployment.spec)
    return Reason.NO_IMAGE, (
        f"The operator has no engine image for device {device} (--image-{device});"
        " set spec.engine.image."
    )


def _secrets(draft: Draft) -> Problem | None:
    for name in sorted(secrets_of(draft.deployment.spec)):
        if draft.observed.secrets.get(name) is None:
            draft.look_again(30.0)  # Secrets are not watched
            return Reason.SECRET_MISSING, (
                f"Secret {name!r} does not exist in namespace {draft.namespace}; create it."
            )
    return None


_CHECKS: tuple[Callable[[Draft], Problem | None], ...] = (_name, _image, _secrets)
