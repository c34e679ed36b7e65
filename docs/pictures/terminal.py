"""Draws the first act of `make demo` in a terminal, as an animation for the README, from a run of it.

Usage: terminal.py TIDEGATE [DIRECTORY]. Lines appear when they were printed. `…` stands for parts that are left out.
"""

from __future__ import annotations

import itertools
import os
import pathlib
import re
import subprocess
import sys
import textwrap
import time

from draw import HERE, STYLE

ACT = "import sys, demo; sys.exit(demo.quotas(sys.argv[1]))"
COLUMNS, LINE, LEFT, TOP, WIDTH = 98, 18, 22, 56, 830
HOLD = 9.0  # seconds for which the last image stays
# Lines that are not shown: the example of an allowed request, further headers, the summary, and two of the callers.
LEFT_OUT = re.compile(
    r"Content-|Cache-|X-Ratelimit|ben was|cleo was|it allows|    the rules| +(caller +sent|(ann|ben|cleo|greedy) +\d)"
)
ESCAPE = re.compile(r"\033\[\d+m")
KINDS = {"1": "bold", "31": "stop"}


def act(tidegate: str) -> list[tuple[float, str]]:
    """Runs the act in a terminal; returns its lines, with the seconds since its start."""
    root = HERE.parents[1]
    ours, theirs = os.openpty()
    path = os.pathsep.join([str(root / "demo"), str(root / "clients/python/src")])
    environment = os.environ | {"PYTHONPATH": path, "TERM": "xterm", "TMPDIR": "/tmp"}
    environment.pop("NO_COLOR", None)
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-c", ACT, tidegate], stdout=theirs, stdin=subprocess.DEVNULL, env=environment
    )
    os.close(theirs)
    lines, text = [], b""
    while True:
        try:
            text += os.read(ours, 65_536)
        except OSError:  # the terminal has closed
            break
        *whole, text = text.split(b"\n")
        lines += [(time.monotonic() - began, line.decode().rstrip()) for line in whole]
    if process.wait():
        sys.exit("\n".join(line for _, line in lines))
    return lines


def shown(lines: list[tuple[float, str]]) -> list[tuple[float, str]]:
    """Cuts an act to the lines of the picture, each as wide as the terminal at most."""
    result, example = [(0.0, "\033[1m$ make demo\033[0m")], False
    for at, line in lines:
        example = "HTTP/1.1 200" in line or (example and "HTTP/1.1" not in line)
        if example or LEFT_OUT.match(line) or (not line and not result[-1][1]):
            continue
        line = re.sub(r"/tidegate-demo-\w+", "", line)
        line = re.sub(r'^\{.*("detail":".*?").*\}$', r"{… \1, …}", line)
        width = COLUMNS + len("".join(ESCAPE.findall(line)))
        result += [(at, part) for part in textwrap.wrap(line, width, subsequent_indent=" " * 19) or [""]]
    return result


def spans(line: str) -> str:
    """Converts a terminal's bold and colours."""
    kind, parts = "", []
    for index, part in enumerate(re.split(r"\033\[(\d+)m", line)):
        if index % 2:
            kind = KINDS.get(part, "")
        elif part:
            escaped = part.replace("&", "&amp;").replace("<", "&lt;")
            parts.append(f'<tspan class="{kind}">{escaped}</tspan>' if kind else escaped)
    return "".join(parts)


def picture(lines: list[tuple[float, str]]) -> str:
    height = TOP + LINE * len(lines) + 6
    length = lines[-1][0] + HOLD
    groups, style = [], []
    for index, (at, group) in enumerate(itertools.groupby(enumerate(lines), lambda each: round(each[1][0], 1))):
        texts = "".join(
            f'<text x="{LEFT}" y="{TOP + LINE * row}">{spans(line)}</text>' for row, (_, line) in group if line
        )
        groups.append(f'<g class="g{index}">{texts}</g>' if at else texts)
        if at:
            style.append(f"@keyframes g{index}{{0%{{opacity:0}}{100 * at / length:.1f}%{{opacity:1}}}}")
            style.append(f".g{index}{{animation:g{index} {length:.1f}s step-end infinite}}")
    circles = "".join(f'<circle cx="{LEFT + 6 + 18 * each}" cy="18" r="5" fill="var(--line)"/>' for each in range(3))
    box = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}"'
    frame = f'width="{WIDTH - 1}" height="{height - 1}" rx="8" fill="var(--paper)" stroke="var(--line)"'
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" {box} role="img" xml:space="preserve">',
        "<title>make demo: a greedy caller gets its quota and no more, the other callers are untouched</title>",
        f"<style>{STYLE}",
        "text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;white-space:pre}",
        "tspan{fill:var(--ink)}.bold{font-weight:700}tspan.stop{fill:var(--stop);stroke:none}",
        *style,
        "@media (prefers-reduced-motion:reduce){g{animation:none!important}}</style>",
        f'<rect x=".5" y=".5" {frame}/>',
        circles,
        *groups,
        "</svg>\n",
    ])  # fmt: skip


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    directory = pathlib.Path(sys.argv[2]) if len(sys.argv) == 3 else HERE / "demo"
    directory.mkdir(exist_ok=True)
    (directory / "quotas.svg").write_text(picture(shown(act(sys.argv[1]))), encoding="utf-8")
