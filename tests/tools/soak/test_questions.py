"""Questions have answers that differ, and a stream's answer is that of the whole."""

from __future__ import annotations

import random

from soaking.questions import Question, answer_of, pool, right_answers


def test_the_same_questions_each_time() -> None:
    assert pool(1) == pool(1)
    assert pool(1) != pool(2)


def test_an_engine_knows_the_answers() -> None:
    questions = pool()
    answers = right_answers(questions, "builtin://kvasir-tiny")
    assert set(answers) == set(questions)
    assert len(set(answers.values())) > len(answers) / 2
    by_kind = {question.kind: answers[question] for question in questions}
    assert len(by_kind["two choices"].texts) == 2
    assert len(set(by_kind["two choices"].texts)) == 2
    assert by_kind["fresh prompt"].usage == (1700, 8)
    assert {end for answer in answers.values() for end in answer.ends} == {"length", None}


def test_fresh_prompts_differ_in_ids_only() -> None:
    question = Question("fresh", "/v1/completions", "{}", fresh=50)
    draw = random.Random(1)
    one, other = question.body("m", draw)["prompt"], question.body("m", draw)["prompt"]
    assert len(one) == len(other) == 50
    assert one != other


def test_tokens_are_an_answer() -> None:
    answer = answer_of({"count": 2, "tokens": [4, 5]})
    assert answer.texts == ("[4, 5]",)
    assert answer.usage == (2, 0)
