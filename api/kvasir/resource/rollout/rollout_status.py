"""`status.rollout`: the state of a canary, from which the operator goes on and routers split."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import ConfigDict, Field

from kvasir.resource.rollout.rollout_spec import CanaryMatch
from kvasir.resource.strict_model import StrictModel

Count = Annotated[int, Field(ge=0)]
_Name = Annotated[str, Field(max_length=128)]
_Seconds = Annotated[float, Field(ge=0)]
_Ratio = Annotated[float, Field(ge=0, le=1)]
_Time = Annotated[str, Field(max_length=64, json_schema_extra={"format": "date-time"})]

COMMAND = "kvasir.dev/rollout"
"""Annotation by which people act on a canary: a verb and the id of what it is about, as in
`promote 5f0c1d2e3a.1.2`. The id is `status.rollout.id`: one that is past is without effect, so the
annotation may stay, and nothing has to take it back."""
PAUSED = "kvasir.dev/rollout-paused"
"""Annotation that stands for spec.rollout.paused where it is "true"."""


class RolloutCommand(StrEnum):
    """Verbs of the annotation COMMAND."""

    PROMOTE = "promote"
    """End this step, whatever the analysis lacks yet."""
    PROMOTE_ALL = "promote-all"
    """Skip all steps that are left."""
    ABORT = "abort"
    """Roll back."""
    RETRY = "retry"
    """Begin again with the revision that was rolled back."""


class RolloutPhase(StrEnum):
    """Phase of a canary."""

    STARTING = "Starting"
    """Pods of the canary start, as many as the step needs."""
    ANALYSING = "Analysing"
    """The canary gets the step's requests."""
    PAUSED = "Paused"
    """The same, and nothing goes on until somebody says so, or the pause is over."""
    PROMOTING = "Promoting"
    """All replicas become the new revision; the canary's pods serve until they have."""
    PROMOTED = "Promoted"
    """The new revision is the stable one."""
    ROLLED_BACK = "RolledBack"
    """The stable revision has all requests; the new one is not tried again by itself."""


class _Written(StrictModel):
    """Base of what the operator writes: made by the fields' own names, read by the resource's."""

    model_config = ConfigDict(populate_by_name=True)


class RevisionFigures(_Written):
    """Samples of one revision since the step began; with many, of its last minutes."""

    requests: Count = 0
    """Attempts that were counted."""

    error_ratio: _Ratio | None = None
    """Part of them that failed by the replica's fault."""

    refused_ratio: _Ratio | None = None
    """Part of them that were answered with a 4xx other than 429."""

    ttft_seconds: _Seconds | None = None
    """Time to the first token at the percentile of the analysis."""

    itl_seconds: _Seconds | None = None
    """Time between tokens at the percentile of the analysis."""


class SamplesStatus(_Written):
    """Samples of both revisions over the same time, from all routers."""

    canary: RevisionFigures = RevisionFigures()
    """The new revision."""

    stable: RevisionFigures = RevisionFigures()
    """The stable one."""


class SplitStatus(_Written):
    """Share of the requests that routers send to the canary now."""

    id: _Name
    """Id that routers count samples under; each step has another one."""

    revision: _Name
    """Revision of the pods that are the canary."""

    weight: Annotated[int, Field(ge=0, le=99)] | None = None
    """Share in percent; none = every replica alike, while the canary is promoted."""

    matches: Annotated[list[CanaryMatch], Field(max_length=8)] = []
    """Requests that go to the canary beside those."""

    min_samples: Count = 500
    """Samples after which routers may forget old ones."""


class RolloutStatus(_Written):
    """State of a canary."""

    phase: Annotated[str, Field(max_length=32)]
    """Starting, Analysing, Paused, Promoting, Promoted or RolledBack."""

    id: _Name
    """Id for the annotation kvasir.dev/rollout: revision, attempt and step."""

    stable_revision: _Name = ""
    """Revision that the other replicas have."""

    canary_revision: _Name
    """Revision that is tried."""

    attempt: Annotated[int, Field(ge=1)] = 1
    """1, and one more for each retry."""

    step: Annotated[int, Field(ge=1)] = 1
    """Step, the first one is 1."""

    steps: Annotated[int, Field(ge=1)] = 1
    """Number of steps."""

    weight: Annotated[int, Field(ge=0, le=100)] = 0
    """Share of the requests that the canary is given now, in percent."""

    replicas: Count = 0
    """Pods of the canary that the step needs."""

    started_at: _Time
    """Time at which this attempt began."""

    step_started_at: _Time | None = None
    """Time from which the step's seconds count; none while its pods start."""

    split: SplitStatus | None = None
    """Split that routers follow; none = no request goes to the canary."""

    samples: SamplesStatus | None = None
    """Samples that the last verdict is about."""

    reason: Annotated[str, Field(max_length=64)] = ""
    """The verdict as one word, as in the condition CanaryHealthy."""

    message: Annotated[str, Field(max_length=1024)] = ""
    """The verdict as a sentence."""
