"""Spend as a table for people and their accounting: CSV (RFC 4180)."""

import csv
import io
from datetime import UTC, date, datetime, timedelta

from kvasir_router.spend.spend_ledger import SpendLedger
from kvasir_router.spend.spend_store import Spend, Spender

MAX_ROWS = 200_000
MAX_DAYS = 400
_FIRST = date(1970, 1, 1)


def days_of(first: str | None, last: str | None) -> tuple[int, int]:
    """Return the days since 1970 from dates such as 2026-11-27; today for none. Raises ValueError
    with a sentence."""
    today = datetime.now(UTC).date()
    end = _date("to", last) if last is not None else today
    begin = _date("from", first) if first is not None else end
    if not begin <= end < begin + timedelta(days=MAX_DAYS):
        raise ValueError(f"from {begin} to {end} must be 1 to {MAX_DAYS} days; give other dates")
    return (begin - _FIRST).days, (end - _FIRST).days


async def spend_csv(ledger: SpendLedger, first: int, last: int) -> str:
    """Return a row for each key and model of each day, with what this process has not written
    yet. Raises ValueError where there are too many, and StoreError."""
    await ledger.sync()
    rows = await ledger.store.report(first, last, MAX_ROWS + 1)
    if len(rows) > MAX_ROWS:
        raise ValueError(f"there are more than {MAX_ROWS} rows; ask for fewer days")
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow((*Spender._fields, *Spend._fields))
    for who, amounts in rows:
        writer.writerow((_FIRST + timedelta(days=who.day), *who[1:], *amounts))
    return text.getvalue()


def _date(name: str, text: str) -> date:
    try:
        found = date.fromisoformat(text)
    except ValueError:
        found = date.min
    if found < _FIRST:
        raise ValueError(f"{name} {text[:32]!r} is no date; write it as 2026-11-27")
    return found
