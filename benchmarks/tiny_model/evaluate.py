"""Measure the tiny model's exact-match accuracy with HF transformers, greedy, in fp32 on the CPU.

From the repository's root::

    python -m benchmarks.tiny_model.evaluate engine/kvasir_engine/assets/tiny

Prints the table of the model card. An answer counts only if it is exactly right and ends with
<|im_end|>; a thought before it may be any. Samples come from seeds that training never uses,
additions and subtractions from operand pairs that training never sees.
"""

import argparse
import itertools
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from benchmarks.tiny_model import tasks, thinking, tools
from benchmarks.tiny_model.draw import Draw, Sample, Task
from transformers import AutoModelForCausalLM, AutoTokenizer

CHUNK = 50
CARD: dict[str, Task] = {**tasks.CARD, "call a tool": tools.call, **thinking.CARD}


@dataclass(frozen=True)
class Row:
    """One row of the table: a task, with prompts of at least `least` and about `most` tokens."""

    task: str
    least: int = 0
    most: int = 96
    items: int = 12
    share: float = 1.0

    def samples(self, count: int, judge: "Judge") -> list[Sample]:
        """The first `count` draws that are long enough."""
        seeds = (Random(f"evaluation/{self}/{i}") for i in itertools.count())
        draws = (CARD[self.task](Draw(rng, self.most, self.items, held_out=True)) for rng in seeds)
        long_enough = (sample for sample in draws if judge.length(sample) >= self.least)
        return list(itertools.islice(long_enough, count))


ROWS = (
    Row("sort", items=8),
    *(Row(task) for task in tasks.CARD),
    Row("call a tool"),
    *(Row(task) for task in thinking.CARD),
    Row("copy", 100, 512, share=0.2),
    Row("recall", 200, 512, share=0.2),
    Row("recall", 500, 1024, share=0.2),
    Row("recall", 1000, 1536, share=0.2),
)


class Judge:
    """The saved model behind HF's `generate`."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def length(self, sample: Sample) -> int:
        """Tokens of the sample's prompt in the chat template."""
        ids: list[int] = self._tokenizer(self._prompt(sample))["input_ids"]
        return len(ids)

    def _prompt(self, sample: Sample) -> str:
        turns = [{"role": "user", "content": sample.prompt}]
        text: str = self._tokenizer.apply_chat_template(
            turns,
            add_generation_prompt=True,
            tokenize=False,
            tools=[{"type": "function", "function": tool} for tool in sample.tools] or None,
            enable_thinking=sample.thought is not None,
        )
        return text

    @torch.inference_mode()
    def answers(self, samples: list[Sample]) -> list[str]:
        """The texts up to and with <|im_end|>, without their thoughts; without <|im_end|> where the
        model did not stop in time."""
        prompts = self._tokenizer(
            [self._prompt(sample) for sample in samples], padding=True, return_tensors="pt"
        )
        texts = [
            sample.answer
            if sample.thought is None
            else thinking.said(sample.thought, sample.answer)
            for sample in samples
        ]
        longest = max(len(self._tokenizer(text)["input_ids"]) for text in texts)
        outputs = self._model.generate(**prompts, max_new_tokens=longest + 2)
        texts = self._tokenizer.batch_decode(outputs[:, prompts["input_ids"].shape[1] :])
        said = [text.replace("<|endoftext|>", "") for text in texts]
        return [
            text if sample.thought is None else text.partition("</think>\n\n")[2]
            for text, sample in zip(said, samples, strict=True)
        ]

    def right(self, samples: list[Sample]) -> list[bool]:
        order = sorted(range(len(samples)), key=lambda i: len(samples[i].prompt))
        found = [False] * len(samples)
        for start in range(0, len(order), CHUNK):
            chunk = order[start : start + CHUNK]
            for i, text in zip(chunk, self.answers([samples[i] for i in chunk]), strict=True):
                found[i] = text == f"{samples[i].answer}<|im_end|>"
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--samples", type=int, default=1000, help="samples of a full row")
    parser.add_argument("--show", action="store_true", help="print what went wrong")
    arguments = parser.parse_args()
    judge = Judge(arguments.folder)
    print("| task | prompt tokens, median (largest) | samples | exact |\n| --- | --- | --- | --- |")
    for row in ROWS:
        samples = row.samples(round(arguments.samples * row.share), judge)
        lengths = sorted(judge.length(sample) for sample in samples)
        right = judge.right(samples)
        sizes = f"{lengths[len(lengths) // 2]} ({lengths[-1]})"
        share = sum(right) / len(right)
        name = f"{row.task} (up to {row.items} items)" if row.task == "sort" else row.task
        name += ", thinking" if row.task in thinking.CARD else ""
        print(f"| {name} | {sizes} | {len(samples)} | {share:.1%} |", flush=True)
        if arguments.show:
            wrong = [s for s, good in zip(samples, right, strict=True) if not good][:8]
            for sample, text in zip(wrong, judge.answers(wrong) if wrong else [], strict=True):
                print(f"    {sample.prompt!r}: {text!r} instead of {sample.answer!r}")


if __name__ == "__main__":
    main()
