"""Draws the pictures of docs/fleet.md from tables of the simulator. It computes no budget itself.

Usage: fleet.py DIRECTORY-OF-TABLES [DIRECTORY]. The tables are those that `cargo test --test fleet csv -- --ignored`
writes to target/tmp/fleet; the same tables always make the same bytes. Each line is a mean over a fifth of a second.
"""

from __future__ import annotations

import csv
import pathlib
import sys

from panels import Panels, Scale

HERE = pathlib.Path(__file__).resolve().parent
SECONDS, MEAN = 24, 0.2
ROWS = 2  # rows per mean: tenths of a second
Table = dict[str, list[float]]


def read(path: pathlib.Path) -> Table:
    """Requests a second."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    spans = [rows[start : start + ROWS] for start in range(0, len(rows), ROWS)]
    return {name: [sum(float(row[name]) for row in span) / MEAN for span in spans] for name in rows[0]}


def panel(picture: Panels, words: str, run: Table, top: float, marks: list[float]) -> None:
    curves = {"limit": run["offered"], "over": run["perfect"], "pass": run["admitted"]}
    picture.panel(words, (0, top), marks, curves)


LEGEND = {"pass": "admitted by ten hosts", "over": "by one bucket that knows all", "limit": "asked for"}


def moving(tables: dict[str, Table]) -> Panels:
    scale = Scale(SECONDS, MEAN, [5_000, 10_000, 15_000, 20_000], 4_000)
    picture = Panels("moving.svg", "The host that has nine of ten requests is another one every five seconds", 3, scale)
    for name, words in (
        ("near", "requests a second; Redis is 0.5 ms away"),
        ("far", "50 ms"),
        ("farther", "500 ms"),
    ):
        panel(picture, words, tables[f"moving_{name}"], 2_200, [0, 1_000, 2_000])
    return picture.finish(LEGEND)


def outage(tables: dict[str, Table]) -> Panels:
    scale = Scale(SECONDS, MEAN, [8_000, 16_000], 4_000)
    picture = Panels("outage.svg", "Redis is gone from the eighth second to the sixteenth", 2, scale)
    panel(picture, "it comes back with its data, requests a second", tables["outage_kept"], 2_200, [0, 1_000, 2_000])
    panel(picture, "it comes back without", tables["outage_empty"], 2_200, [0, 1_000, 2_000])
    return picture.finish(LEGEND)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    directory = pathlib.Path(sys.argv[2]) if len(sys.argv) == 3 else HERE / "fleet"
    directory.mkdir(exist_ok=True)
    tables = {path.stem: read(path) for path in sorted(pathlib.Path(sys.argv[1]).glob("*.csv"))}
    for draw in (moving, outage):
        draw(tables).save(directory)
