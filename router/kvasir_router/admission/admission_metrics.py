"""Metrics of admission: tenants, keys and those who wait. Tenants come from the key file and access
tokens, and at most `MAX_TENANTS` of them have series of their own."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from prometheus_client.core import Metric

from kvasir_router.admission.access_tokens.token_source import TokenSource
from kvasir_router.admission.admission import OTHERS, Admission
from kvasir_router.admission.request_queue import RequestQueue
from kvasir_router.fleet.fleet import Fleet
from kvasir_router.telemetry.router_metrics import Metrics, counter, gauge

MAX_TENANTS = 1000
MAX_KEYS = 1000


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
        self.keys: dict[tuple[str, str], list[int]] = {}
        """Prompt and completion tokens by key and tenant."""

        self.spent: Callable[[str, str, str, int, int, int], None] | None = None
        """Told of each request's key, tenant, model, prompt, cached and completion tokens."""

    def used_by_key(
        self, key: str, tenant: str, model: str, prompt: int, cached: int, output: int
    ) -> None:
        """A request with this key ended; beyond MAX_KEYS keys are counted together."""
        use = self.keys.get((key, tenant))
        if use is None:
            name = (key, tenant) if len(self.keys) < MAX_KEYS else (OTHERS, OTHERS)
            use = self.keys.setdefault(name, [0, 0])
        use[0] += prompt
        use[1] += output
        if self.spent is not None:
            self.spent(key, tenant, model, prompt, cached, output)

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


def queue_families(fleet: Fleet, metrics: Metrics, queue: RequestQueue) -> Iterator[Metric]:
    """Yield what waits, and the tokens and refusals of each model."""
    waiting = {model.name: queue.waiting(model) for model in fleet.models.values()}
    yield gauge("waiting_requests", "Requests that wait for a replica.", waiting, "model")
    numbers = {name: metrics.models[name] for name in fleet.models if name in metrics.models}
    tokens = {
        name: {
            "prompt": each.prompt_tokens,
            "cached": each.cached_tokens,
            "completion": each.completion_tokens,
        }
        for name, each in numbers.items()
    }
    text = "Tokens of requests, as engines count them, by kind."
    yield counter("tokens", text, tokens, "model", "kind")
    refused = {name: each.refusals for name, each in numbers.items()}
    text = "Requests that waited in vain."
    yield counter("queue_refusals", text, refused, "model", "reason")


def key_families(admission: Admission, meter: TenantMeter) -> Iterator[Metric]:
    """Yield what tenants use; nothing where everybody may use everything."""
    if admission.is_open:
        return
    refused: Counter[tuple[str, str]] = Counter()
    for (tenant, reason), count in admission.refusals.items():
        refused[meter.label(tenant), reason] += count
    text = "Requests refused for their key, by reason."
    yield counter("admission_refusals", text, refused, "tenant", "reason")
    requests = {tenant: use.codes for tenant, use in meter.tenants.items()}
    yield counter("tenant_requests", "Requests of a tenant.", requests, "tenant", "code")
    tokens = {
        tenant: {"prompt": use.prompt_tokens, "completion": use.completion_tokens}
        for tenant, use in meter.tenants.items()
        if use.codes
    }
    yield counter("tenant_tokens", "Tokens that a tenant is charged.", tokens, "tenant", "kind")
    by_key = {key: {"prompt": use[0], "completion": use[1]} for key, use in meter.keys.items()}
    text = "Tokens that a key, or a tenant's access tokens, are charged."
    yield counter("key_tokens", text, by_key, "key", "tenant", "kind")
    if admission.keyring is not None:
        text = "Times the key file was read, by result."
        yield counter("key_file_reads", text, admission.reads, "result")
        yield gauge("api_keys", "API keys in use.", len(admission.keyring))
    if admission.tokens is not None:
        yield from _token_families(admission.tokens)


def _token_families(tokens: TokenSource) -> Iterator[Metric]:
    yield counter("token_refusals", "Access tokens refused, by reason.", tokens.refusals, "reason")
    text = "Times an issuer's keys were fetched, by result."
    yield counter("issuer_fetches", text, tokens.fetches, "issuer", "result")
    yield gauge("issuer_keys", "Keys that an issuer signs with.", tokens.key_counts(), "issuer")
