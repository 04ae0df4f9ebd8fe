"""Write docs/sampling_parameters.md and docs/engine_flags.md from the engine's tables:
`make parameter-docs`."""

import sys
from dataclasses import MISSING, fields
from pathlib import Path

import typer
from typer.core import TyperOption

from kvasir.wire.proto.engine.v1 import engine_pb2 as pb
from kvasir_engine.sampling_params import PARAMETERS, SamplingParams
from kvasir_engine.server.openai.schema import ChatBody, CompletionBody
from kvasir_engine.server.process.serve_command import app as serve

DOCS = Path(__file__).parents[1] / "docs"
PAGE, FLAGS_PAGE = DOCS / "sampling_parameters.md", DOCS / "engine_flags.md"
_FLAGS_HEAD = """\
<!-- Made by `make parameter-docs` from the settings of kvasir_engine; do not edit. -->
# Flags of `kvasir serve`

Those that concern the engine are arguments of `LLM` too, with `_` for `-`.
"""
_HEAD = """\
<!-- Made by `make parameter-docs` from kvasir_engine.sampling_params; do not edit. -->
# Sampling parameters

Names and meanings are OpenAI's and vLLM's. `LLM` takes each in `SamplingParams`; where else one is
taken stands in the last column: C = `/v1/completions` (and `parameters` of
`/v2/models/NAME/infer`), Ch = `/v1/chat/completions`, g = gRPC `Generate`. For what an HTTP request
leaves out, the model's `generation_config.json` may give `temperature`, `top_p`, `top_k`, `min_p`
and `repetition_penalty` (`--generation-config vllm` ignores it).

| parameter | type | default | values | meaning | taken by |
|---|---|---|---|---|---|
"""


def page() -> str:
    """The page's text."""
    rows = []
    for each in fields(SamplingParams):
        parameter = PARAMETERS[each.name]
        if parameter.internal:
            continue
        default = each.default if each.default_factory is MISSING else each.default_factory()
        values = parameter.range.removeprefix("be ").removeprefix("a number in ")
        if parameter.max_items is not None:
            values = f"at most {parameter.max_items} entries"
        notes = parameter.meaning + ("" if parameter.beams else " Not with beam search.")
        notes += " Only with beam search." if parameter.only_beams else ""
        taken = (
            *(["C"] if each.name in CompletionBody.__struct_fields__ else []),
            *(["Ch"] if each.name in ChatBody.__struct_fields__ else []),
            *(["g"] if each.name in pb.SamplingParams.DESCRIPTOR.fields_by_name else []),
        )
        kind = str(each.type).replace("|", "\\|")
        cells = (f"`{each.name}`", kind, f"`{default}`", values, notes, ", ".join(taken))
        rows.append(f"| {' | '.join(cells)} |\n")
    return _HEAD + "".join(rows)


def flags_page() -> str:
    """The page of `kvasir serve`'s flags."""
    panels: dict[str, list[str]] = {}
    for option in typer.main.get_command(serve).params:
        if isinstance(option, TyperOption):
            names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
            default = "" if option.default in (None, "", []) else f"`{option.default}`"
            row = f"| {names} | {default} | {option.help} |\n"
            panels.setdefault(str(option.rich_help_panel), []).append(row)
    head = "\n## {}\n\n| flag | default | meaning |\n|---|---|---|\n"
    return _FLAGS_HEAD + "".join(head.format(name) + "".join(rows) for name, rows in panels.items())


if __name__ == "__main__":
    for path, text in ((PAGE, page()), (FLAGS_PAGE, flags_page())):
        if sys.argv[1:] != ["--check"]:
            path.write_text(text)
        elif path.read_text() != text:
            sys.exit(f"{path.name} is not what the tables say: make parameter-docs")
