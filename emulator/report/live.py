"""Live progress of a command on a terminal, drawn by rich: what runs, how much is left, the knee so far."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

from emulator.live import Now, View
from emulator.text import PrintableStream, shown
from emulator.units import show_seconds


class Terminal(View):
    """The view on a terminal: drawn over on stderr; what others print stays above it."""

    every = 0.5

    def __init__(self) -> None:
        stream = sys.stderr.stream if isinstance(sys.stderr, PrintableStream) else sys.stderr
        self._console = Console(file=stream, highlight=False, markup=False, emoji=False)
        self._live: Live | None = None

    def say(self, line: str) -> None:
        print(shown(line), flush=True)

    def show(self, now: Now) -> None:
        if self._live is None:
            above = sys.stdout.isatty()  # a file gets what is printed, and the terminal nothing of it
            self._live = Live(
                console=self._console, transient=True, auto_refresh=False, redirect_stdout=above
            )
            self._live.start()
        self._live.update(Group(*frame(now)), refresh=True)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


def frame(now: Now) -> Iterator[Text | ProgressBar]:
    """The lines of the view."""
    head = Text(f"feedrate {now.verb}", "bold")
    if now.counted:
        head.append(f"  {now.counted}", "bold")
    head.append(f"  {show_seconds(round(now.seconds))}", "dim")
    if now.eta_seconds is not None and math.isfinite(now.eta_seconds):
        left = show_seconds(max(1, round(now.eta_seconds)))
        head.append(f", {'about ' if now.about else ''}{left} left", "bold")
    yield head
    if now.share is not None:
        yield ProgressBar(total=1.0, completed=now.share)
    yield Text("   ".join(map(shown, now.facts())))
