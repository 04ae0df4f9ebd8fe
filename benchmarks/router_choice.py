"""Cost of choosing a replica: µs of `choose` and `sent`, with a filled index, by policy.

    python benchmarks/router_choice.py [--only WORD...] [--save]

Chat bodies of 2, 64 and 400 KB, half a shared system prompt and half a question, for 8 and 64
replicas in a fleet that has served many such conversations. Each figure is the least of many
rounds: what the code takes when the machine does nothing else. In the parts:

- chain: canonical text and its hashes, from the decoded body
- match: the index's answer; exact with every text known and every block's residency told by events
- choose, sent: the policy's calls, without the chain, and what the relay adds when a request ends
- in all: everything that round_robin does not do
- hand over, tokenised: where an engine does not report its prompts, what giving one to the
  tokenising process takes of the router, and after how long the index knows it, with the tiny
  model's tokenizer, which makes about a token of every two bytes
"""

import argparse
import asyncio
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from common import Figure, Report, Table, warn_if_busy

from kvasir.wire.block_hash import HASH_BYTES
from kvasir.wire.kv_events import BlockStored
from kvasir_router.discovery.specs import ModelSpec, PolicySpec, ReplicaSpec
from kvasir_router.fleet.model import Model
from kvasir_router.fleet.replica import Replica
from kvasir_router.fleet.replica_load import LoadReport
from kvasir_router.index.block_sink import PromptReport
from kvasir_router.options.tokenizing_settings import TokenizingSettings
from kvasir_router.policy.kv_aware import KvAware
from kvasir_router.policy.registry import make_policy, policy_names
from kvasir_router.tasks import SupervisedTasks
from kvasir_router.tokenizing.tokenizing import Tokenizing
from kvasir_router.wire.envelope import decode_envelope
from kvasir_router.wire.http_request import Request
from kvasir_router.wire.query import Query
from kvasir_router.wire.upstream_pool import ConnectionPool
from kvasir_router.wire.usage import Usage

KV_TOKENS = 300_000
CONVERSATIONS = 100
ROUNDS = 200
ROUND_SECONDS = 0.0005
KV_A_TEXT_BLOCK = 8
WORDS = [f"word{number} " for number in range(5000)]


def text(source: random.Random, size: int) -> str:
    return "".join(source.choices(WORDS, k=size // 6))[:size]


def query(source: random.Random, size: int, system: str) -> Query:
    messages = [
        {"role": "system", "content": system},
        {"role": "user", "content": text(source, size - len(system) - 100)},
    ]
    request = Request()
    request.path = "/v1/chat/completions"
    request.body = msgspec.json.encode({"model": "bench", "messages": messages})
    return Query(request, decode_envelope(request.body))


def make_replicas(count: int) -> list[Replica]:
    pool = ConnectionPool("127.0.0.1", 1, connect_timeout=1, idle_timeout=1)
    replicas = []
    for number in range(count):
        spec = ReplicaSpec(f"replica-{number}", "127.0.0.1", 1)
        replica = Replica(spec, pool, 4096, lambda: None)
        replica.load.kv_capacity = KV_TOKENS
        replica.load.report_every = 0.2
        replica.load.reported(LoadReport(8, 0, 900 + number, 0.5, time.monotonic() + 3600))
        replicas.append(replica)
    return replicas


def tell_events(policy: KvAware, replica: Replica, chain: Sequence[int]) -> None:
    """Feed the index what an engine reports of a prompt: its blocks, and its text."""
    names = [random.randbytes(HASH_BYTES) for _ in range(KV_A_TEXT_BLOCK * len(chain))]
    last = names[KV_A_TEXT_BLOCK - 1 :: KV_A_TEXT_BLOCK]
    counts = [KV_A_TEXT_BLOCK * (at + 1) for at in range(len(chain))]
    policy.index.learned(PromptReport(chain, counts, b"".join(last)))
    for each in ([replica], random.choices(list(policy.index.match(chain)) or [replica], k=1)):
        policy.index.stored(each[0], BlockStored([*names], None, [], 16))


def fill(
    policy: Any, replicas: list[Replica], size: int, systems: list[str], *, exact: bool
) -> None:
    source = random.Random(1)
    for number in range(CONVERSATIONS):
        past = query(source, size, systems[number % len(systems)])
        choice = policy.choose(past, replicas)
        policy.sent(past, choice)
        if exact:
            tell_events(policy, choice.replica, past.chain)


def microseconds(call: Callable[[], object]) -> float:
    """The least over rounds too short to be interrupted often."""
    call()
    start = time.perf_counter()
    call()
    calls = max(1, round(ROUND_SECONDS / (time.perf_counter() - start)))
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        best = min(best, time.perf_counter() - start)
    return best / calls * 1e6


def measure(size: int, count: int, name: str, *, exact: bool = False) -> dict[str, float]:
    replicas = make_replicas(count)
    source = random.Random(2)
    systems = [text(source, size // 2) for _ in range(20)]
    policy: Any = make_policy(PolicySpec(name))
    fill(policy, replicas, size, systems, exact=exact)
    asked = [query(source, size, systems[number % 20]) for number in range(40)]
    bodies = [each.request.body for each in asked]
    turn = 0

    def next_turn() -> int:
        nonlocal turn
        turn = (turn + 1) % len(asked)
        return turn

    def chain() -> None:
        at = next_turn()
        asked[at] = Query(asked[at].request, decode_envelope(bodies[at]))
        asked[at].chain  # noqa: B018

    def decode() -> None:
        at = next_turn()
        Query(asked[at].request, decode_envelope(bodies[at]))

    def whole() -> None:
        each = asked[next_turn()]
        choice = policy.choose(each, replicas)
        policy.sent(each, choice)
        policy.ended(each, choice, Usage(each.text_bytes // 4, 100, choice.hit_tokens))

    chained = 0.0
    if name in ("kv_aware", "prefix_hash"):
        chained = microseconds(chain) - microseconds(decode)
    result = {"chain": chained}
    if name == "kv_aware":
        for each in asked:
            each.chain  # noqa: B018
        result["match"] = microseconds(lambda: policy.index.match(asked[next_turn()].chain))
        result["choose"] = microseconds(lambda: policy.choose(asked[next_turn()], replicas))
    result["in all"] = chained + microseconds(whole)
    return {part: round(value, 1) for part, value in result.items()}


async def measure_tokenising(size: int) -> dict[str, float]:
    """New questions behind known system prompts. Short ones are tokenised without a wait."""
    tokenizing = Tokenizing(TokenizingSettings(deadline=60.0), SupervisedTasks())
    model = Model(ModelSpec("bench", tokenizer="builtin://kvasir-tiny"), KvAware(), 0)
    tokenizing.open([model])
    source = random.Random(2)
    systems = [text(source, size // 2) for _ in range(4)]
    given: list[Any] = []
    known: list[Any] = []
    while len(known) < 24:
        asked, done = query(source, size, systems[len(known) % 4]), asyncio.Event()
        asked.chain  # noqa: B018
        begun = time.perf_counter()
        waits = tokenizing.prepare(asked, model, done.set)
        given.append(time.perf_counter() - begun)
        if waits:
            await done.wait()
            known.append(time.perf_counter() - begun)
        await asyncio.sleep(0.01)  # at first the process has to start
    await tokenizing.stop()
    parts = {"hand over": given[-20:], "tokenised": known[-20:]}
    return {part: round(min(each) * 1e6, 1) for part, each in parts.items()}


PARTS = ("chain", "match", "choose", "in all", "hand over", "tokenised")


def row(label: str, parts: dict[str, float]) -> list[str]:
    return [label, *(f"{parts[part]:.1f}" if part in parts else "" for part in PARTS)]


def publish(results: dict[str, dict[str, float]], *, save: bool) -> None:
    """The longest prompts and most replicas have a goal."""
    figures = [
        Figure(label, "µs", [parts["in all"]], "<= 1000", digits=0)
        for label, parts in results.items()
        if label.startswith("400 KB, 64 replicas, kv_aware")
    ]
    Report(
        name="router_choice",
        title="What choosing a replica costs",
        work=(
            "Chat bodies of which half is a shared system prompt, in fleets that have served "
            f"{CONVERSATIONS} such conversations; the least of {ROUNDS} rounds."
        ),
        figures=figures,
        tables=[
            Table(
                "µs a request, of CPU",
                ["work", *PARTS],
                [row(label, parts) for label, parts in results.items()],
            )
        ],
        packages=("msgspec", "xxhash"),
        folder="",
    ).publish(save=save)


async def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="*", default=[], help="words in the labels to run")
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    warn_if_busy()
    results: dict[str, dict[str, float]] = {}
    for size in (2, 64, 400):
        for count in (8, 64):
            for name in policy_names():
                for exact in (False, True) if name == "kv_aware" else (False,):
                    label = f"{size} KB, {count} replicas, {name}{' exact' if exact else ''}"
                    if all(word in label for word in options.only):
                        results[label] = measure(size * 1024, count, name, exact=exact)
                        print(f"{label:42} {results[label]}", flush=True)
        label = f"{size} KB, kv_aware exact, tokenising"
        if size > 2 and all(word in label for word in options.only):
            results[label] = await measure_tokenising(size * 1024)
            print(f"{label:42} {results[label]}", flush=True)
    publish(results, save=options.save)


if __name__ == "__main__":
    asyncio.run(main())
