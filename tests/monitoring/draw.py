# SPDX-License-Identifier: Apache-2.0
"""Draws the panels of the dashboard from what Prometheus answers, to be looked at.

::

    .venv/bin/python -m tests.monitoring.draw FILE.svg
"""

import html
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from nvct_sim import node_changes
from tests.monitoring.live import Live, live
from tests.monitoring.test_live import DASHBOARD, expanded

COLUMN, ROW, MARGIN = 60, 30, 6
"""Pixels of a cell of Grafana's grid, and around a panel."""
SECONDS = 45
COLORS = ("#56a64b", "#f2cc0c", "#3274d9", "#e02f44", "#a352cc", "#ff780a", "#37872d", "#8ab8ff")


def main() -> None:
    """Run a node for a while, and draw."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, live(Path(folder)) as running:
        for second in range(SECONDS):
            for index in range(1, 7):
                load = 50 + 40 * ((second // (3 + index)) % 2) - 5 * index
                words = [f"util={load}", f"power_usage={7000 * load}", f"temp={30 + load // 2}"]
                node_changes.apply(running.node, "gpu", [str(index), *words])
            time.sleep(1)
        parts = [_panel(panel, running) for panel in DASHBOARD["panels"]]
    height = max(p["gridPos"]["y"] + p["gridPos"]["h"] for p in DASHBOARD["panels"]) * ROW
    Path(sys.argv[1]).write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{24 * COLUMN}" height="{height}" '
        'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="#eee"/>'
        f"{''.join(parts)}</svg>\n",
        encoding="utf-8",
    )


def _panel(panel: dict[str, Any], running: Live) -> str:
    place = panel["gridPos"]
    x, y = place["x"] * COLUMN + MARGIN, place["y"] * ROW + MARGIN
    width, height = place["w"] * COLUMN - 2 * MARGIN, place["h"] * ROW - 2 * MARGIN
    title = _text(4, 14, panel["title"], "bold")
    if panel["type"] == "row":
        return f'<g transform="translate({x},{y})">{title}</g>'
    (target,) = panel["targets"]
    query, unit = expanded(target["expr"]), panel["fieldConfig"]["defaults"]["unit"]
    if panel["type"] == "stat":
        (answer,) = running.query(query)
        content = _text(10, 70, f"{float(answer['value'][1]):.4g} {unit}", "bold")
    elif panel["type"] == "table":
        content = _table(running.query(query), height)
    else:
        series = running.over_time(query, SECONDS)
        content = _lines(series, target["legendFormat"], unit, width, height)
    return (
        f'<g transform="translate({x},{y})"><rect width="{width}" height="{height}" fill="#fff"/>'
        f'<svg width="{width}" height="{height}">{title}{content}</svg></g>'
    )


def _text(x: float, y: float, text: str, weight: str = "normal") -> str:
    return f'<text x="{x}" y="{y}" font-weight="{weight}">{html.escape(text)}</text>'


def _table(series: list[dict[str, Any]], height: int) -> str:
    rows = [
        "  ".join([*row["metric"].values(), row["value"][1]])
        for row in series[: (height - 20) // 15]
    ]
    return "".join(_text(4, 32 + 15 * number, row) for number, row in enumerate(rows))


def _lines(series: list[dict[str, Any]], legend: str, unit: str, width: int, height: int) -> str:
    points = [[(float(at), float(value)) for at, value in one["values"]] for one in series]
    first = min(at for line in points for at, _ in line)
    top = max(value for line in points for _, value in line) or 1
    parts = [_text(4, 30, f"{top:.4g} {unit}")]
    for number, line in enumerate(points):
        at = " ".join(
            f"{(t - first) / SECONDS * (width - 8) + 4:.1f},"
            f"{height - 30 - value / top * (height - 70):.1f}"
            for t, value in line
        )
        color = COLORS[number % len(COLORS)]
        name = legend
        for label, text in series[number]["metric"].items():
            name = name.replace("{{" + label + "}}", text)
        parts.append(f'<polyline points="{at}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts.append(
            f'<g fill="{color}">{_text(4 + 120 * (number % 4), height - 4 - 12 * (number // 4), name)}</g>'
        )
    return "".join(parts)


if __name__ == "__main__":
    main()
