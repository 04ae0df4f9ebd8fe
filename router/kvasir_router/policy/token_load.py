"""Load of replicas in prompt tokens."""

import time
from collections.abc import Sequence

from kvasir_router.fleet.replica import Replica
from kvasir_router.fleet.replica_load import STALE_SECONDS

REQUEST_TOKENS = 512
"""Minimum tokens assumed for an in-flight request that no report covers yet."""
STALE_TOKENS = 262_144
"""Tokens added to the largest load for a replica whose reports are overdue: as much as a missed
prompt of 64 K tokens weighs (kv_aware.py)."""

_FULL = 0.9
"""Use of the KV cache at which the barrier ends. Beyond it, replicas that are all full differ by
chance alone, and a difference larger than what a hit saves would end all affinity when it is needed
most."""


def token_loads(
    replicas: Sequence[Replica], decode_weight: float, barrier_tokens: float
) -> list[float]:
    """Return the load of each replica:

        prefill + decode_weight * held + barrier_tokens * k / (1 - k)

    prefill: prompt tokens in flight that are not computed yet, with this router's own of which no
    report tells yet; held: tokens in the KV cache, and at least REQUEST_TOKENS for each request in
    flight, so that requests which hit the cache count before a report tells of them; k: the part of
    the KV cache that requests hold, at most 0.9. The last term is smg's barrier, 0.15 k / (1 - k)
    seconds, which grows as requests come near being preempted.

    A replica whose reports are overdue is taken for more loaded than any other.
    """
    now = time.monotonic()
    request_weight = decode_weight * REQUEST_TOKENS
    loads: list[float] = []
    stale = []
    for replica in replicas:
        load = replica.load
        report = load.report
        if load.report_every and (report is None or now - report.at > STALE_SECONDS) and load.stale:
            stale.append(len(loads))
            loads.append(0.0)
        elif report is None:
            loads.append(load.credit + request_weight * replica.in_flight)
        else:
            held = replica.in_flight * REQUEST_TOKENS
            reported = report.kv_usage * load.kv_capacity
            used = report.kv_usage if report.kv_usage < _FULL else _FULL
            # load.prefill_tokens; it looks at the clock, which is too slow for each of many
            prefill = report.inflight_tokens + load.given
            loads.append(
                (prefill if prefill > load.credit else load.credit)
                + decode_weight * (reported if reported > held else held)
                + barrier_tokens * used / (1.0 - used)
            )
    if stale:
        most = max(loads)
        for at in stale:
            own = replicas[at].load.credit + request_weight * replicas[at].in_flight
            loads[at] = max(most, own) + STALE_TOKENS
    return loads
