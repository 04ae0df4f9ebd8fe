"""Controllers of replicas: ours, and what others do by their documentation."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

from kvasir.resource.autoscaling_spec import Autoscaling
from kvasir_operator.scaling.load import Load
from kvasir_operator.scaling.model_scaler import ModelScaler
from kvasir_operator.scaling.recommendation import Replicas

MIN_REPLICAS, MAX_REPLICAS = 10, 1000


class Ours:
    """The operator's ModelScaler, the very code."""

    every = 5

    def __init__(self, **wanted: Any) -> None:
        given = Autoscaling.model_validate({"maxReplicas": 1, **wanted})
        bounds = {"min_replicas": MIN_REPLICAS, "max_replicas": MAX_REPLICAS}
        self._wanted = given.model_copy(update=bounds)
        self._scaler = ModelScaler()

    def decide(self, now: float, wanted: int, ready: int, load: Load) -> int:
        """Scaler.decide."""
        replicas = Replicas(wanted, ready)
        found = self._scaler.decide(now, self._wanted, replicas, load).replicas
        if found != wanted:
            self._scaler.changed(now, found - wanted)
        return found


class Hpa:
    """A HorizontalPodAutoscaler with an external metric's average value and the default behaviour.

    https://kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale/#algorithm-details:
    every 15 s ceil(metric / target), nothing within a tolerance of 0.1; upwards at most four or
    twice as many in 15 s; downwards to the most that was asked for in 300 s.
    """

    every = 15
    refresh = 15
    """Seconds for which the metric is kept."""

    def __init__(self, metric: str, target: float, stabilization: float = 300.0) -> None:
        self._metric = metric
        self._target = target
        self._stabilization = stabilization
        self._asked: deque[tuple[float, int]] = deque()
        self._value, self._read = 0.0, -math.inf

    def decide(self, now: float, wanted: int, ready: int, load: Load) -> int:
        """Scaler.decide."""
        if now - self._read >= self.refresh:
            self._value, self._read = getattr(load, self._metric), now
        ratio = self._value / (self._target * wanted)
        asked = wanted if abs(ratio - 1) <= 0.1 else math.ceil(self._value / self._target)
        self._asked.append((now, asked))
        while self._asked[0][0] <= now - self._stabilization:
            self._asked.popleft()
        steady = max(asked, min(wanted, max(each for _, each in self._asked)))
        most = max(wanted + 4, 2 * wanted)
        return max(MIN_REPLICAS, min(steady, most, MAX_REPLICAS))


class Keda(Hpa):
    """KEDA's ScaledObject on the requests that wait: it makes a HorizontalPodAutoscaler.

    The metric is read every 30 s (`pollingInterval`, with `useCachedMetrics`); `cooldownPeriod` of
    300 s is about the last replica alone (https://keda.sh/docs/2.18/reference/scaledobject-spec/).
    """

    refresh = 30

    def __init__(self, target: float) -> None:
        super().__init__("queue", target)
