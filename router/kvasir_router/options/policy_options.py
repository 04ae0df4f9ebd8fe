"""The options of the routing policies, each policy's as a model of its own."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Weight = Annotated[float, Field(ge=0, le=1_000_000_000, allow_inf_nan=False)]
BlockCount = Annotated[int, Field(ge=65_536, le=1_000_000_000)]
HeaderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")]

MAX_RESIDENT_BLOCKS = 10_000_000
MAX_SENT_BLOCKS = 2_000_000
MAX_TEXT_BLOCKS = 1_000_000


class PolicyOptions(BaseModel):
    """Base of a policy's options: what it has no field for is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class KvAwareOptions(PolicyOptions):
    """Weights of what `kv_aware` adds up for each replica, all in prompt tokens, and bounds of its
    index, for each model and in each process."""

    miss_weight: Weight = 4.0
    """Weight of a token that this request would have to compute, over one that waits already. The
    latter costs time, once; a missed hit is work added to the fleet, room taken from other
    prefixes, and so further misses. On llm-d's capacity work (benchmarks/router_benefit.py, 18
    requests a second on eight replicas) 0.63 of the prompts were cached with a weight of 1, 0.96
    with 4 and a ratio of 2, and 0.97 where each prefix has a replica for good."""

    max_load_ratio: Annotated[float, Field(ge=1, le=1_000_000, allow_inf_nan=False)] = 2.0
    """Ratio to the mean load above which a hit does not count. On the same work 1.25, at 25
    requests a second, meant 0.83 cached and 17 s to the first token at the 90th percentile; 2
    meant 0.93 and 0.9 s."""

    min_load_tokens: Weight = 8192
    """Load up to which a hit always counts: a step's worth of prompt."""

    decode_weight: Weight = 0.05
    """Prompt tokens that a token held in the KV cache counts for. Alone it would cost more: read
    again in 200 steps, 128 KiB at 4.3 TB/s take 6 us, a prompt token's computing takes 24 us
    (Llama-3.1-8B on one H200). But held tokens are work wherever they are, and a missed hit is work
    added to the fleet. In a simulated fleet (8 replicas, 150 prefixes of 6,000 tokens, 73 % of the
    KV cache, 15 requests a second) weights of 0.02 to 0.1 do alike; with 1.0 the cached part of the
    prompts is 0.51 instead of 0.81, and the 90th percentile of the time to first token 0.86 s
    instead of 0.11 s."""

    barrier_tokens: Weight = 1500
    """Tokens that a half full KV cache counts for: 0.15 s at 10,000 prompt tokens a second."""

    max_resident_blocks: BlockCount = MAX_RESIDENT_BLOCKS
    """KV blocks, by the engines' events, of all replicas together in a KV group and tier; one that
    several have counts once. 100 bytes each: 1 GB. Beyond it the oldest are forgotten."""

    max_sent_blocks: BlockCount = MAX_SENT_BLOCKS
    """Text blocks sent, each one counted for each replica that got it; 130 bytes each: 260 MB.
    Beyond its share a replica's oldest ones are forgotten."""

    max_text_blocks: BlockCount = MAX_TEXT_BLOCKS
    """Text blocks whose KV blocks are known, by the engines' prompt reports; 150 bytes each:
    150 MB. Beyond it those not used for longest are forgotten."""


class SessionOptions(PolicyOptions):
    """Names that `session` tells sessions apart by, the first one that a request has."""

    header: HeaderName = "x-session-id"
    """Request header with the session's key."""

    cookie: HeaderName = "session_id"
    """Cookie with it, where the header is missing."""
