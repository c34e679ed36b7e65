"""Draws the pictures of docs/algorithms.md from decisions of `tidegate replay`. It implements no algorithm itself.

Usage: draw.py PATH-OF-TIDEGATE [DIRECTORY]. The same decisions always make the same bytes; a test compares them.
Each dot is a request at its arrival time; simultaneous ones are stacked.
"""

from __future__ import annotations

import itertools
import json
import pathlib
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

HERE = pathlib.Path(__file__).resolve().parent
WIDTH, LEFT, RIGHT = 760, 20, 52
DOT = 7  # distance of dots in a stack

# Each picture has its own background, so that it is readable on a page of any colour.
STYLE = """\
svg{--paper:#fff;--ink:#1f2328;--soft:#59636e;--line:#d1d9e0;--pass:#0969da;--stop:#cf222e;--over:#9a6700}
@media (prefers-color-scheme:dark){svg{--paper:#0d1117;--ink:#e6edf3;--soft:#9198a1;--line:#3d444d;\
--pass:#58a6ff;--stop:#ff7b72;--over:#d29922}}
text{font:13px system-ui,sans-serif;fill:var(--ink)}.soft{font-size:12px;fill:var(--soft)}
.rule{font:12px ui-monospace,monospace;fill:var(--soft)}
path{fill:none;stroke-width:1.5}.pass{stroke:var(--pass)}.stop{stroke:var(--stop)}.over,.wait{stroke:var(--over)}
.dots{stroke-width:5;stroke-linecap:round}.ring{stroke-width:1.4}.area{fill:var(--pass);fill-opacity:.16;stroke:none}
.line{stroke:var(--line)}.edge{stroke:var(--soft);stroke-dasharray:2 4}.ink{stroke:var(--ink)}
.limit{stroke:var(--soft);stroke-width:1}"""


@dataclass
class Event:
    """One request: its time in milliseconds and its result: pass, over, wait or stop."""

    at: int
    kind: str
    wait: int


@dataclass
class Run:
    """A trace under one rule: the requests, and the limit and its use over time."""

    rule: str
    events: list[Event]
    used: list[tuple[int, float]]
    limit: int

    def in_the_last(self, window: int) -> list[tuple[int, int]]:
        """Returns, at each change, how many requests passed in the last `window` ms."""
        passed = [event.at for event in self.events if event.kind != "stop"]
        steps = Counter(passed)
        steps.subtract(at + window for at in passed)
        moments = sorted(steps)
        return list(zip(moments, itertools.accumulate(steps[at] for at in moments)))


class Tidegate:
    def __init__(self, path: str) -> None:
        self.path = path

    def replay(self, rule: str, hits: Iterable[int], until: int) -> Run:
        """Judges requests at these milliseconds, and samples the key's state between them."""
        hits = sorted(hits)
        moments = sorted(set(hits) | set(range(0, until + 1, max(until // 500, 1))))
        lines = [(at, "hit") for at in hits] + [(at, "peek") for at in moments]
        # Simultaneous requests are judged before a sample.
        lines.sort(key=lambda line: (line[0], line[1] == "peek"))
        request = '{"t": %d.%03d, "op": "%s", "domain": "d", "descriptors": [["user", "u"]]}\n'
        trace = "".join(request % (at // 1000, at % 1000, op) for at, op in lines)
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as rules:
            rules.write(f"domain: d\nlimits: [{{name: r, key: [user], {rule}}}]\n")
            rules.flush()
            command = [self.path, "replay", "-", "--rules", rules.name, "--decisions", "-"]
            done = subprocess.run(command, input=trace, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"{rule}: {done.stderr}")
        decisions = [json.loads(line) for line in done.stdout.splitlines()]
        events, used = [], []
        for (at, op), decision in zip(lines, decisions, strict=True):
            if op == "hit":
                kinds = {"allow": "over" if decision["notes"] else "pass", "wait": "wait", "limit": "stop"}
                events.append(Event(at, kinds[decision["verdict"]], decision["retry_us"] // 1000))
            else:
                used.append((at, decision["limit"] - decision["remaining"]))
        return Run(rule, events, used, decisions[0]["limit"])


class Picture:
    def __init__(self, name: str, about: str, until: int, height: int) -> None:
        self.name, self.until, self.height = name, until, height
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" role="img">',
            f"<title>{about}</title><style>{STYLE}</style>",
            f'<rect width="{WIDTH}" height="{height}" rx="8" fill="var(--paper)"/>',
        ]

    def x(self, at: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * at / self.until

    def text(self, x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> None:
        words = words.replace("&", "&amp;").replace("<", "&lt;")
        self.parts.append(f'<text x="{x:.0f}" y="{y:.0f}" class="{kind}" text-anchor="{anchor}">{words}</text>')

    def path(self, kind: str, data: Iterable[str]) -> None:
        if joined := "".join(data):
            self.parts.append(f'<path class="{kind}" d="{joined}"/>')

    def dots(self, y: float, events: list[Event]) -> None:
        """Draws stacks of requests: full dots passed, rings wait, crosses are refused."""
        heights: Counter[int] = Counter()
        shapes: dict[str, list[str]] = {}
        for event in events:
            x, top = self.x(event.at), y - DOT * heights[event.at]
            heights[event.at] += 1
            ring = f"M{x - 2.5:.1f} {top:.1f}a2.5 2.5 0 1 1 5 0a2.5 2.5 0 1 1-5 0z"
            cross = f"M{x - 2:.1f} {top - 2:.1f}l4 4m0-4l-4 4"
            shape = {"wait": ring, "stop": cross}.get(event.kind, f"M{x:.1f} {top:.1f}h0")
            shapes.setdefault(event.kind, []).append(shape)
        for kind, data in shapes.items():
            self.path(f"{kind} {'ring' if kind in ('wait', 'stop') else 'dots'}", data)

    def steps(self, bottom: float, scale: float, points: list[tuple[int, float]]) -> list[str]:
        """Draws a staircase through these points."""
        data, last = [], None
        for at, value in points:
            if at < self.until and value != last:
                y = f"{bottom - scale * value:.1f}"
                data.append(f"H{self.x(at):.1f}V{y}" if data else f"M{self.x(at):.1f} {y}")
                last = value
        return [*data, f"H{self.x(self.until):.1f}"]

    def level(self, y: float, height: float, run: Run, top: float, words: str) -> None:
        """Draws the used part of the limit, beneath the dots, on a scale up to `top`."""
        bottom, scale = y + height, height / top
        data = self.steps(bottom, scale, run.used)
        self.path("area", [*data, f"V{bottom:.0f}H{LEFT}z"])
        self.path("pass", data)
        limit = bottom - scale * run.limit
        self.path("limit", [f"M{LEFT} {limit:.1f}H{self.x(self.until):.1f}"])
        self.text(self.x(self.until) + 8, limit + 4, f"{run.limit}", "soft")
        self.text(self.x(self.until) + 8, bottom + 4, "0", "soft")
        self.text(LEFT, y - 6, words, "soft")

    def axis(self, y: float, step: int, edges: Iterable[int] = (), top: float = 0) -> None:
        self.path("line", [f"M{LEFT} {y}H{self.x(self.until):.1f}"])
        moments = range(0, self.until + 1, step)
        self.path("line", [f"M{self.x(at):.1f} {y}v5" for at in moments])
        for at in moments:
            self.text(self.x(at), y + 19, f"{at // 1000}", "soft", "middle")
        self.text(self.x(self.until) + 14, y + 19, "s", "soft")
        self.path("edge", [f"M{self.x(at):.1f} {y}V{top}" for at in edges])

    def legend(self, kinds: dict[str, str], right: float = WIDTH - 10) -> None:
        x = right
        for kind, words in reversed(kinds.items()):
            x -= 6.4 * len(words) + 26
            self.text(x + 9, 24, words, "soft")
            self.dots(20, [Event(round((x - LEFT) * self.until / (WIDTH - LEFT - RIGHT)), kind, 0)])

    def brace(self, start: int, end: int, y: float, words: str) -> None:
        self.path("ink", [f"M{self.x(start):.1f} {y + 6}V{y}H{self.x(end):.1f}v6"])
        self.text((self.x(start) + self.x(end)) / 2, y - 6, words, "", "middle")

    def save(self, directory: pathlib.Path) -> None:
        (directory / self.name).write_text("\n".join([*self.parts, "</svg>\n"]), encoding="utf-8")


PASSED = {"pass": "passed", "stop": "refused"}


def token_bucket(tidegate: Tidegate) -> Picture:
    picture = Picture("token_bucket.svg", "Token bucket: a burst, then the rate; idle time earns a burst", 14_000, 236)
    hits = [*[500] * 8, *range(1_000, 5_501, 250), *[10_500] * 8, *range(11_000, 13_001, 500)]
    run = tidegate.replay("rate: 2/s, burst: 6", hits, picture.until)
    picture.text(LEFT, 24, run.rule, "rule")
    picture.legend(PASSED)
    picture.dots(100, run.events)
    run.used = [(at, run.limit - used) for at, used in run.used]
    picture.level(140, 66, run, 6, "whole tokens left")
    picture.text(picture.x(500) + 12, 62, "6 at once …")
    picture.text(picture.x(1_000), 84, "… then 2 a second, however many come")
    picture.text(picture.x(10_500) - 6, 132, "full, and no fuller", "", "end")
    picture.text(picture.x(10_500) + 12, 62, "6 at once and no more")
    picture.axis(206, 1_000)
    return picture


def leaky_bucket(tidegate: Tidegate) -> Picture:
    picture = Picture("leaky_bucket.svg", "Leaky bucket: what comes at once starts one after the other", 6_000, 290)
    hits = [*[500] * 8, 1_900, 2_000, *range(3_000, 3_750, 75), *range(4_500, 5_700, 450)]
    run = tidegate.replay("algorithm: leaky_bucket, rate: 4/s, queue: 4", hits, picture.until)
    picture.text(LEFT, 24, run.rule, "rule")
    picture.legend({"pass": "starts at once", "wait": "waits", "stop": "refused"})
    picture.dots(106, run.events)
    picture.text(LEFT, 52, "comes", "soft")
    started = [Event(event.at + event.wait, "pass", 0) for event in run.events if event.kind != "stop"]
    granted = [event for event in run.events if event.kind != "stop"]
    picture.path("line", [f"M{picture.x(e.at):.1f} 112L{picture.x(e.at + e.wait):.1f} 150" for e in granted])
    picture.dots(156, started)
    picture.text(LEFT, 160, "starts", "soft")
    picture.text(picture.x(500) + 12, 66, "8 at once: 1 starts, 4 wait, 3 are refused")
    picture.text(picture.x(picture.until), 180, "never less than 250 ms apart", "", "end")
    picture.level(196, 60, run, 5, "places taken: the one that has started, and the queue")
    picture.axis(256, 1_000)
    return picture


def around_the_edge() -> list[int]:
    """Ten late in the first minute, ten early in the second, then one every three seconds."""
    return [*range(46_000, 58_000, 1_200), *range(62_000, 74_000, 1_200), *range(78_000, 150_001, 3_000)]


def fixed_window(tidegate: Tidegate) -> Picture:
    picture = Picture("fixed_window.svg", "Fixed window: up to twice the limit around an edge", 150_000, 218)
    run = tidegate.replay("algorithm: fixed_window, rate: 10/min", around_the_edge(), picture.until)
    picture.text(LEFT, 24, run.rule, "rule")
    picture.legend(PASSED)
    picture.axis(188, 10_000, range(60_000, picture.until, 60_000), 74)
    picture.dots(92, run.events)
    picture.brace(46_000, 72_800, 70, "20 in 27 seconds")
    picture.level(122, 66, run, 12, "counted in this window")
    return picture


def sliding_log(tidegate: Tidegate) -> Picture:
    picture = Picture("sliding_log.svg", "Sliding log: never more than the limit in any window", 150_000, 218)
    run = tidegate.replay("algorithm: sliding_log, rate: 10/min", around_the_edge(), picture.until)
    picture.text(LEFT, 24, run.rule, "rule")
    picture.legend(PASSED)
    picture.axis(188, 10_000)
    picture.dots(92, run.events)
    picture.brace(46_000, 105_999, 70, "10 in 60 seconds, wherever they begin")
    picture.level(122, 66, run, 12, "counted in the last 60 seconds")
    return picture


def sliding_window(tidegate: Tidegate) -> Picture:
    picture = Picture("sliding_window.svg", "Sliding window: an estimate, and what there really was", 150_000, 410)
    picture.legend(PASSED)
    for top, buckets in [(0, 1), (192, 10)]:
        rule = f"algorithm: sliding_window, rate: 10/min, buckets: {buckets}"
        run = tidegate.replay(rule, around_the_edge(), picture.until)
        really = run.in_the_last(60_000)
        most = max(count for _, count in really)
        picture.text(LEFT, top + 24, run.rule, "rule")
        picture.dots(top + 64, run.events)
        # Beneath the estimate, to show the difference.
        picture.path("over", picture.steps(top + 180, scale := 84 / 20, [(0, 0), *really]))
        picture.level(top + 96, 84, run, 20, "estimated for the last 60 seconds")
        at = next(at for at, count in really if count == most)
        picture.text(picture.x(at) + 4, top + 174 - scale * most, f"really: at most {most}")
    picture.axis(372, 10_000)
    return picture


def edges(tidegate: Tidegate) -> Picture:
    picture = Picture("edges.svg", "The same requests under each algorithm", 150_000, 330)
    picture.legend(PASSED, WIDTH - 150)
    rows = ["fixed_window", "sliding_log", "sliding_window, buckets: 1", "sliding_window", "token_bucket"]
    rows += ["token_bucket, burst: 3", "leaky_bucket"]
    picture.text(LEFT, 24, "rate: 10/min", "rule")
    picture.text(WIDTH - 10, 24, "most in 60 s", "soft", "end")
    picture.axis(300, 10_000, [60_000, 120_000], 40)
    for row, algorithm in enumerate(rows):
        run = tidegate.replay(f"rate: 10/min, algorithm: {algorithm}", around_the_edge(), picture.until)
        y = 62 + 36 * row
        picture.text(LEFT, y + 3, algorithm, "rule")
        picture.dots(y, run.events)
        most = max(count for _, count in run.in_the_last(60_000))
        picture.text(WIDTH - 20, y + 4, f"{most}", "", "end")
    return picture


def too_much(tidegate: Tidegate) -> Picture:
    picture = Picture("too_much.svg", "What becomes of requests above the limit", 180_000, 300)
    picture.legend({"pass": "passed", "over": "passed over the limit", "stop": "refused"})
    hits = [*range(40_000, 80_000, 4_000), *range(84_000, 120_000, 6_000), *range(150_000, 175_000, 4_000)]
    rows = ["", "over: {soft: 40%, for: 30s}", "refused: counted", "block: 1min"]
    for row, words in enumerate(rows):
        rule = "algorithm: sliding_log, rate: 5/min" + (f", {words}" if words else "")
        run = tidegate.replay(rule, hits, picture.until)
        y = 78 + 58 * row
        picture.text(LEFT, y - 18, rule, "rule")
        picture.dots(y, run.events)
    picture.axis(268, 10_000)
    return picture


PICTURES = [token_bucket, leaky_bucket, fixed_window, sliding_log, sliding_window, edges, too_much]

if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    directory = pathlib.Path(sys.argv[2]) if len(sys.argv) == 3 else HERE
    for draw in PICTURES:
        draw(Tidegate(sys.argv[1])).save(directory)
