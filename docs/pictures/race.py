"""Draws the chart of docs/performance.md from the result of `make race`.

Usage: race.py target/race.json [DIRECTORY]. Bars are medians of the rounds; thin lines reach from the smallest to the
largest.
"""

from __future__ import annotations

import json
import pathlib
import sys

from draw import LEFT, Picture

HERE = pathlib.Path(__file__).resolve().parent
ROW, TOP, NAMES, BAR, NUMBER = 24, 64, 170, 196, 64
PANELS = {
    "p50_us": "p50 of one decision, one CPU: µs",
    "per_second_8x16": "decisions a second, 8 connections, 16 in flight",
}


def rounded(value: float) -> str:
    """Three significant digits; millions and thousands by their letters."""
    for size, unit in ((1e6, " M"), (1e3, " k")):
        if value >= size:
            return f"{value / size:#.3g}".rstrip(".") + unit
    return f"{value:#.3g}".rstrip(".")


def chart(race: dict) -> Picture:
    entries = [
        (entry["name"], {each["name"]: each["measured"] for each in entry["figures"]}) for entry in race["entries"]
    ]
    height = TOP + ROW * len(entries) + 12
    picture = Picture("race.svg", "p50 and throughput of tidegate beside other limiters", 1, height)
    picture.parts.append("<style>.bar{stroke-width:13}.bar.limit{stroke-opacity:.55}</style>")
    for row, (name, _) in enumerate(entries):
        picture.text(LEFT, TOP + ROW * row + 4, name)
    for column, (figure, words) in enumerate(PANELS.items()):
        left = LEFT + NAMES + column * (BAR + NUMBER + 24)
        picture.text(left, 30, words, "soft")
        most = max(figures[figure]["max"] for _, figures in entries)
        for row, (name, figures) in enumerate(entries):
            y, spread = TOP + ROW * row, figures[figure]
            end, low, high = (left + BAR * spread[key] / most for key in ("median", "min", "max"))
            picture.path("bar pass" if name.startswith("tidegate") else "bar limit", [f"M{left} {y}H{end:.1f}"])
            picture.path("ink", [f"M{low:.1f} {y}H{high:.1f}"])
            picture.text(max(end, high) + 6, y + 4, rounded(spread["median"]), "soft")
    return picture


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    result = json.loads(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8"))
    chart(result).save(pathlib.Path(sys.argv[2]) if len(sys.argv) == 3 else HERE / "performance")
