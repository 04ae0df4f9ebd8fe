"""The study's part of docs/autoscaling.md, and its plot, from benchmarks/results/cpu."""

from __future__ import annotations

import re
from typing import Any

import pygal
from common import markdown_table
from pygal.style import Style

PLOTTED = "bursty"
_LOWEST = 80.0
"""Percent below which nobody wants to be; points there are left out of the plot."""


def scaling_plot(result: dict[str, Any]) -> str:
    """Return the SVG: GPU hours by the share of requests that met both targets."""
    points = [each for each in result["points"] if each["trace"] == PLOTTED]
    seed = min(each["seed"] for each in points)
    style = Style(background="#ffffff", plot_background="#ffffff", font_family="sans-serif")
    chart = pygal.XY(
        style=style,
        js=[],
        width=800,
        height=480,
        no_prefix=True,
        legend_at_bottom=True,
        dots_size=3,
        title=f"GPU hours of a day, trace {PLOTTED}, seed {seed}",
        x_title="requests that met both targets, %",
        y_title="GPU hours",
    )
    chart.config.disable_xml_declaration = True
    for name in dict.fromkeys(each["controller"] for each in points):
        of = [it for it in points if it["controller"] == name and it["seed"] == seed]
        of.sort(key=lambda it: it["target"])
        line = [(round(100 * it["attained"], 3), round(it["gpu_hours"])) for it in of]
        if line := [each for each in line if each[0] >= _LOWEST]:
            chart.add(name, line)
    # pygal signs with the day on which it draws.
    return f"{re.sub('<!--.*?-->', '', chart.render(is_unicode=True))}\n"


def scaling_section(result: dict[str, Any]) -> str:
    """Return the section's figures and tables."""
    lines = [
        result["work"],
        "",
        f"`{result['command']}`, commit {result['commit']}, {result['date']}, "
        f"{result['hardware']}.",
        "",
        "![GPU hours by the share of requests that met both targets](images/autoscaling.svg)",
        "",
    ]
    rows = [
        [
            each["name"],
            f"{each['median']:.2f}",
            {True: "yes", False: "**no**"}[each["met"]],
            " ".join(f"{run:.2f}" for run in each["runs"]),
        ]
        for each in result["figures"]
    ]
    lines += markdown_table(["GPU hours, beside the HPA", "median", "at most 0.8", "seeds"], rows)
    for table in result["tables"]:
        lines += ["", f"{table['title']}:", "", *markdown_table(table["columns"], table["rows"])]
    return "\n".join([*lines, ""])
