"""Live progress of a command on a terminal: what runs, how long it takes, the curve so far."""

from __future__ import annotations

import io
import math
import shutil
import sys
import textwrap
import threading
from typing import Any, TextIO, cast

from rich.console import Console
from rich.text import Text

from emulator.live import Now, View
from emulator.text import PrintableStream, shown
from emulator.units import show_rate, show_seconds

CHART_ROWS = 9
"""Lines of the chart without its axis."""
LEAST_COLUMNS = 40
"""A narrower terminal is drawn as if it were this wide."""
PLAIN = "dim"


class Terminal(View):
    """The view on a terminal: drawn over on stderr; what others write stays above it."""

    every = 0.5

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._out = sys.stderr.stream if isinstance(sys.stderr, PrintableStream) else sys.stderr
        self._drawn = 0
        self._streams: tuple[TextIO, TextIO] | None = None

    def say(self, line: str) -> None:
        columns = max(LEAST_COLUMNS, shutil.get_terminal_size((80, 24)).columns)
        for part in textwrap.wrap(line, columns - 1, subsequent_indent="    ", drop_whitespace=False) or [""]:
            print(part, flush=True)

    def show(self, now: Now) -> None:
        columns, rows = shutil.get_terminal_size((80, 24))
        text = frame(now, max(LEAST_COLUMNS, columns - 1), rows - 4)
        console = Console(file=io.StringIO(), width=columns, force_terminal=True, color_system="standard")
        with self._lock, console.capture() as drawn:
            for line in text:
                console.print(line, no_wrap=True, overflow="ellipsis", crop=True)
        with self._lock:
            self._keep_above()
            self.clear()
            self._out.write(drawn.get())
            self._out.flush()
            self._drawn = len(text)

    def clear(self) -> None:
        """Take the view away; the next `show` brings it back."""
        with self._lock:
            if self._drawn:
                self._out.write(f"\x1b[{self._drawn}F\x1b[J")
                self._out.flush()
                self._drawn = 0

    def _keep_above(self) -> None:
        """Make everything that is written from now on appear above the view."""
        if self._streams is None:
            self._streams = (sys.stdout, sys.stderr)
            sys.stderr = cast(TextIO, _Above(sys.stderr, self))
            if sys.stdout.isatty():
                sys.stdout = cast(TextIO, _Above(sys.stdout, self))

    def close(self) -> None:
        with self._lock:
            self.clear()
            if self._streams is not None:
                sys.stdout, sys.stderr = self._streams
                self._streams = None

    def written_above(self, stream: TextIO, text: str) -> int:
        """Write `text` where the view is; it comes back below."""
        with self._lock:
            self.clear()
            return stream.write(text)


class _Above:
    """A stream whose text does not mix with the view."""

    def __init__(self, stream: TextIO, view: Terminal) -> None:
        self.stream = stream
        self._view = view

    def write(self, text: str) -> int:
        """Returns the characters of `text`."""
        return self._view.written_above(self.stream, text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def frame(now: Now, columns: int, rows: int = 24) -> list[Text]:
    """The lines of the view, each at most `columns` wide; without the chart where `rows` do not suffice."""
    head = Text(f"feedrate {now.verb}", "bold")
    if now.counted:
        head.append(f"  {now.counted}", "bold")
    head.append(f"  {show_seconds(round(now.seconds))}", PLAIN)
    if now.eta_seconds is not None and math.isfinite(now.eta_seconds):
        left = show_seconds(max(1, round(now.eta_seconds)))
        head.append(f", {'about ' if now.about else ''}{left} left", "bold")
    if head.cell_len > columns:
        head = head[len("feedrate ") :]
    lines = [head]
    if now.share is not None:
        lines.append(_bar(now.share, columns))
    lines += [Text(line) for line in _filled(list(map(shown, now.facts())), columns)]
    drawn = _chart(now, columns) if len(now.curve) > 1 else []
    if len(lines) + len(drawn) <= rows:
        lines += drawn
    for line in lines:
        line.truncate(columns, overflow="ellipsis")
    return lines


def _filled(facts: list[str], columns: int) -> list[str]:
    """The facts in as few lines as hold them whole."""
    lines: list[str] = []
    for fact in facts:
        if lines and len(lines[-1]) + 3 + len(fact) <= columns:
            lines[-1] += f"   {fact}"
        else:
            lines.append(fact)
    return lines


def _bar(share: float, columns: int) -> Text:
    width = columns - 6
    full = min(width, max(0, int(share * width)))
    line = Text("█" * full, "green")
    line.append("░" * (width - full), PLAIN)
    line.append(f" {100 * share:3.0f} %")
    return line


def _chart(now: Now, columns: int) -> list[Text]:
    """Throughput against processes: the runs, what they would read without waiting, the knee's interval."""
    most = max(ranks for ranks, _, _ in now.curve)
    top = 1.15 * max(rate for _, rate, _ in now.curve) or 1.0
    values = {row: show_rate(top * (CHART_ROWS - row - 0.5) / CHART_ROWS) for row in range(0, CHART_ROWS, 4)}
    label = max(map(len, values.values()))
    width = columns - label - 3
    grid = [[(" ", "")] * width for _ in range(CHART_ROWS)]  # a mark and its style

    def put(x: float, y: float, mark: str, how: str) -> None:
        column = min(width - 1, max(0, round(x / most * (width - 2))))
        row = CHART_ROWS - 1 - int(y / top * CHART_ROWS)
        if 0 <= row < CHART_ROWS:
            grid[row][column] = mark, how

    if now.knee is not None:
        low, middle, high = (round(min(end, most) / most * (width - 2)) for end in now.knee)
        for cells in grid:
            cells[low : high + 1] = [("░", "yellow dim")] * (high + 1 - low)
            cells[middle] = "│", "yellow"
    slopes = [ideal / ranks for ranks, _, ideal in now.curve if math.isfinite(ideal) and ideal > 0]
    if slopes:
        for column in range(width - 1):
            x = column / (width - 2) * most
            put(x, x * slopes[-1], "·", PLAIN)
    for ranks, rate, _ in now.curve:
        put(ranks, rate, "●", "bold blue")
    lines = []
    for row, cells in enumerate(grid):
        line = Text(f"{values.get(row, ''):>{label}} {'┤' if row in values else '│'}", PLAIN)
        for mark, how in cells:
            line.append(mark, how or None)
        lines.append(line)
    lines.append(Text(" " * label + " └" + "─" * width, PLAIN))
    lines.append(Text(" " * (label + 2) + _counts([ranks for ranks, _, _ in now.curve], most, width), PLAIN))
    return lines


def _counts(counts: list[int], most: int, width: int) -> str:
    """The counts below their places, as many as fit, and what they are."""
    line = [" "] * (width + 1)
    for count in sorted(set(counts), reverse=True):
        text = f"{count:,}"
        place = round(count / most * (width - 2))
        begin = min(max(0, place - len(text) // 2), width - len(text))
        around = line[max(0, begin - 1) : begin + len(text) + 1]
        if all(mark == " " for mark in around):
            line[begin : begin + len(text)] = text
    words = "processes"
    free = "".join(line).find(" " * (len(words) + 2))
    if free >= 0:
        line[free + 1 : free + 1 + len(words)] = words
    return "".join(line).rstrip()
