"""`spec.autoscaling`: replicas by what routers see."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from kvasir.resource.strict_model import StrictModel, rule, rules


class Autoscaling(StrictModel):
    """Bounds of replicas, and what they follow. A KEDA ScaledObject is made of it where KEDA is
    installed, else a HorizontalPodAutoscaler on the external metrics that the operator can serve;
    both change `spec.replicas` by the scale subresource. What was set last stays when this is taken
    out again."""

    model_config = rules(
        rule(
            "self.minReplicas <= self.maxReplicas",
            "minReplicas is above maxReplicas; lower it or raise maxReplicas",
        )
    )

    min_replicas: Annotated[int, Field(ge=1, le=64)] = 1
    """Replicas when there is nothing to do."""

    max_replicas: Annotated[int, Field(ge=1, le=64)]
    """Maximum replicas."""

    metric: Literal["concurrency", "queue", "in_flight_tokens"] = "concurrency"
    """Metric that is shared among replicas: requests running or waiting, requests waiting, or
    prompt tokens that are still to be computed."""

    target: Annotated[int, Field(ge=1, le=1_000_000_000)] = 16
    """Amount of the metric that one replica is meant to take."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.min_replicas > self.max_replicas:
            raise ValueError("minReplicas is above maxReplicas; lower it or raise maxReplicas")
        return self
