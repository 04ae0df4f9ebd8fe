"""The attack suite's own parts: attacks that have teeth, and a judge that sees what they did."""

import asyncio
import json
import random
import shutil
from typing import Any

import pytest
from attacks import bombs, floods, mutations, slow_http, smuggling
from attacks.backend import SEEN, Lenient, Strict
from attacks.report import Row, percentile, table


async def hidden_seen(protocol: type[asyncio.Protocol]) -> int:
    """How many hidden requests a backend sees that the corpus is sent to directly."""
    SEEN.update(count=0, hidden=0)
    server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0)
    async with server:
        await smuggling.attack(server.sockets[0].getsockname()[1], "m")
    return SEEN["hidden"]


@pytest.mark.slow
async def test_the_corpus_fools_servers_by_themselves() -> None:
    """A careless one often, and now and then one that reads as the router's parser does before its
    own rules."""
    assert await hidden_seen(Lenient) > 100
    assert 0 < await hidden_seen(Strict) < 20


def test_no_attack_stands_twice_in_the_corpus_and_each_hides_a_request() -> None:
    corpus = smuggling.corpus("m")
    assert len(set(corpus)) == len(corpus) > 500
    assert all(b"hidden" in each for each in corpus)


def test_mutations_differ_and_are_of_both_kinds() -> None:
    draw = random.Random("1")
    made = [mutations.make("m", draw) for _ in range(2000)]
    assert len(set(made)) > 1500
    valid = 0
    for _, body in made:
        try:
            json.loads(body)
            valid += 1
        except ValueError:
            continue
    assert 500 < valid < 1800
    again = random.Random("1")
    assert made == [mutations.make("m", again) for _ in made]


def test_bombs_are_as_large_as_they_are_to_be() -> None:
    sizes = [len(each) for each in bombs.nested("m", 100_000)]
    assert all(70_000 < size < 140_000 for size in sizes)
    assert all(len(each) < 1 << 20 for each in bombs.compressed())


async def test_bombs_tell_what_each_was_answered(capsys: pytest.CaptureFixture[str]) -> None:
    loop = asyncio.get_running_loop()
    async with await loop.create_server(Strict, "127.0.0.1", 0) as server:
        await bombs.main(server.sockets[0].getsockname()[1], "m", 10_000)
    told = json.loads(capsys.readouterr().out)
    assert told["compressed"] == [200] * 6
    assert [status for _, status in told["dense"]] == [200] * 20
    assert "chat/completions" in told["dense"][0][0]


@pytest.mark.parametrize(
    ("seconds", "problems", "quiet", "failed"),
    [
        ([0.1] * 100, [], True, None),
        ([0.1] * 98 + [0.2] * 2, [], True, "p99 grew by 100 ms"),
        ([0.1] * 98 + [0.2] * 2, [], False, None),
        ([0.1] * 98 + [1.5] * 2, [], False, "p99 grew by 1400 ms"),
        ([0.1] * 100, ["503 overloaded"], False, "1 answers lost: ['503 overloaded']"),
        ([], [], False, "the client got no answer"),
    ],
)
def test_what_an_attack_did_is_judged(
    seconds: list[float], problems: list[str], quiet: bool, failed: str | None
) -> None:
    row = Row("router", "attack")
    row.judge(seconds, problems, 0.1, quiet)
    assert row.failed == ([failed] if failed else [])
    assert ("FAILED" in table([row])) is bool(failed)


@pytest.mark.parametrize(("equal", "shown"), [(None, "100 -> 300 ms"), (0.2, "100 -> 200 -> 300")])
def test_contention_is_shown_where_it_was_measured(equal: float | None, shown: str) -> None:
    row = Row("router", "attack", answers=1, p99=0.3, baseline_p99=0.1, equal_p99=equal)
    assert shown in table([row])


def test_percentiles() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([], 0.99) == 0.0
    assert percentile([1.0] * 99 + [9.0], 0.99) == 9.0


@pytest.mark.parametrize("module", [slow_http, floods])
def test_a_missing_program_is_named(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(SystemExit, match="is missing; on Debian: apt-get install"):
        module.check_installed()
