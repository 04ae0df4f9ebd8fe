from __future__ import annotations

import pytest
from support.answer_texts import merged

from kvasir.text.tokenizer import Tokenizer
from kvasir_engine.text.parsing.markers import Markers
from kvasir_engine.text.parsing.reasoning import PromptEnd, ThinkReasoning


@pytest.mark.parametrize(
    ("prompt", "text", "reasoning", "content"),
    [
        # QwQ, DeepSeek-R1 and Qwen3-Thinking open the block in the prompt.
        (PromptEnd("<|im_start|>assistant\n<think>\n"), "Hm.\n</think>\n\nHi", "Hm.", "Hi"),
        (PromptEnd("<|im_start|>assistant\n<think>\n"), "<think>Hm.</think>Hi", "Hm.", "Hi"),
        (PromptEnd("<|im_start|>assistant\n<think>\n"), "Hm.", "Hm.", ""),
        # enable_thinking false: an empty block stands in the prompt.
        (PromptEnd("<think>\n\n</think>\n\n"), "Hi", "", "Hi"),
        (PromptEnd("what is <think>?<|im_end|>\n<|im_start|>assistant\n"), "A tag.", "", "A tag."),
        (PromptEnd("<think>I wonder", continued=True), " so.</think>Hi", "so.", "Hi"),
        (PromptEnd("<think>a</think>The", continued=True), " end", "", " end"),
    ],
)
@pytest.mark.parametrize("size", [1, 100])
def test_the_prompt_may_open_the_reasoning(
    tokenizer: Tokenizer, prompt: PromptEnd, text: str, reasoning: str, content: str, size: int
) -> None:
    machine = ThinkReasoning(Markers(tokenizer, ()), prompt)
    parts = [text[at : at + size] for at in range(0, len(text), size)]
    pieces = [piece for part in parts for piece in machine.push(part)] + machine.finish()
    assert merged(pieces) == {"content": content, "reasoning": reasoning, "calls": []}
