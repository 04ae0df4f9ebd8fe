"""Metrics of admission: tenants, keys and those who wait. Tenants come from the key file, and at
most `MAX_TENANTS` of them have series of their own."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from kvasir_router.admission.admission import Admission
from kvasir_router.admission.request_queue import RequestQueue
from kvasir_router.fleet.fleet import Fleet
from kvasir_router.telemetry.router_metrics import Metrics, counter, gauge

MAX_TENANTS = 1000
OTHERS = "(others)"


@dataclass(slots=True, eq=False)
class TenantUse:
    """Numbers of one tenant."""

    codes: Counter[int] = field(default_factory=Counter)
    """Requests by status."""
    prompt_tokens: int = 0
    completion_tokens: int = 0


class TenantMeter:
    """Meter of what tenants use."""

    def __init__(self) -> None:
        self.tenants: dict[str, TenantUse] = {}

    def used(self, tenant: str, status: int, prompt: int, output: int) -> None:
        """A request of the tenant ended."""
        use = self.tenants.get(tenant)
        if use is None:
            use = self.tenants.setdefault(self.label(tenant), TenantUse())
        use.codes[status] += 1
        use.prompt_tokens += prompt
        use.completion_tokens += output

    def label(self, tenant: str) -> str:
        """The tenant, or OTHERS once there are too many."""
        if tenant not in self.tenants:
            if len(self.tenants) >= MAX_TENANTS:
                return OTHERS
            self.tenants[tenant] = TenantUse()
        return tenant


class AdmissionCollector(Collector):
    """Metric families of queue, keys and tenants, made at each scrape.

    `queue` returns the queue: the process that gathers the workers' numbers replaces its own.
    """

    def __init__(
        self,
        fleet: Fleet,
        metrics: Metrics,
        admission: Admission,
        tenants: TenantMeter,
        queue: Callable[[], RequestQueue],
    ) -> None:
        self._fleet = fleet
        self._metrics = metrics
        self._admission = admission
        self._tenants = tenants
        self._queue = queue

    def collect(self) -> Iterator[Metric]:
        """Collector.collect."""
        waiting = gauge("waiting_requests", "Requests that wait for a replica.", "model")
        tokens = counter(
            "tokens", "Tokens of requests, as engines count them, by kind.", "model", "kind"
        )
        refused = counter("queue_refusals", "Requests that waited in vain.", "model", "reason")
        for model in self._fleet.models.values():
            waiting.add_metric((model.name,), self._queue().waiting(model))
            numbers = self._metrics.models.get(model.name)
            if numbers is None:
                continue
            for kind in ("prompt", "cached", "completion"):
                tokens.add_metric((model.name, kind), getattr(numbers, f"{kind}_tokens"))
            for reason, count in numbers.refusals.items():
                refused.add_metric((model.name, reason), count)
        yield from (waiting, tokens, refused)
        if self._admission.keyring is not None:
            yield from self._keys()

    def _keys(self) -> Iterator[Metric]:
        admission, meter = self._admission, self._tenants
        refusals = counter(
            "admission_refusals", "Requests refused for their key, by reason.", "tenant", "reason"
        )
        merged: Counter[tuple[str, str]] = Counter()
        for (tenant, reason), count in admission.refusals.items():
            merged[meter.label(tenant), reason] += count
        for labels, count in merged.items():
            refusals.add_metric(labels, count)
        requests = counter("tenant_requests", "Requests of a tenant.", "tenant", "code")
        tokens = counter("tenant_tokens", "Tokens that a tenant is charged.", "tenant", "kind")
        for tenant, use in meter.tenants.items():
            for code, count in use.codes.items():
                requests.add_metric((tenant, str(code)), count)
            if use.codes:
                tokens.add_metric((tenant, "prompt"), use.prompt_tokens)
                tokens.add_metric((tenant, "completion"), use.completion_tokens)
        reads = counter("key_file_reads", "Times the key file was read, by result.", "result")
        for result, count in admission.reads.items():
            reads.add_metric((result,), count)
        keys = gauge("api_keys", "API keys in use.")
        keys.add_metric((), len(admission.keyring or ()))
        yield from (refusals, requests, tokens, reads, keys)
