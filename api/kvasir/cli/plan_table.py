"""A plan as a table in the terminal."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.table import Table

from kvasir.models.fit.fit_plan import Option, Plan
from kvasir.quantity import format_bytes

_WIDTH = 100
_COLUMNS = (
    "device",
    "count",
    "weights",
    "reserve",
    "KV cache",
    "KV type",
    "KV tokens",
    "at once",
    "longest",
)


def print_plan(plan: Plan) -> None:
    """Print what the model is, a row for each device, and a sentence for each problem."""
    console = Console(width=None if sys.stdout.isatty() else _WIDTH, highlight=False)
    console.print(_title(plan), markup=False, soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    for number, title in enumerate(_COLUMNS):
        table.add_column(title, justify="right" if number else "left", no_wrap=True)
    table.add_column("suggested", justify="right", no_wrap=True)
    for option in plan.options:
        table.add_row(*_cells(option), style=None if option.problem is None else "red")
    console.print(table)
    for option in plan.options:
        if option.problem is not None:
            text = f"{option.device.name}: does not fit: {option.problem}"
            console.print(text, markup=False, soft_wrap=True)
    console.print(_LEGEND, markup=False, soft_wrap=True)


_LEGEND = (
    "Sizes are for each device. At once: sequences of the longest wanted length;"
    " longest: tokens of one sequence alone.\n"
)


def _title(plan: Plan) -> str:
    shape = plan.shape
    size = f"{_count(shape.num_parameters)} parameters"
    if shape.num_experts:
        size += f" ({_count(shape.num_active_parameters)} active)"
    if not shape.parameters_exact:
        size = f"about {size}"
    kind = f"{shape.dtype}, {shape.quantization.summary}" if shape.quantization else shape.dtype
    replicas = f", {plan.replicas} replicas" if plan.replicas != 1 else ""
    return (
        f"{plan.name}: {shape.architecture or shape.model_type}, {size}, {kind}, context"
        f" {shape.max_position_embeddings:,}{replicas}"
    )


def _count(number: int) -> str:
    if number >= 10**9:
        return f"{number / 1e9:.2f} billion"
    return f"{number / 1e6:.2f} million"


def _cells(option: Option) -> list[str]:
    fit = option.fit
    suggested = f"{option.suggested}x" if option.suggested else "none"
    if fit is None:
        return [option.device.name, *["-"] * (len(_COLUMNS) - 1), suggested]
    return [
        option.device.name,
        f"{fit.tensor_parallel}x",
        format_bytes(fit.weight_bytes),
        format_bytes(fit.reserve_bytes),
        format_bytes(max(0, fit.kv_bytes)),
        fit.kv_dtype,
        f"{fit.kv_tokens:,}",
        f"{fit.max_concurrency:.1f}",
        f"{fit.longest_context:,}",
        suggested,
    ]
