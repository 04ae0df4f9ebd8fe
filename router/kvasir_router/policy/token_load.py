"""What replicas have to do, in prompt tokens."""

import time
from collections.abc import Sequence

from kvasir_router.fleet.replica import Replica
from kvasir_router.fleet.replica_load import STALE_SECONDS

DECODE_WEIGHT = 0.05
"""Prompt tokens that a token held in the KV cache counts for. Alone it would cost more: read again
in 200 steps, 128 KiB at 4.3 TB/s take 6 us, a prompt token's computing takes 24 us (Llama-3.1-8B on
one H200). But held tokens are work wherever they are, and a missed hit is work added to the fleet.
In a simulated fleet (8 replicas, 150 prefixes of 6,000 tokens, 73 % of the KV cache, 15 requests a
second) weights of 0.02 to 0.1 do alike; with 1.0 the cached part of the prompts is 0.51 instead of
0.81, and the 90th percentile of the time to first token 0.86 s instead of 0.11 s."""
REQUEST_TOKENS = 512
"""Minimum tokens assumed for an in-flight request that no report covers yet."""
MIN_LOAD_TOKENS = 8192
"""Loads up to this are all alike as far as affinity goes: a step's worth of prompt."""
BARRIER_TOKENS = 1500
"""0.15 s (see below) at 10,000 prompt tokens a second."""
STALE_TOKENS = 262_144
"""More than any other that a replica is taken for whose reports are overdue: as much as a missed
prompt of 64 K tokens weighs (kv_aware.py)."""

_FULL = 0.9
"""Where the barrier ends: beyond, replicas that are all full differ by chance alone, and a
difference larger than what a hit saves would end all affinity when it is needed most."""
_REQUEST_WEIGHT = DECODE_WEIGHT * REQUEST_TOKENS


def token_loads(replicas: Sequence[Replica]) -> list[float]:
    """The load of each replica:

        prefill + DECODE_WEIGHT * held + BARRIER_TOKENS * k / (1 - k)

    prefill: prompt tokens in flight that are not computed yet, with this router's own of which no
    report tells yet; held: tokens in the KV cache, and at least REQUEST_TOKENS for each request in
    flight, so that requests which hit the cache count before a report tells of them; k: the part of
    the KV cache that requests hold, at most 0.9. The last term is smg's barrier, 0.15 k / (1 - k)
    seconds, which grows as requests come near being preempted.

    A replica whose reports are overdue is taken for more loaded than any other.
    """
    now = time.monotonic()
    loads: list[float] = []
    stale = []
    for replica in replicas:
        load = replica.load
        report = load.report
        if load.report_every and (report is None or now - report.at > STALE_SECONDS) and load.stale:
            stale.append(len(loads))
            loads.append(0.0)
        elif report is None:
            loads.append(load.credit + _REQUEST_WEIGHT * replica.in_flight)
        else:
            held = replica.in_flight * REQUEST_TOKENS
            reported = report.kv_usage * load.kv_capacity
            used = report.kv_usage if report.kv_usage < _FULL else _FULL
            # load.prefill_tokens; it looks at the clock, which is too slow for each of many
            prefill = report.inflight_tokens + load.given
            loads.append(
                (prefill if prefill > load.credit else load.credit)
                + DECODE_WEIGHT * (reported if reported > held else held)
                + BARRIER_TOKENS * used / (1.0 - used)
            )
    if stale:
        most = max(loads)
        for at in stale:
            own = replicas[at].load.credit + _REQUEST_WEIGHT * replicas[at].in_flight
            loads[at] = max(most, own) + STALE_TOKENS
    return loads
