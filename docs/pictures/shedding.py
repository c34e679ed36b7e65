"""Draws the pictures of docs/shedding.md from tables of the simulator. It implements no shedder itself.

Usage: shedding.py DIRECTORY-OF-TABLES [DIRECTORY]. `cargo test --test shedding csv -- --ignored` writes the tables to
target/tmp/shedding; the same tables always make the same bytes. Each line is a mean over five seconds.
"""

from __future__ import annotations

import csv
import pathlib
import sys

from panels import Panels, Scale

HERE = pathlib.Path(__file__).resolve().parent
SECONDS = 660  # of a run, which lasts until the reply to its last request
MEAN = 5  # seconds
SCALE = Scale(SECONDS, MEAN, [60_000, 360_000])  # in milliseconds: start and end of the overload
PRIORITIES = ["critical", "post", "get", "test"]


class Table:
    """One run, second by second."""

    def __init__(self, path: pathlib.Path) -> None:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))[:SECONDS]
        self.columns = {name: [float(row[name]) for row in rows] for name in rows[0]}

    def means(self, column: str) -> list[float]:
        values = self.columns[column]
        spans = [values[start : start + MEAN] for start in range(0, len(values), MEAN)]
        return [sum(span) / len(span) for span in spans]

    def share(self, priority: str) -> list[float]:
        """Percentage of arrived requests that were answered in time."""
        pairs = zip(self.means(f"succeeded_{priority}"), self.means(f"offered_{priority}"), strict=True)
        return [100 * answered / max(offered, 1e-9) for answered, offered in pairs]


Runs = dict[str, Table]


def both(runs: Runs, column: str) -> dict[str, list[float]]:
    return {kind: run.means(column) for kind, run in runs.items()}


def critical(picture: Panels, runs: Runs) -> None:
    shares = {kind: run.share("critical") for kind, run in runs.items()}
    picture.panel("critical requests answered in time, %", (0, 100), [0, 100], shares)


def workers(tables: Runs) -> Panels:
    runs = {"stop": tables["step_nothing"], "pass": tables["step_workers"]}
    picture = Panels("workers.svg", "One and a half times the capacity, with worker utilization and without", 4, SCALE)
    critical(picture, runs)
    picture.panel("connections that wait", (0, 1_024), [0, 1_024], both(runs, "queue"))
    picture.panel("u: busy slots, mean of 8 s", (0.5, 1), [0.5, 0.7, 0.8, 1], {"pass": runs["pass"].means("u")})
    words = "s: nothing is shed below 0, all but the critical at 1"
    picture.panel(words, (-0.25, 1), [0, 1], {"pass": runs["pass"].means("s")})
    return picture.finish({"stop": "without shedding", "pass": "worker utilization alone"})


def brake(tables: Runs) -> Panels:
    runs = {"stop": tables["triple_workers"], "pass": tables["triple_brake"]}
    picture = Panels("brake.svg", "Three times the capacity, with the brake and without", 4, SCALE)
    critical(picture, runs)
    picture.panel("connections that wait", (0, 1_024), [0, 1_024], both(runs, "queue"))
    picture.panel("the brake is on, share of the time", (0, 1), [0, 1], {"pass": runs["pass"].means("braking")})
    picture.panel("s", (-0.25, 1), [0, 1], both(runs, "s"))
    return picture.finish({"stop": "worker utilization alone", "pass": "with the brake"})


def queue_age(tables: Runs) -> Panels:
    runs = {"stop": tables["critical_workers"], "pass": tables["critical_age"]}
    picture = Panels("queue_age.svg", "More critical work than can be done, with the queue age and without", 3, SCALE)
    critical(picture, runs)
    picture.panel("answers in time, a second; 160 can be", (0, 160), [0, 160], both(runs, "answered"))
    picture.panel("connections that wait", (0, 1_024), [0, 1_024], both(runs, "queue"))
    return picture.finish({"stop": "worker utilization alone", "pass": "with the queue age"})


def reserve(tables: Runs) -> Panels:
    runs = {"stop": tables["reserve_nothing"], "pass": tables["reserve"]}
    picture = Panels("reserve.svg", "A fifth of a hundred slots kept back, and nothing kept back", 4, SCALE)
    critical(picture, runs)
    picture.panel("connections that wait", (0, 1_024), [0, 1_024], both(runs, "queue"))
    picture.panel("slots in use by other work", (0, 100), [0, 80, 100], both(runs, "leases_other"))
    picture.panel("slots in use by critical work", (0, 100), [0, 100], both(runs, "leases_critical"))
    return picture.finish({"stop": "nothing kept back", "pass": "reserve: 20%"})


def together(tables: Runs) -> Panels:
    run = tables["step_all"]
    picture = Panels("together.svg", "One and a half times the capacity under all three, by priority", 5, SCALE)
    for priority in PRIORITIES:
        name = {"post": "POST", "get": "GET"}.get(priority, priority)
        picture.panel(f"{name} answered in time, %", (0, 100), [0, 100], {"pass": run.share(priority)})
    picture.panel("s", (-0.25, 1), [0, 1], {"over": run.means("s")})
    return picture.finish({"pass": "worker utilization, brake and queue age"})


PICTURES = [workers, brake, queue_age, reserve, together]

if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    directory = pathlib.Path(sys.argv[2]) if len(sys.argv) == 3 else HERE / "shedding"
    directory.mkdir(exist_ok=True)
    tables = {path.stem: Table(path) for path in sorted(pathlib.Path(sys.argv[1]).glob("*.csv"))}
    for draw in PICTURES:
        draw(tables).save(directory)
