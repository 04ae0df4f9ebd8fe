"""Conversations as rows of token ids, made anew for every step from (seed, step)."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import TypeVar

import numpy as np
from benchmarks.tiny_model import chat, lists, prose, tasks, thinking, tools
from benchmarks.tiny_model.draw import WORDS, Draw, Sample, Task
from benchmarks.tiny_model.extras import EXTRAS
from benchmarks.tiny_model.vocabulary import END, END_OF_TEXT, START, THINK
from numpy.typing import NDArray
from tokenizers import Tokenizer


@dataclass(frozen=True)
class Bucket:
    """Rows of one length in each step; `stop` is the chance to end a row after a turn."""

    length: int
    rows: int
    stop: float


T = TypeVar("T")
Talk = Callable[[Random], list[chat.Turn]]


@dataclass(frozen=True)
class Mix:
    """Mix of samples in a stage of training; the numbers are weights within their table."""

    buckets: tuple[Bucket, ...]
    task_share: float
    extras_share: float  # of the tasks
    tasks: dict[Task, int]
    talk: dict[Talk, int]
    thinking_share: float = 0.0  # of the rows


BROAD = Mix(
    buckets=(
        Bucket(96, 256, 0.75),
        Bucket(192, 96, 0.4),
        Bucket(512, 24, 0.1),
        Bucket(2048, 6, 0.04),
    ),
    task_share=0.72,
    extras_share=0.08,
    tasks={
        lists.recall: 17,
        lists.copy: 10,
        lists.reverse: 17,
        lists.sort: 17,
        tasks.add: 10,
        tasks.add_large: 2,
        tasks.subtract: 4,
        tasks.multiply: 2,
        tasks.extract: 10,
    },
    talk={chat.talk: 9, chat.fact: 9, chat.open_question: 6, chat.refusal: 2, chat.memory: 4},
)
# Answers of two digits are a small part of the broad mix's loss; this one makes up for it.
ARITHMETIC = Mix(
    buckets=(Bucket(160, 384, 0.5), Bucket(2048, 8, 0.04)),
    task_share=0.7,
    extras_share=0.12,
    tasks={
        lists.recall: 10,
        lists.copy: 7,
        lists.reverse: 10,
        lists.sort: 14,
        tasks.add: 36,
        tasks.add_large: 4,
        tasks.subtract: 20,
        tasks.multiply: 3,
        tasks.extract: 5,
    },
    talk={chat.talk: 9, chat.fact: 9, chat.open_question: 9, chat.refusal: 4, chat.memory: 3},
)
# The lists' last per cent: long ones are rare in both mixes before.
LISTS = Mix(
    buckets=(Bucket(160, 320, 0.5), Bucket(512, 32, 0.1), Bucket(2048, 12, 0.04)),
    task_share=0.8,
    extras_share=0.05,
    tasks={
        lists.recall: 16,
        lists.copy: 14,
        lists.reverse: 12,
        lists.sort: 34,
        tasks.add: 10,
        tasks.add_large: 1,
        tasks.subtract: 8,
        tasks.multiply: 1,
        tasks.extract: 4,
    },
    talk={chat.talk: 9, chat.fact: 9, chat.open_question: 9, chat.refusal: 4, chat.memory: 3},
)
THINKING = replace(LISTS, thinking_share=0.45)
MIXES = {"broad": BROAD, "arithmetic": ARITHMETIC, "lists": LISTS, "thinking": THINKING}


@dataclass(frozen=True)
class Message:
    role: str
    text: str
    thought: str | None = None


def _draw(rng: Random, weights: dict[T, int]) -> T:
    return rng.choices(list(weights), list(weights.values()))[0]


def _task_turn(rng: Random, mix: Mix, tokens: int) -> list[chat.Turn]:
    task = rng.choice(EXTRAS) if rng.random() < mix.extras_share else _draw(rng, mix.tasks)
    sample = task(Draw(rng, tokens))
    return [(_ask(rng, sample), sample.answer)]


def _ask(rng: Random, sample: Sample) -> str:
    """The prompt, at times in another tone; never changed where it begins with the content."""
    prompt, kind = sample.prompt, rng.random()
    if kind < 0.7 or prompt.split(" ")[0].rstrip(":,") in sample.answer:
        return prompt
    tone = rng.choice(("", "", "Please ", "please ", "Can you "))
    return tone + prompt[0].lower() + prompt[1:]


def _turns(rng: Random, mix: Mix, tokens: int) -> list[Message]:
    """Return the messages of one exchange, or of a few that belong together."""
    if rng.random() < mix.task_share:
        turns = _task_turn(rng, mix, tokens if rng.random() < 0.5 else min(tokens, 128))
    else:
        turns = _draw(rng, mix.talk)(rng)
    return _messages(turns)


def _messages(turns: list[chat.Turn]) -> list[Message]:
    roles = ("user", "assistant")
    return [Message(role, text) for turn in turns for role, text in zip(roles, turn, strict=True)]


def _shown_tools(rng: Random, turn: tools.ToolTurn) -> Message:
    lines = "\n".join(["Tools:", *(json.dumps(tool) for tool in turn.tools)])
    return Message(
        "system", f"{prose.system_prompt(rng)}\n{lines}" if rng.random() < 0.4 else lines
    )


def _thinking(rng: Random, mix: Mix, tokens: int) -> list[Message]:
    """Return a conversation whose last answer is thought about; at times with turns before."""
    if tokens > 160 and rng.random() < 0.5:
        turn, before_call, before_answer = thinking.thought_call(rng)
        messages = [_shown_tools(rng, turn), Message("user", turn.question)]
        if rng.random() < 0.6:
            return [*messages, Message("assistant", turn.call, before_call)]
        messages += [Message("assistant", turn.call), Message("tool", turn.reply)]
        return [*messages, Message("assistant", turn.answer, before_answer)]
    messages = []
    if rng.random() < 0.2:
        messages.append(Message("system", prose.system_prompt(rng)))
    if rng.random() < 0.3 and tokens > 160:
        messages += _turns(rng, mix, tokens // 3)
    thought = thinking.thought_turn(Draw(rng, min(tokens // 2, 128)))
    return [
        *messages,
        Message("user", thought.prompt),
        Message("assistant", thought.answer, thought.thought),
    ]


def _tool_conversation(rng: Random, mix: Mix, tokens: int) -> list[Message]:
    turn = tools.tool_turn(rng)
    messages = [_shown_tools(rng, turn)]
    if rng.random() < 0.3:
        return messages + _turns(rng, mix, min(96, tokens))
    messages += [Message("user", turn.question), Message("assistant", turn.call)]
    if rng.random() < 0.6:
        messages += [Message("tool", turn.reply), Message("assistant", turn.answer)]
    return messages


class Encoder:
    """Messages to token ids, with a mask of what the assistant says."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.end_of_text, self._start, self._end, self._newline = (
            self.text(token)[0] for token in (END_OF_TEXT, START, END, "\n")
        )

    def text(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text).ids
        return ids

    def message(self, message: Message) -> tuple[list[int], list[bool]]:
        """Return ids and mask of a message as the chat template renders it; role and newline are a
        token each, and so are the begin of thinking and its newline, which the template gives."""
        body, given = self.text(f"{message.role}\n{message.text}"), 2
        if message.thought is not None:
            text = thinking.said(message.thought, message.text)
            body, given = self.text(f"{message.role}\n{THINK}\n{text}"), 4
        ids = [self._start, *body, self._end, self._newline]
        said = message.role == "assistant"
        return ids, [False] * (1 + given) + [said] * (len(body) + 1 - given) + [False]


def row(rng: Random, encoder: Encoder, mix: Mix, bucket: Bucket) -> tuple[list[int], list[bool]]:
    """Token ids of one conversation or text of at most the bucket's length, with the loss mask."""
    if rng.random() < 0.05:
        ids = encoder.text(prose.plain_text(rng, bucket.length))[: bucket.length - 1]
        return [*ids, encoder.end_of_text], [True] * (len(ids) + 1)
    ids, mask = [], []
    for group in _groups(rng, mix, bucket):
        parts = [encoder.message(message) for message in group]
        if len(ids) + sum(len(part) for part, _ in parts) > bucket.length:
            if ids:
                break
            continue
        for part, part_mask in parts:
            ids += part
            mask += part_mask
        if rng.random() < bucket.stop:
            break
    return ids, mask


def _groups(rng: Random, mix: Mix, bucket: Bucket) -> Iterator[list[Message]]:
    """Messages to append together, without end; a system prompt comes with the first turn. What is
    thought about is all of its row, which is none of the longest."""
    if bucket.length <= 512 and rng.random() < mix.thinking_share:
        yield _thinking(rng, mix, bucket.length)
        return
    if rng.random() < 0.2 and bucket.length > 96:
        yield [Message("system", prose.system_prompt(rng)), *_turns(rng, mix, bucket.length // 2)]
    elif rng.random() < 0.15 and bucket.length > 96:
        yield _tool_conversation(rng, mix, bucket.length)
    if rng.random() < 0.4 and bucket.length >= 512:
        yield _messages(chat.long_recall(rng, bucket.length - 280))
    while True:
        yield _turns(rng, mix, bucket.length)


def batch(
    seed: int, step: int, encoder: Encoder, mix: Mix = BROAD, shrink: int = 1
) -> list[NDArray[np.int64]]:
    """Return for each bucket an array [2, rows, length]: inputs, and labels (-100 where no loss
    is).

    `shrink` divides the rows, for machines on which a full step takes too long.
    """
    arrays = []
    for number, bucket in enumerate(mix.buckets):
        rng = Random(f"{seed}/{step}/{number}")
        rows = max(1, bucket.rows // shrink)
        array = np.zeros((2, rows, bucket.length), dtype=np.int64)
        array[1] = -100
        for index in range(rows):
            ids, mask = row(rng, encoder, mix, bucket)
            array[0, index, : len(ids)] = ids
            labels = np.where(mask[1:], ids[1:], -100)  # the label of a position is its next token
            array[1, index, : len(labels)] = labels
        arrays.append(array)
    return arrays


def vocabulary_texts(seed: int, rows: int) -> Iterator[str]:
    """Texts for the tokenizer's word counts, in the proportions of training."""
    rng = Random(f"{seed}/vocabulary")
    for _ in range(rows):
        yield prose.plain_text(rng, 128)
        for message in (*_tool_conversation(rng, BROAD, 96), *_turns(rng, BROAD, 96)):
            yield f"{message.role}\n{message.text}"
    for group in (*chat.small_talk(), *chat.facts()):
        for fact in group:
            yield from (*fact.questions, *[fact.answer] * len(fact.questions))
    yield from (word for words in WORDS.values() for word in words for _ in range(4))
