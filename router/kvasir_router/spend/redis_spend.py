"""Spend in Redis, for any number of routers."""

from collections import defaultdict
from typing import Any

import structlog

from kvasir_router.redis_calls import redis_call, redis_client
from kvasir_router.spend.spend_store import Spend, SpendBatch, Spender, SpendStore
from kvasir_router.store_error import StoreError

_DAY_SECONDS = 86_400
_NUMBER_SECONDS = 3600
"""Seconds in which a batch may be sent again."""
_BREAK = "\x1f"
"""Between the names in a field; none of them has it."""

# KEYS: number of the writer's last batch, then in threes by day: all spend, tokens of all routers,
# tokens of this one. ARGV: the number, its lifetime and that of a day, then for each row the day's
# place from 1, the field, four amounts and the key.
_ADD = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
for at = 4, #ARGV, 7 do
  local base = 3 * tonumber(ARGV[at]) - 1
  for kind = 1, 4 do
    if ARGV[at + 1 + kind] ~= '0' then
      redis.call('HINCRBY', KEYS[base], ARGV[at + 1] .. kind, ARGV[at + 1 + kind])
    end
  end
  local tokens = tonumber(ARGV[at + 3]) + tonumber(ARGV[at + 5])
  if tokens > 0 then
    redis.call('HINCRBY', KEYS[base + 1], ARGV[at + 6], tokens)
    redis.call('HINCRBY', KEYS[base + 2], ARGV[at + 6], tokens)
  end
end
for at = 2, #KEYS do redis.call('EXPIRE', KEYS[at], ARGV[3]) end
return 1
"""
_log = structlog.get_logger("kvasir_router.spend")


class RedisSpend(SpendStore):
    """Three hashes a day, which Redis itself forgets, all in one slot of a Redis Cluster.

    A batch is added by a script, which also keeps its number: one that is sent again since its
    answer was lost is not added twice. A server that is away is told of and tried again by the next
    call.
    """

    def __init__(self, url: str, days: int) -> None:
        """Raises ValueError for a URL that names no server."""
        self._seconds = (days + 1) * _DAY_SECONDS
        self._redis = redis_client(url)

    async def open(self) -> None:
        """See SpendStore."""
        try:
            await redis_call(self._redis.ping())
        except StoreError as error:
            _log.error("what was spent before and elsewhere is not known now", reason=str(error))

    async def add(self, batch: SpendBatch) -> None:
        """See SpendStore."""
        days = sorted({who.day for who in batch.rows})
        keys = [f"kvasir:{{spend}}:writer:{batch.writer}"]
        for day in days:
            keys += [_spend(day), _tokens(day), _tokens(day, batch.router)]
        values: list[str | int] = [batch.number, _NUMBER_SECONDS, self._seconds]
        for who, amounts in batch.rows.items():
            field = _BREAK.join((*who[1:], ""))
            values += [days.index(who.day) + 1, field, *amounts, who.key]
        await redis_call(self._redis.eval(_ADD, len(keys), *keys, *map(str, values)))

    async def elsewhere(self, day: int, router: str) -> dict[str, int]:
        """See SpendStore."""
        async with self._redis.pipeline(transaction=True) as pipeline:
            pipeline.hgetall(_tokens(day))
            pipeline.hgetall(_tokens(day, router))
            every, own = await redis_call(pipeline.execute())
        found = {key.decode(): int(count) - int(own.get(key, 0)) for key, count in every.items()}
        return {key: count for key, count in found.items() if count > 0}

    async def report(self, first: int, last: int, limit: int) -> list[tuple[Spender, Spend]]:
        """See SpendStore."""
        rows: list[tuple[Spender, Spend]] = []
        for day in range(first, last + 1):
            found: Any = await redis_call(self._redis.hgetall(_spend(day)))
            amounts: defaultdict[Spender, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
            for field, count in found.items():
                key, tenant, model, kind = field.decode().split(_BREAK)
                amounts[Spender(day, key, tenant, model)][int(kind) - 1] = int(count)
            rows += [(who, Spend(*amounts[who])) for who in sorted(amounts)]
            if len(rows) >= limit:
                break
        return rows[:limit]

    async def close(self) -> None:
        """See SpendStore."""
        await self._redis.aclose()


def _spend(day: int) -> str:
    return f"kvasir:{{spend}}:{day}"


def _tokens(day: int, router: str = "") -> str:
    return f"kvasir:{{spend}}:{day}:tokens" + (f":{router}" if router else "")
