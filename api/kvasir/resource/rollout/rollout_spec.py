"""`spec.rollout`: the way of a new revision to all requests."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from kvasir.resource.strict_model import StrictModel, rule, rules

_ONE_MATCH = "a match has either header or keyId; give one of them"
_NOBODY = "a step needs a weight above 0 or matches; give one of them"

HeaderName = Annotated[
    str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")
]
_Increase = Annotated[float, Field(ge=0.04, le=10, allow_inf_nan=False)]
_Value = Annotated[str, Field(min_length=1, max_length=256)]


class HeaderMatch(StrictModel):
    """Header of a request."""

    name: HeaderName
    """Name, in any case; Authorization is not looked at, since keyId is for keys."""

    value: _Value
    """Value, to the letter."""


class CanaryMatch(StrictModel):
    """Requests that go to the canary whatever its weight is."""

    model_config = rules(rule("has(self.header) != has(self.keyId)", _ONE_MATCH))

    header: HeaderMatch | None = None
    """Header that they have."""

    key_id: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """Id of the API key that they come with, as the routers' file of keys has it."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.header is None) == (self.key_id is None):
            raise ValueError(_ONE_MATCH)
        return self


class CanaryPause(StrictModel):
    """Wait at the end of a step."""

    seconds: Annotated[int, Field(ge=1, le=604800)] | None = None
    """Seconds that the step takes at least; without them it waits for promotion."""


class CanaryStep(StrictModel):
    """One step: who gets the canary, and for how long."""

    model_config = rules(rule("self.weight > 0 || size(self.matches) > 0", _NOBODY))

    weight: Annotated[int, Field(ge=0, le=99)] = 0
    """Share of the requests that go to the canary, in percent; after the last step it gets all."""

    matches: Annotated[list[CanaryMatch], Field(max_length=8)] = []
    """Requests that go to it beside those; the first match that fits decides."""

    pause: CanaryPause | None = None
    """Wait though the analysis has passed."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.weight and not self.matches:
            raise ValueError(_NOBODY)
        return self


class LatencyCheck(StrictModel):
    """Latency of the canary's streams beside those of the stable revision."""

    percentile: Annotated[int, Field(ge=50, le=99)] = 90
    """Percentile that is compared."""

    increase: _Increase
    """Part by which the canary's may be above the stable revision's: 0.15 is 15 %."""


class TTFTCheck(LatencyCheck):
    """Time to the first token. A canary's prefix cache begins empty, which the bound allows for."""

    increase: _Increase = 0.5
    """Part by which the canary's may be above the stable revision's: 0.5 is 50 %."""


class ITLCheck(LatencyCheck):
    """Time between tokens, the mean of each stream."""

    increase: _Increase = 0.15
    """Part by which the canary's may be above the stable revision's: 0.15 is 15 %."""


class CanaryAnalysis(StrictModel):
    """Comparison of the canary with the stable revision, over the same time. What is beyond a bound
    by more than chance explains rolls the canary back; docs/canary.md says by which tests."""

    min_samples: Annotated[int, Field(ge=50, le=100000)] = 500
    """Requests that each of the two revisions has to have answered before a step passes."""

    min_seconds: Annotated[int, Field(ge=0, le=86400)] = 60
    """Seconds that a step takes at least."""

    max_seconds: Annotated[int, Field(ge=60, le=604800)] = 3600
    """Seconds after which a step that has not passed is rolled back. Pauses of a step, and those
    by rollout.paused, do not count."""

    error_increase: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.01
    """Part of the requests that may fail above the stable revision's: 0.01 is one of a hundred."""

    ttft: TTFTCheck = TTFTCheck()
    """Time to the first token."""

    itl: ITLCheck = ITLCheck()
    """Time between tokens."""


class Canary(StrictModel):
    """A new revision runs beside the stable one and gets a part of the requests, step by step."""

    steps: Annotated[list[CanaryStep], Field(min_length=1, max_length=16)]
    """The steps, in their order; after the last one every replica becomes the new revision."""

    analysis: CanaryAnalysis = CanaryAnalysis()
    """Comparison with the stable revision."""


class Rollout(StrictModel):
    """The way of a new revision to all requests, on a cluster."""

    canary: Canary | None = None
    """Try it on a part of the requests first; by default all replicas are replaced at once, as
    rolloutStrategy says, which is also what happens when nothing is served yet."""

    paused: bool = False
    """Stay at the step that a canary has reached; a bad one is rolled back all the same."""
