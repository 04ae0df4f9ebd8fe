"""Parts of manifests that an API server does not keep."""

from __future__ import annotations

from collections import OrderedDict

import structlog

from kvasir.kube.objects import Object
from kvasir_operator.controller.drift import first_difference
from kvasir_operator.objects import short_hash

_MAX_OBJECTS = 4096
"""Objects remembered; one that is forgotten costs a write."""

_log = structlog.get_logger("kvasir_operator.controller.left_out")


class LeftOut:
    """Memory of objects that are not as they were applied.

    An API server drops fields whose feature is off, such as a pod's resourceClaims before dynamic
    resource allocation, and admission changes others. Such an object never equals its manifest,
    and applying it again and again would change nothing.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[str, str]] = OrderedDict()

    def note(self, wanted: Object, answer: Object) -> None:
        """Remember what became of a manifest; log a part that is missing, once an object."""
        uid = answer["metadata"]["uid"]
        known = self._known.pop(uid, None)
        path = first_difference(wanted, answer)
        if not path:
            return
        if known is None:
            metadata = answer["metadata"]
            _log.warning(
                "the API server did not keep a part of what was applied",
                kind=wanted["kind"],
                name=metadata["name"],
                field=path,
                namespace=metadata.get("namespace"),
            )
        self._known[uid] = (short_hash(wanted, 16), _content(wanted, answer))
        while len(self._known) > _MAX_OBJECTS:
            self._known.popitem(last=False)

    def explains(self, wanted: Object, live: Object) -> bool:
        """Tell if a live object is what the API server made of this manifest, unchanged since."""
        known = self._known.get(live["metadata"]["uid"])
        return known == (short_hash(wanted, 16), _content(wanted, live)) if known else False


def _content(wanted: Object, it: Object) -> str:
    """Hash what an apply could change of an object, but for what others annotate it with."""
    metadata = it["metadata"]
    ours = {
        field: {
            key: (metadata.get(field) or {}).get(key) for key in wanted["metadata"].get(field) or ()
        }
        for field in ("labels", "annotations")
    }
    rest = {key: value for key, value in it.items() if key not in ("metadata", "status")}
    return short_hash({**rest, "metadata": ours}, 16)
