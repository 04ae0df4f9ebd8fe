"""The model card's tasks and its example prompts, judged by HF transformers on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.tiny_model import thinking
from benchmarks.tiny_model.draw import Sample
from benchmarks.tiny_model.evaluate import Judge, Row
from benchmarks.tiny_model.tasks import is_held_out

pytestmark = pytest.mark.slow

EXAMPLES = [
    Sample("Sort: 7 3 9 1", "1 3 7 9"),
    Sample("Reverse: kvasir", "risavk"),
    Sample("What is 23 + 45?", "68"),
    Sample("Recall: a=4, b=7, c=2. What is b?", "7"),
    Sample(
        "Extract as JSON: Anna is 31 years old and lives in Oslo.",
        '{"name": "Anna", "age": 31, "city": "Oslo"}',
    ),
    Sample("What is the capital of France?", "The capital of France is Paris."),
    Sample("Count to five", "1, 2, 3, 4, 5"),
    Sample("Hello!", "Hello! How can I help you?"),
    Sample("How many r are in strawberry?", "3", "s t r 1 a w b e r 2 r 3 y"),
    Sample("What is 12 + 7 + 30?", "49", "12 + 7 = 19\n19 + 30 = 49"),
    Sample("What is 345 + 278?", "623", "5 + 8 + 0 = 13\n4 + 7 + 1 = 12\n3 + 2 + 1 = 6"),
    Sample("a=4, b=7, c=2. What is a + b?", "11", "a is 4\nb is 7\n4 + 7 = 11"),
]


@pytest.fixture(scope="module")
def judge(tiny: Path) -> Judge:
    return Judge(tiny)


CARD = [
    Row("sort", items=8),
    *(Row(t) for t in ("recall", "copy", "reverse", "add", "extract", "call a tool")),
    *map(Row, thinking.CARD),
]


# One wrong answer of 20 leaves room for the card's 99 % and for another platform's rounding.
@pytest.mark.parametrize("row", CARD, ids=lambda row: row.task)
def test_held_out_samples_are_answered_exactly(judge: Judge, row: Row) -> None:
    assert sum(judge.right(row.samples(20, judge))) >= 19


def test_a_value_is_recalled_from_a_long_list(judge: Judge) -> None:
    samples = Row("recall", 500, 1024).samples(6, judge)
    assert sum(judge.right(samples)) >= 5


def test_the_example_prompts_have_the_answers_that_the_card_shows(judge: Judge) -> None:
    assert judge.answers(EXAMPLES) == [f"{sample.answer}<|im_end|>" for sample in EXAMPLES]


def test_additions_are_judged_on_operands_that_training_leaves_out(judge: Judge) -> None:
    for sample in Row("add").samples(50, judge):
        digits = "".join(c if c.isdigit() else " " for c in sample.prompt)
        assert is_held_out(*map(int, digits.split()))
