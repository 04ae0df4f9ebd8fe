"""Which faults a run begins, and what is noted of each."""

from __future__ import annotations

from collections.abc import Sequence

from soaking.cluster_faults import NotNowError
from soaking.injection import Injection
from soaking.load import Counts
from soaking.report import Findings
from soaking.schedule import Kind, Schedule

ONE, OTHER = Kind("one", "keys"), Kind("other", "routers")


class Faults:
    """Faults of which some raise an error, by their name."""

    def __init__(self, **errors: Exception) -> None:
        self.errors = errors
        self.begun: list[str] = []

    def engines_ready(self) -> bool:
        return True

    def inject(self, name: str) -> None:
        self.begun.append(name)
        if name in self.errors:
            raise self.errors[name]


async def found(faults: Faults, kinds: Sequence[Kind], times: int = 2) -> Findings:
    """What is found when that many faults are due, of a run that takes no time."""
    findings = Findings(Counts())
    await Injection(faults, Schedule(kinds, 0), findings, lambda: 7.0).run(
        0.01 * (times + 0.5), 0.01
    )
    return findings


async def test_a_fault_is_noted_with_its_times() -> None:
    findings = await found(Faults(), [ONE])
    assert [(each.name, each.began, each.ended, each.error) for each in findings.faults] == [
        ("one", 7.0, 7.0, None)
    ] * 2
    assert findings.defects == []


async def test_another_one_happens_where_the_first_has_nothing_to_happen_to() -> None:
    faults = Faults(one=NotNowError())
    findings = await found(faults, [ONE, OTHER], 4)
    assert "one" in faults.begun
    assert [each.name for each in findings.faults] == ["other"] * 4


async def test_a_fault_that_fails_is_no_fault_that_happened() -> None:
    findings = await found(Faults(one=OSError("no node")), [ONE], 1)
    assert [each.error for each in findings.faults] == ["could not be injected: OSError('no node')"]


async def test_where_none_is_possible_that_is_a_defect() -> None:
    findings = await found(Faults(one=NotNowError()), [ONE], 1)
    assert findings.faults == []
    assert findings.defects == ["no fault was possible at 67% of the run"]


async def test_all_are_over_at_the_end() -> None:
    findings = await found(Faults(), [ONE, OTHER], 3)
    assert [each.ended for each in findings.faults] == [7.0] * 3
