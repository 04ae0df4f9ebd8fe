"""Answers as models write them, by the templates that they were published with."""

# ruff: noqa: E501 (an answer stands in a line)

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvasir_engine.text.parsing.pieces import Kind, Piece

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "metric": {"type": ["boolean", "null"]},
                    "places": {"anyOf": [{"type": "array"}, {"type": "null"}]},
                },
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "now"}},
]
OSLO = '{"city": "Oslo"}'
CALL = ("get_weather", OSLO, True)
NOW = ("now", "{}", True)


@dataclass(frozen=True)
class Answer:
    """An answer's text and what it holds. A call is its name, its arguments and whether it is
    complete."""

    format: str
    text: str
    content: str = ""
    calls: tuple[tuple[str, str, bool], ...] = ()
    reasoning: str = ""


TOOL_ANSWERS = [
    # Hermes, Qwen 2.5 and 3: the template tells the model of these tags.
    Answer(
        "hermes",
        f'<tool_call>\n{{"name": "get_weather", "arguments": {OSLO}}}\n</tool_call>',
        calls=(CALL,),
    ),
    Answer(
        "hermes",
        f'Let me see.\n<tool_call>\n{{"name": "get_weather", "arguments": {OSLO}}}\n</tool_call>\n'
        '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>\n',
        "Let me see.",
        (CALL, NOW),
    ),
    Answer(
        "hermes",
        f'<tool_call>{{"arguments": {OSLO}, "name": "get_weather"}}</tool_call>',
        calls=(CALL,),
    ),
    Answer("hermes", '<tool_call>{"name": "now"}</tool_call> Done.', " Done.", (NOW,)),
    Answer("hermes", '<tool_call>{"name": "now", "arguments": null}</tool_call>', calls=(NOW,)),
    Answer("hermes", '<tool_call>{"name": "now", "arguments": "{}"}</tool_call>', calls=(NOW,)),
    Answer("hermes", "No tool is needed, 1 < 2. ", "No tool is needed, 1 < 2. "),
    Answer(
        "hermes", '<tool_call>{"name": now}</tool_call>', '<tool_call>{"name": now}</tool_call>'
    ),
    Answer(
        "hermes",
        ' <tool_call>{"name": 7, "arguments": {}}',
        ' <tool_call>{"name": 7, "arguments": {}}',
    ),
    Answer(
        "hermes",
        '<tool_call>{"name": "now", "arguments": [1]}',
        '<tool_call>{"name": "now", "arguments": [1]}',
    ),
    Answer("hermes", '<tool_call>{"name": "now", "arg', '<tool_call>{"name": "now", "arg'),
    Answer(
        "hermes",
        '<tool_call>{"name": "\\ud800", "arguments": {}}',
        '<tool_call>{"name": "\\ud800", "arguments": {}}',
    ),
    # A call that breaks within its arguments ends there.
    Answer(
        "hermes",
        '<tool_call>{"name": "now", "arguments": {"a": tru}}</tool_call>',
        "}}</tool_call>",
        (("now", '{"a": tru', False),),
    ),
    Answer(
        "hermes",
        '<tool_call>{"name": "now", "arguments": {"a": "x',
        calls=(("now", '{"a": "x', False),),
    ),
    # A line break within a string is what JSON escapes.
    Answer(
        "hermes",
        '<tool_call>{"name": "now", "arguments": {"a": "x\ny\\u00e9"}}</tool_call>',
        calls=(("now", '{"a": "x\\ny\\u00e9"}', True),),
    ),
    # Llama 3.1 to 3.3
    Answer("llama3_json", f'{{"name": "get_weather", "parameters": {OSLO}}}', calls=(CALL,)),
    Answer(
        "llama3_json",
        f'<|python_tag|>{{"type": "function", "name": "get_weather", "parameters": {OSLO}}}; '
        '{"name": "now", "parameters": {}}',
        calls=(CALL, NOW),
    ),
    Answer("llama3_json", '{"name": "Ada", "parameters": {}}', '{"name": "Ada", "parameters": {}}'),
    Answer("llama3_json", '{"city": "Oslo"} is JSON.', '{"city": "Oslo"} is JSON.'),
    Answer("llama3_json", 'Use {"name": "now"}.', 'Use {"name": "now"}.'),
    Answer(
        "llama3_json",
        '<|python_tag|>brave_search.call(query="Oslo")',
        '<|python_tag|>brave_search.call(query="Oslo")',
    ),
    # Mistral: v3 to v7, v11, v13
    Answer(
        "mistral",
        f'[TOOL_CALLS] [{{"name": "get_weather", "arguments": {OSLO}}}, {{"name": "now", "arguments": {{}}}}]',
        calls=(CALL, NOW),
    ),
    Answer(
        "mistral",
        f'[TOOL_CALLS][{{"name": "get_weather", "arguments": {OSLO}, "id": "VvvODy9mT"}}]',
        calls=(CALL,),
    ),
    Answer("mistral", f"[TOOL_CALLS]get_weather[CALL_ID]VvvODy9mT[ARGS]{OSLO}", calls=(CALL,)),
    Answer(
        "mistral",
        f"Sure.[TOOL_CALLS]get_weather[ARGS]{OSLO}[TOOL_CALLS]now[ARGS]{{}}",
        "Sure.",
        (CALL, NOW),
    ),
    Answer("mistral", f"[TOOL_CALLS]get_weather{OSLO}", calls=(CALL,)),
    Answer("mistral", "[TOOL_CALLS]a b[ARGS]{}", "[TOOL_CALLS]a b[ARGS]{}"),
    Answer("mistral", "[TOOL_CALLS]now[ARGS]x", "[TOOL_CALLS]now[ARGS]x"),
    # Granite 3 and 4
    Answer(
        "granite", f'<|tool_call|>[{{"name": "get_weather", "arguments": {OSLO}}}]', calls=(CALL,)
    ),
    Answer(
        "granite",
        f'<tool_call>[{{"arguments": {OSLO}, "name": "get_weather"}}, {{"name": "now"}}]',
        calls=(CALL, NOW),
    ),
    Answer(
        "granite",
        f'<tool_call>\n{{"name": "get_weather", "arguments": {OSLO}}}\n</tool_call>',
        calls=(CALL,),
    ),
    Answer("granite", "<|tool_call|>[]", "<|tool_call|>[]"),
    # Phi-4-mini
    Answer(
        "phi4_mini_json",
        f'functools[{{"name": "get_weather", "arguments": {OSLO}}}]',
        calls=(CALL,),
    ),
    Answer(
        "phi4_mini_json",
        f'<|tool_call|>[{{"name": "get_weather", "arguments": {OSLO}}},{{"name": "now"}}]<|/tool_call|>',
        calls=(CALL, NOW),
    ),
    Answer("phi4_mini_json", "Python has functools and more.", "Python has functools and more."),
    # Qwen3-Coder
    Answer(
        "qwen3_coder",
        "I look.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n"
        "<parameter=days>\n3\n</parameter>\n<parameter=metric>\nTrue\n</parameter>\n"
        "<parameter=places>\n[1, {}]\n</parameter>\n</function>\n</tool_call>",
        "I look.",
        (
            (
                "get_weather",
                '{"city": "Oslo", "days": 3, "metric": true, "places": [1, {}]}',
                True,
            ),
        ),
    ),
    Answer(
        "qwen3_coder",
        '<function=get_weather>\n<parameter=city>\nA "b"\n\n<c>\n</parameter>\n</function>\n'
        "</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
        calls=(("get_weather", '{"city": "A \\"b\\"\\n\\n<c>"}', True), NOW),
    ),
    Answer(
        "qwen3_coder",
        "<tool_call><function=get_weather><parameter=days>soon</parameter></function></tool_call>",
        calls=(("get_weather", '{"days": "soon"}', True),),
    ),
    Answer(
        "qwen3_coder",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nOs",
        calls=(("get_weather", '{"city": "Os', False),),
    ),
    Answer(
        "qwen3_coder",
        '<function=get_weather>\n<parameter=places>\n["</parameter>", "a\\"\n</function>"]\n'
        "</parameter>\n</function>",
        calls=(("get_weather", '{"places": ["</parameter>", "a\\"\\n</function>"]}', True),),
    ),
    Answer(
        "qwen3_coder",
        '<function=get_weather>\n<parameter=places>\n["a</parameter>\n<parameter=city>\n"b"\n'
        "</parameter>\n</function>",
        calls=(("get_weather", '{"places": "[\\"a", "city": "\\"b\\""}', True),),
    ),
    Answer(
        "qwen3_coder",
        '<function=get_weather>\n<parameter=places>\n["a</parameter>\n</function>',
        calls=(("get_weather", '{"places": "[\\"a"}', True),),
    ),
    Answer(
        "qwen3_coder", "<tool_call>\nnothing\n</tool_call>", "<tool_call>\nnothing\n</tool_call>"
    ),
    Answer("qwen3_coder", "<function=a b></function>", "<function=a b></function>"),
    # Llama 4, ToolACE
    Answer("pythonic", "[get_weather(city='Oslo'), now()]", calls=(CALL, NOW)),
    Answer("pythonic", '<|python_start|>[get_weather(city="Oslo")]<|python_end|>', calls=(CALL,)),
    Answer(
        "pythonic",
        "[get_weather(city=\"it's (1) \\\" ]\", days=-3, metric=None, places=[1, {'a': true}])]",
        calls=(
            (
                "get_weather",
                '{"city": "it\'s (1) \\" ]", "days": -3, "metric": null, "places": [1, {"a": true}]}',
                True,
            ),
        ),
    ),
    Answer("pythonic", "[get_weather('Oslo')]", "[get_weather('Oslo')]"),
    Answer("pythonic", "[get_weather(city=Oslo)]", "[get_weather(city=Oslo)]"),
    Answer("pythonic", "[other(city='Oslo')]", "[other(city='Oslo')]"),
    Answer("pythonic", "[now(x=1e999)]", calls=(("now", '{"x": 1e999}', True),)),
    Answer("pythonic", "[now(x=1_0, y=0x1F, z=nan)]", ")]", (("now", '{"x": 10, "y": 31', False),)),
    Answer(
        "pythonic",
        "[get_weather(city='''a \"b\"\n''' \"\\u00e9\\x41\\d\", days='3', places='[1]',), now ( )] ",
        calls=(
            (
                "get_weather",
                '{"city": "a \\"b\\"\\néA\\\\d", "days": 3, "places": [1]}',
                True,
            ),
            NOW,
        ),
    ),
    Answer(
        "pythonic",
        "[get_weather(city=7, metric=None)]",
        calls=(("get_weather", '{"city": "7", "metric": null}', True),),
    ),
    Answer(
        "pythonic",
        "[get_weather(city='Oslo', days=)]",
        ")]",
        (("get_weather", '{"city": "Oslo"', False),),
    ),
    Answer("pythonic", "[1] says so. ", "[1] says so. "),
    Answer(
        "pythonic",
        "[now(), get_weather(city='Os",
        calls=(NOW, ("get_weather", '{"city": "Os', False)),
    ),
    Answer("pythonic", "[now(), get_weather(days=[1", ", get_weather(days=[1", (NOW,)),
    # Gemma 3, by Google's guide
    Answer("gemma3", "[get_weather(city='Oslo'), now()]", calls=(CALL, NOW)),
    Answer("gemma3", "```tool_code\nget_weather(city='Oslo')\nnow()\n```", calls=(CALL, NOW)),
    Answer("gemma3", "Ok.\n```tool_code\nprint(default_api.now())\n``` ", "Ok.", (NOW,)),
    Answer("gemma3", "```python\nnow()\n```", "```python\nnow()\n```"),
]

_ANALYSIS = "<|channel|>analysis<|message|>The weather, then.<|end|><|start|>assistant"
HARMONY_ANSWERS = [
    Answer(
        "openai",
        f"{_ANALYSIS}<|channel|>final<|message|>It is fine.<|return|>",
        "It is fine.",
        reasoning="The weather, then.",
    ),
    Answer(
        "openai",
        f"{_ANALYSIS}<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{OSLO}<|call|>",
        calls=(CALL,),
        reasoning="The weather, then.",
    ),
    Answer(
        "openai",
        f"{_ANALYSIS} to=functions.get_weather<|channel|>commentary json<|message|>{OSLO}",
        calls=(CALL,),
        reasoning="The weather, then.",
    ),
    Answer(
        "openai",
        "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary "
        "to=functions.now<|message|><|call|>",
        "I look.",
        (NOW,),
    ),
    Answer(
        "openai",
        "<|channel|>analysis<|message|>One.<|end|><|start|>assistant<|channel|>analysis<|message|>Two.",
        reasoning="One.\nTwo.",
    ),
    Answer("openai", "Plain text.", "Plain text."),
    Answer("openai", "<|channel|>anal"),
    Answer(
        "openai",
        "<|channel|>commentary to=functions.now<|message|>soon<|call|>",
        "<|channel|>commentary to=functions.now<|message|>soon",
    ),
    Answer(
        "openai",
        '<|channel|>commentary to=functions.now<|message|>{"a": [1',
        calls=(("now", '{"a": [1', False),),
    ),
]

REASONING_ANSWERS = [
    Answer("think", "<think>\nHm.\nYes.\n</think>\n\nHello.", "Hello.", reasoning="Hm.\nYes."),
    Answer("think", "\n<think></think>Hi", "Hi"),
    Answer("think", "<think>\nHm. ", reasoning="Hm."),
    Answer("think", "I <think> so.</think> ", "I <think> so.</think> "),
    Answer("mistral", "[THINK]Hm.[/THINK]Hello.", "Hello.", reasoning="Hm."),
    Answer("mistral", "<think>\nHm.\n</think>\nHello.", "Hello.", reasoning="Hm."),
    Answer(
        "granite",
        "Here is my thought process:\n\nHm.\n\nHere is my response:\n\nHello.",
        "Hello.",
        reasoning="Hm.",
    ),
    Answer(
        "granite",
        "<think>Hm.</think>\n<response>Hello.</response>",
        "Hello.",
        reasoning="Hm.",
    ),
    Answer("granite", "Here is my answer: 4.", "Here is my answer: 4."),
]


def merged(pieces: list[Piece]) -> dict[str, Any]:
    """Pieces as a client joins them."""
    made: dict[str, Any] = {"content": "", "reasoning": "", "calls": []}
    for kind, text in pieces:
        if kind is Kind.CALL:
            made["calls"].append([text, "", False])
        elif kind is Kind.ARGUMENTS:
            made["calls"][-1][1] += text
        elif kind is Kind.CALL_END:
            made["calls"][-1][2] = True
        else:
            made["content" if kind is Kind.CONTENT else "reasoning"] += text
    return made


def expected(answer: Answer) -> dict[str, Any]:
    """What `merged` makes of an answer."""
    calls = [list(call) for call in answer.calls]
    return {"content": answer.content, "reasoning": answer.reasoning, "calls": calls}
