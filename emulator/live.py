"""What a command says while it works: the lines of its story, and once in a while how far it is.

One process of a command speaks, in one of four ways: a view on a terminal that is drawn over and over, lines
every few seconds elsewhere, a JSON object a second for programs, or nothing. A rank 0 that feedrate launched
itself hands all of it to its launcher, through a file in the scratch folder that they share: the launcher has
the terminal, and what it costs to draw is not paid by a rank.
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Protocol, TextIO

from emulator.errors import SpecError, storage_errors
from emulator.files import SCRATCH_VARIABLE
from emulator.units import show_rate, show_seconds

LINES_SECONDS = 5.0
"""Between two lines where there is no terminal."""
SHARED = "live"
"""Name of the file in the scratch folder by which a rank 0 speaks to its launcher."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Now:
    """How far a command is. None: not known, or not a thing that this command has."""

    verb: str
    """The command: `sweep`."""
    doing: str
    """What runs now, in a few words: `8 processes, step 12 of 40`."""
    unit: str = "run"
    """What is counted: `run`, `test`, `file`."""
    part: int | None = None
    """Number of the one that runs, from 1 on; of files, how many are done."""
    parts: int | None = None
    """How many there are in all."""
    about: bool = False
    """Whether `parts` and `eta_seconds` are estimates that the next measurement may change."""
    share: float | None = None
    """How much of the whole is done (0 to 1)."""
    seconds: float = 0.0
    """Since the command began to work."""
    eta_seconds: float | None = None
    """Until the whole is done."""
    bytes_per_second: float | None = None
    """Now; of many ranks taken from some of them."""
    au: float | None = None
    """Accelerator utilisation now (0 to 1), of the same ranks."""
    limit: str = ""
    """What limits the last finished run, and which: `storage, at 8 processes`."""
    knee: tuple[float, float, float] | None = None
    """2.5 %, 50 % and 97.5 % quantile of the knee so far."""
    curve: tuple[tuple[int, float, float], ...] = ()
    """Finished runs: processes, bytes/s, and bytes/s if none of them ever waited."""

    @property
    def counted(self) -> str:
        """`run 3 of about 12`; empty: nothing is counted."""
        if self.part is None or not self.parts:
            return ""
        return f"{self.unit} {self.part:,} of {'about ' if self.about else ''}{self.parts:,}"

    def facts(self) -> list[str]:
        """What is done and measured now, a few words each."""
        found = [self.doing]
        if self.bytes_per_second is not None:
            found.append(show_rate(self.bytes_per_second))
        if self.au is not None:
            found.append(f"AU {100 * self.au:.0f} %")
        if self.limit:
            found.append(f"limit: {self.limit}")
        if self.knee is not None:
            low, middle, high = self.knee
            found.append(f"knee {middle:.3g} ({low:.3g} to {high:.3g})")
        return found

    def line(self) -> str:
        """All of it in a line."""
        found = [self.counted, *self.facts()] if self.counted else self.facts()
        if self.eta_seconds is not None and math.isfinite(self.eta_seconds):
            found.append(f"{'about ' if self.about else ''}{show_seconds(self.eta_seconds)} left")
        return ", ".join(found)

    def as_json(self) -> str:
        """One line of JSON with the names of the fields."""
        return json.dumps(_finite(asdict(self)), allow_nan=False)


def _finite(value: Any) -> Any:
    """A tree of plain values in which what is not finite is null."""
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def from_json(table: dict[str, Any]) -> Now:
    """The Now that `as_json` wrote."""
    known = {field.name: table[field.name] for field in fields(Now) if field.name in table}
    for name in ("knee", "curve"):
        if known.get(name) is not None:
            known[name] = tuple(tuple(item) if isinstance(item, list) else item for item in known[name])
    return Now(**known)


class View(Protocol):
    """A way to show it."""

    every: float
    """Seconds between two calls of `show`."""

    def say(self, line: str) -> None:
        """A line of the story: it stays."""

    def show(self, now: Now) -> None:
        """How far it is."""

    def close(self) -> None:
        """Nothing more will be shown; a second call does nothing."""


class Lines:
    """Lines, for files and logs."""

    every = LINES_SECONDS

    def say(self, line: str) -> None:
        print(line, file=_people(), flush=True)

    def show(self, now: Now) -> None:
        print(f"    {now.line()}", file=_people(), flush=True)

    def close(self) -> None:
        pass


class Nothing:
    """Only the answer is wanted."""

    every = LINES_SECONDS

    def say(self, line: str) -> None:
        pass

    def show(self, now: Now) -> None:
        pass

    def close(self) -> None:
        pass


class Json:
    """A JSON object a second; the story is on stderr."""

    every = 1.0

    def __init__(self, stream: TextIO, quiet: bool = False) -> None:
        self._stream = stream
        self._quiet = quiet

    def say(self, line: str) -> None:
        if not self._quiet:
            print(line, file=sys.stderr, flush=True)

    def show(self, now: Now) -> None:
        print(now.as_json(), file=self._stream, flush=True)

    def close(self) -> None:
        pass


class Shared:
    """What a launched rank 0 says, for its launcher."""

    every = 1.0

    def __init__(self, path: Path) -> None:
        self._path = path

    def say(self, line: str) -> None:
        self._write({"say": line})

    def show(self, now: Now) -> None:
        self._write({"now": _finite(asdict(now))})

    def _write(self, what: dict[str, Any]) -> None:
        with suppress(OSError), self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(what) + "\n")

    def close(self) -> None:
        pass


class Follower:
    """The launcher's end of `Shared`: `follow` shows what has come since the last call."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / SHARED
        self._read = 0
        self._rest = ""
        self._latest: Now | None = None
        self._at = self._due = 0.0

    def follow(self) -> None:
        """Never waits. What rank 0 does not say in time is shown again, so that time goes on."""
        view = current()
        for line in self._lines():
            what = json.loads(line)
            if "say" in what:
                view.say(what["say"])
            else:
                self._latest, self._at = from_json(what["now"]), time.monotonic()
        now = time.monotonic()
        if self._latest is not None and now >= self._due:
            self._due = max(self._due + view.every, now + view.every / 2)
            view.show(later(self._latest, now - self._at))

    def _lines(self) -> list[str]:
        try:
            with self._path.open(encoding="utf-8") as file:
                file.seek(self._read)
                text = file.read()
                self._read = file.tell()
        except OSError:
            return []
        *whole, self._rest = (self._rest + text).split("\n")
        return whole


def later(now: Now, seconds: float) -> Now:
    """`now` some seconds later, as far as it is known."""
    left = now.eta_seconds
    return replace(
        now, seconds=now.seconds + seconds, eta_seconds=None if left is None else max(0.0, left - seconds)
    )


@dataclass
class _Manner:
    """How this process speaks."""

    view: View | None = None
    terminal: Callable[[], View] | None = None
    """Makes the view on a terminal."""
    answers: TextIO | None = None
    """stdout, where only programs read it."""
    json: bool = False
    """Whether the answer is wanted as JSON."""
    quiet: bool = False
    verbose: bool = False


_manner = _Manner()


def speak(
    *,
    live: str = "auto",
    answer_json: bool = False,
    quiet: bool = False,
    verbose: bool = False,
    rank: int | None = None,
    terminal: Callable[[], View] | None = None,
) -> None:
    """How this process speaks from now on. `live` is `auto`, `lines`, `json`, `json:FILE` or `off`.

    `rank` is None outside of MPI; ranks after the first are silent. `terminal` makes the view that `auto` has
    on a terminal; without it, and elsewhere, there are lines. Where programs read stdout, everything
    for people goes to stderr. Raises SpecError, StorageError.
    """
    kind, _, name = live.partition(":")
    if kind not in ("auto", "lines", "json", "off") or (name and kind != "json"):
        raise SpecError(f"--live {live!r} is not known", "use auto, lines, json, json:FILE or off")
    _manner.json, _manner.quiet, _manner.verbose = answer_json, quiet, verbose
    own = sys.stdout
    if (answer_json or (kind == "json" and not name)) and _manner.answers is None:
        _manner.answers = own
        sys.stdout = sys.stderr
    scratch = os.environ.get(SCRATCH_VARIABLE)
    if rank:
        _manner.view = Nothing()
    elif scratch and rank == 0:
        _manner.view = Shared(Path(scratch) / SHARED)
    elif kind == "json" and name:
        with storage_errors("cannot write --live"):
            _manner.view = Json(Path(name).open("w", encoding="utf-8"), quiet)  # noqa: SIM115  until the end
    elif kind == "json":
        _manner.view = Json(_manner.answers or own, quiet)
    elif kind == "off" or quiet:
        _manner.view = Nothing() if quiet else _Story()
    elif kind == "auto" and sys.stderr.isatty() and rank is None:
        _manner.view, _manner.terminal = None, terminal
    else:
        _manner.view = Lines()


class _Story(Lines):
    """The story without how far it is."""

    def show(self, now: Now) -> None:
        pass


def _people() -> TextIO:
    return sys.stdout


def current() -> View:
    """The view of this process."""
    if _manner.view is None:  # made when it is needed: it imports rich
        _manner.view = _manner.terminal() if _manner.terminal else Lines()
    return _manner.view


def for_programs() -> bool:
    """Whether a program reads the answer."""
    return _manner.json


def quiet() -> bool:
    """Whether only the answer is wanted."""
    return _manner.quiet


def launched() -> bool:
    """Whether this is a rank of feedrate's own launcher, which shows the result."""
    return isinstance(_manner.view, Shared)


def say(line: str) -> None:
    """A line of the story."""
    current().say(line)


def detail(line: str) -> None:
    """What only --verbose wants to know: on stderr."""
    if _manner.verbose:
        print(f"feedrate: {line}", file=sys.stderr, flush=True)


def answer(value: Any) -> None:
    """The answer for programs: one line of JSON on stdout, what is not finite as null."""
    stream = _manner.answers or sys.stdout
    print(json.dumps(_finite(value), ensure_ascii=False, allow_nan=False), file=stream, flush=True)


@contextmanager
def telling(now: Callable[[], Now]) -> Iterator[None]:
    """While the body runs, a thread shows `now()` once in a while. `now` must not raise or wait."""
    view, over = current(), threading.Event()

    def tell() -> None:
        while not over.wait(view.every):
            view.show(now())

    thread = threading.Thread(target=tell, name="live", daemon=True)
    if not isinstance(view, Nothing):
        thread.start()
    try:
        yield
    finally:
        over.set()
        if thread.is_alive():
            thread.join(1.0)
        view.close()
