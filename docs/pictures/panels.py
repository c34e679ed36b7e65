"""Curves over time, drawn one beneath the other."""

from __future__ import annotations

from dataclasses import dataclass

from draw import LEFT, Picture


@dataclass(frozen=True)
class Scale:
    """Length of a run and span of one mean, in seconds; marked times and the step
    of the axis, in milliseconds."""

    seconds: int
    mean: float
    edges: list[int]
    step: int = 60_000


class Panels(Picture):
    """Draws curves over the same time, one panel beneath the other."""

    def __init__(self, name: str, about: str, panels: int, scale: Scale) -> None:
        super().__init__(name, about, 1_000 * scale.seconds, 64 + 104 * panels)
        self.scale, self.top = scale, 52

    def panel(self, words: str, ends: tuple[float, float], marks: list[float], curves: dict[str, list[float]]) -> None:
        """Draws curves by kind on a scale between `ends`, with a line at each of `marks`."""
        (low, high), height = ends, 66
        bottom = self.top + height

        def y(value: float) -> float:
            return bottom - height * (min(max(value, low), high) - low) / (high - low)

        for mark in marks:
            self.path("line", [f"M{LEFT} {y(mark):.1f}H{self.x(self.until):.1f}"])
            self.text(self.x(self.until) + 8, y(mark) + 4, f"{mark:g}", "soft")
        for kind, values in curves.items():
            middles = [self.x(1_000 * (place + 0.5) * self.scale.mean) for place in range(len(values))]
            points = [f"{x:.0f} {y(value):.1f}" for x, value in zip(middles, values, strict=True)]
            self.path(kind, ["M" + "L".join(points)])
        self.text(LEFT, self.top - 8, words, "soft")
        self.top += 104

    def finish(self, legend: dict[str, str]) -> Panels:
        self.axis(self.top - 30, self.scale.step, self.scale.edges, 44)
        x = LEFT
        for kind, words in legend.items():
            self.path(kind, [f"M{x} 20h18"])
            self.text(x + 24, 24, words, "soft")
            x += 44 + round(6.2 * len(words))
        return self
