"""Names that LLMDeployments are served under before an operator has claimed them.

There is one such time: the upgrade of a release that has no claims. Routers may be of the new
version before its operator has claimed what is running, and must go on serving it. An LLMDeployment
of that release shows in its status that an operator has judged it, and has no class, which an
operator that makes claims writes before anything else. Users cannot write a status.
"""

from collections.abc import Container, Iterable, Mapping

from kvasir.resource.ownership.name_claims import Holder
from kvasir_router.discovery.kubernetes_objects import LLMDeployment


def unclaimed_names(
    deployments: Iterable[LLMDeployment],
    claimed: Container[str],
    class_name: str,
    before: Mapping[str, Holder],
) -> dict[str, Holder]:
    """Return the LLMDeployment that each name is served by although nobody has claimed it; `before`
    is what this returned last.

    Of several, one that was accepted has a name, then the oldest: the operator will claim in this
    order. When an LLMDeployment has been taken, its claims may come later, in another watch: until
    then it stays.
    """
    found: dict[str, Holder] = {}
    for each in sorted(deployments, key=_rank):
        if each.verdict is None or each.spec.class_name not in (None, class_name):
            continue
        holder = Holder(each.metadata.namespace, each.metadata.name)
        taken = each.status.class_name
        for name in each.names:
            stays = taken == class_name and before.get(name) == holder
            if name not in claimed and (not taken or stays):
                found.setdefault(name, holder)
    return found


def _rank(deployment: LLMDeployment) -> tuple[bool, tuple[str, str]]:
    return deployment.verdict != "True", deployment.age
