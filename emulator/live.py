"""Messages and progress of a command while it works, and its answer for programs.

One process of a command prints: on a terminal a view that is redrawn, elsewhere a line every few seconds, for
programs a JSON object a second, or nothing. Rank 0 of ranks that a command forks sends messages and progress
through a pipe instead, and the command, which has the terminal, shows them without using a rank's CPU.
"""

from __future__ import annotations

import json
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TextIO

from emulator.errors import SpecError, storage_errors
from emulator.files import folder_of
from emulator.units import show_rate, show_seconds

_LINE_SECONDS = 5.0
"""Seconds between two lines of progress if there is no terminal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Now:
    """Progress of a command. Fields are None if they are unknown or do not apply."""

    verb: str
    """The command: `sweep`."""
    doing: str
    """Present activity: `8 processes, step 12 of 40`."""
    unit: str = "run"
    """Unit of `part` and `parts`: `run`, `test`, `file`."""
    part: int | None = None
    """Number of the present part, from 1 on; for files, the number done."""
    parts: int | None = None
    about: bool = False
    """True if the next measurement may change `parts` and `eta_seconds`."""
    share: float | None = None
    """Share of the whole that is done (0 to 1)."""
    seconds: float = 0.0
    """Seconds since the command began to work."""
    eta_seconds: float | None = None
    """Estimated seconds until the whole is done."""
    bytes_per_second: float | None = None
    """Present rate of all ranks, taken to be that of rank 0 times their number."""
    au: float | None = None
    """Present accelerator utilization of rank 0 (0 to 1)."""
    limit: str = ""
    """Limit of the last finished run: `storage at 8 ranks`."""
    knee: tuple[float, float, float] | None = None
    """Quantiles of the present knee: 2.5 %, 50 %, 97.5 %."""

    @property
    def counted(self) -> str:
        """Number of the present part, such as `run 3 of about 12`; empty if parts are not counted."""
        if self.part is None or not self.parts:
            return ""
        return f"{self.unit} {self.part:,} of {'about ' if self.about else ''}{self.parts:,}"

    def facts(self) -> list[str]:
        """Return the activity and the measurements, in a few words each."""
        facts = [self.doing]
        if self.bytes_per_second is not None:
            facts.append(show_rate(self.bytes_per_second))
        if self.au is not None:
            facts.append(f"AU {100 * self.au:.0f} %")
        if self.limit:
            facts.append(f"limit: {self.limit}")
        if self.knee is not None:
            low, middle, high = self.knee
            facts.append(f"knee {middle:.3g} ({low:.3g} to {high:.3g})")
        return facts

    def line(self) -> str:
        """Return progress as one line."""
        facts = [self.counted, *self.facts()] if self.counted else self.facts()
        if self.eta_seconds is not None and math.isfinite(self.eta_seconds):
            facts.append(f"{'about ' if self.about else ''}{show_seconds(self.eta_seconds)} left")
        return ", ".join(facts)

    def as_json(self) -> str:
        """Return one line of JSON, keyed by field name."""
        return json.dumps(finite(asdict(self)), allow_nan=False)


def share_done(seconds: float, left: float | None) -> float | None:
    """Return the share of the total time that has passed (0 to 1); None if `left` is unknown."""
    if left is None or not math.isfinite(left) or seconds + left <= 0:
        return None
    return seconds / (seconds + left)


def finite(value: Any) -> Any:
    """Return a tree of plain values with None in place of numbers that are not finite."""
    if isinstance(value, dict):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class View:
    """Shows messages and progress. This base class shows nothing, for --quiet and all ranks but the first."""

    every = _LINE_SECONDS
    """Seconds between two calls of `show`."""

    def say(self, line: str) -> None:
        """Print a message."""

    def show(self, now: Now) -> None:
        """Show progress, in place of the earlier progress."""

    def close(self) -> None:
        """End the view. A second call does nothing."""


class _Messages(View):
    """Prints messages without progress."""

    def say(self, line: str) -> None:
        print(line, flush=True)


class Lines(_Messages):
    """Prints lines, for files and logs."""

    def show(self, now: Now) -> None:
        print(f"    {now.line()}", flush=True)


class Json(View):
    """Prints progress as a JSON object a second, and messages on stderr."""

    every = 1.0

    def __init__(self, stream: TextIO, quiet: bool = False) -> None:
        self._stream = stream
        self._quiet = quiet

    def say(self, line: str) -> None:
        if not self._quiet:
            print(line, file=sys.stderr, flush=True)

    def show(self, now: Now) -> None:
        print(now.as_json(), file=self._stream, flush=True)


class Shared(View):
    """Sends messages and progress of rank 0 to the command that forked it."""

    every = 1.0

    def __init__(self, pipe: Connection[Any, Any]) -> None:
        self._pipe, self._lock = pipe, threading.Lock()

    def say(self, line: str) -> None:
        self._send(line)

    def show(self, now: Now) -> None:
        self._send(now)

    def _send(self, what: str | Now) -> None:
        with self._lock, suppress(OSError):
            self._pipe.send(what)


class Follower:
    """Shows, in the command, the messages and progress that rank 0 sends with `Shared`."""

    def __init__(self, pipe: Connection[Any, Any]) -> None:
        self._pipe = pipe
        self._due = 0.0

    def follow(self) -> None:
        """Show new messages, and the last progress if it is time to. Never waits."""
        view, latest = current(), None
        with suppress(EOFError, OSError):  # rank 0 has ended
            while self._pipe.poll():
                what = self._pipe.recv()
                if isinstance(what, str):
                    view.say(what)
                latest = what if isinstance(what, Now) else None
        now = time.monotonic()
        if latest is not None and now >= self._due:
            self._due = now + 0.8 * view.every  # it comes once a second
            view.show(latest)


@dataclass
class _Output:
    """The output of this process, which `speak` sets."""

    view: View | None = None
    terminal: Callable[[], View] | None = None
    """Makes the view on a terminal when it is first needed."""
    answers: TextIO | None = None
    """The real stdout, if it is reserved for programs."""
    json: bool = False
    quiet: bool = False
    verbose: bool = False


_output = _Output()


def speak(
    *,
    live: str = "auto",
    answer_json: bool = False,
    quiet: bool = False,
    verbose: bool = False,
    rank: int | None = None,
    terminal: Callable[[], View] | None = None,
) -> None:
    """Choose how this process prints from now on. `live` is `auto`, `lines`, `json`, `json:FILE` or `off`.

    `rank` is None outside MPI; ranks after the first are silent. `auto` uses the view that `terminal` makes
    on a terminal, and prints lines elsewhere. If programs read stdout, messages go to stderr. Raises
    SpecError, StorageError.
    """
    kind, _, name = live.partition(":")
    if kind not in ("auto", "lines", "json", "off") or (name and kind != "json"):
        raise SpecError(f"--live {live!r} is not known", "use auto, lines, json, json:FILE or off")
    _output.json, _output.quiet, _output.verbose = answer_json, quiet, verbose
    stdout = sys.stdout
    if (answer_json or live == "json") and _output.answers is None:
        _output.answers = stdout
        sys.stdout = sys.stderr
    _output.terminal = None
    if rank or (quiet and kind != "json"):
        _output.view = View()
    elif kind == "json":
        _output.view = Json(_progress_file(Path(name)) if name else _output.answers or stdout, quiet)
    elif kind == "off":
        _output.view = _Messages()
    elif kind == "auto" and rank is None and sys.stderr.isatty():
        _output.view, _output.terminal = None, terminal
    else:
        _output.view = Lines()


def _progress_file(file: Path) -> TextIO:
    """Open the file of --live json:FILE. Raises SpecError, StorageError."""
    if file.exists() and (folder := folder_of("dataset", file) or folder_of("result", file)):
        raise SpecError(f"{file} lies in {folder}, a dataset or a result", "choose another file for --live")
    with storage_errors("cannot write --live"):
        return file.open("w", encoding="utf-8")


def in_rank(rank: int, pipe: Connection[Any, Any]) -> None:
    """Print as rank `rank` that this command has forked: rank 0 through `pipe`, others not at all."""
    _output.view = View() if rank else Shared(pipe)


def current() -> View:
    """Return the view of this process."""
    if _output.view is None:  # made late, because it imports rich
        _output.view = _output.terminal() if _output.terminal else Lines()
    return _output.view


@contextmanager
def silent() -> Iterator[None]:
    """Show nothing during the body."""
    before, _output.view = _output.view, View()
    try:
        yield
    finally:
        _output.view = before


def for_programs() -> bool:
    """Return True if the answer is printed as JSON."""
    return _output.json


def quiet() -> bool:
    """Return True if only the answer is printed."""
    return _output.quiet


def say(line: str) -> None:
    """Print a message."""
    current().say(line)


def detail(line: str) -> None:
    """Print a line on stderr if --verbose is given."""
    if _output.verbose:
        print(f"feedrate: {line}", file=sys.stderr, flush=True)


def answer(value: Any) -> None:
    """Print the answer for programs: one line of JSON on stdout, with null for infinity and NaN."""
    stream = _output.answers or sys.stdout
    print(json.dumps(finite(value), ensure_ascii=False, allow_nan=False), file=stream, flush=True)


@contextmanager
def telling(now: Callable[[], Now]) -> Iterator[None]:
    """Show `now()` from a thread during the body. `now` must not raise or wait."""
    view, over = current(), threading.Event()

    def tell() -> None:
        while not over.wait(view.every):
            view.show(now())

    thread = threading.Thread(target=tell, name="live", daemon=True)
    if type(view) is not View:  # which would show nothing
        thread.start()
    try:
        yield
    finally:
        over.set()
        if thread.is_alive():
            thread.join(1.0)
        view.close()
