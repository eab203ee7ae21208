"""The command as a user runs it."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import psutil
import pytest

import emulator.cli.main
from emulator.cli.entry import entry
from emulator.errors import Inconclusive, MissingError
from emulator.launch.forkserver import Preload, fork_server, serve_ranks
from emulator.launch.scratch import ranks_in
from emulator.registry import VERBS

ANSWERED = (0, Inconclusive.exit_code)
"""Exit statuses of a sweep that is too short, or on too few cores, for a knee to be asked of it."""


@dataclass(frozen=True)
class Done:
    """A finished command."""

    status: int
    out: str
    err: str
    seconds: float

    def one_line(self) -> str:
        """The error as the user sees it; fails unless it is one line, without a traceback."""
        assert "Traceback" not in self.out + self.err, self.err
        lines = [line for line in self.err.splitlines() if line.startswith("feedrate: error:")]
        assert len(lines) == 1, f"one clear line expected, got:\n{self.err}"
        return lines[0]


def feedrate(
    *words: object, timeout: float = 90, mpirun: int = 0, cwd: Path | None = None, **environment: str
) -> Done:
    """Run `feedrate WORDS`, as a rank of an mpirun of the user's own when `mpirun` is a rank count.

    Forked from a process that has imported it, where one runs (see `warm`): the imports would take longer
    than most commands. Not where Python itself is told something by the environment.
    """
    command = [sys.executable, "-m", "emulator", *map(str, words)]
    if _stand_in and not mpirun and not any(name.startswith("PYTHON") for name in environment):
        environment[_WORDS] = json.dumps([os.fspath(cwd or Path.cwd()), *map(str, words)])
        command = [*_stand_in, *command]
    if mpirun:
        launcher = Path(sys.executable).parent / "mpirun"
        command = [str(launcher), "--bind-to", "none", "-n", str(mpirun), *command]
    return finished(command, timeout, cwd=cwd, **environment)


def finished(
    command: Sequence[object], timeout: float = 90, *, cwd: Path | None = None, **environment: str
) -> Done:
    """Run a command to its end."""
    begin = time.monotonic()
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=timeout, check=False, cwd=cwd,
        stdin=subprocess.DEVNULL, env={**os.environ, **ROOT_AND_OVERSUBSCRIBED, **environment},
    )  # fmt: skip
    return Done(done.returncode, done.stdout, done.stderr, time.monotonic() - begin)


def within(before: Sequence[object], *words: object, timeout: float = 90) -> Done:
    """Run `BEFORE feedrate WORDS`, in a process that has imported nothing: under a limit, or by a shell."""
    return finished([*before, sys.executable, "-m", "emulator", *words], timeout)


def in_namespace(script: str, *words: object) -> Done:
    """Run `sh -c SCRIPT WORDS` with mounts of its own; skips the test where users may not have such."""
    space = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c")
    if finished([*space, "true"]).status:
        pytest.skip("this system does not let users make namespaces")
    return finished([*space, script, *words])


def started(
    *words: object, environment: Mapping[str, str] = MappingProxyType({}), **how: Any
) -> subprocess.Popen[str]:
    """Start `feedrate WORDS`, with pipes for what it prints unless `how` says otherwise."""
    return subprocess.Popen(
        [sys.executable, "-m", "emulator", *map(str, words)], text=True, stdin=subprocess.DEVNULL,
        env={**os.environ, **ROOT_AND_OVERSUBSCRIBED, **environment},
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **how},
    )  # fmt: skip


_WORDS = "FEEDRATE_TEST_WORDS"
_stand_in: list[str] = []
"""The command line that asks the server of `warm` for a process."""


@contextmanager
def warm(folder: Path) -> Iterator[None]:
    """Fork commands from a server, whose socket is in `folder`, during the body."""
    path = os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH"))))
    preload, environment = Preload(_serve, (emulator.cli.main,)), {**os.environ, "PYTHONPATH": path}
    with fork_server(folder, preload, (), environment) as stand_in:
        _stand_in[:] = stand_in
        yield
        _stand_in.clear()


def _serve() -> None:
    import altair  # noqa: F401
    import jinja2  # noqa: F401
    import pyarrow.parquet  # noqa: F401

    for verb in VERBS:
        with suppress(MissingError):
            VERBS.load(verb)
    serve_ranks(_forked)


def _forked() -> None:
    cwd, *sys.argv[1:] = json.loads(os.environ.pop(_WORDS))
    os.chdir(cwd)
    entry()


T = TypeVar("T")


def until(found: Callable[[], T], seconds: float = 60.0) -> T:
    """Return what `found()` gives, once it is true, or after so long."""
    deadline = time.monotonic() + seconds
    while not (now := found()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return now


def unless_ended(ask: Callable[[], T], ended: T) -> T:
    """Return what `ask()` tells of a psutil.Process; `ended` where that has ended since it was seen."""
    try:
        return ask()
    except psutil.NoSuchProcess:
        return ended


def is_alive(process: psutil.Process) -> bool:
    """False for a zombie, too, which an init that reaps nothing may leave."""
    ended = psutil.STATUS_ZOMBIE
    return process.is_running() and unless_ended(process.status, ended) != ended


def outlive(processes: Sequence[psutil.Process], seconds: float = 30.0) -> list[str]:
    """Return the processes that still run after so long."""
    until(lambda: not any(map(is_alive, processes)), seconds)
    return [f"{one.pid}: {' '.join(unless_ended(one.cmdline, []))}" for one in processes if is_alive(one)]


def held(pid: int) -> set[str]:
    """List a process's files in /dev/shm: open, mapped, or in its temporary folder. Nobody else's count."""
    place, found = Path("/proc") / str(pid), set()
    with suppress(OSError):  # it has ended
        found |= {line.split(None, 5)[-1].strip() for line in (place / "maps").read_text().splitlines()}
        found |= set((place / "environ").read_text(errors="replace").replace("TMPDIR=", "").split("\0"))
        for descriptor in (place / "fd").iterdir():
            with suppress(OSError):
                found.add(str(descriptor.readlink()))
    return {path.removesuffix(" (deleted)") for path in found if path.startswith("/dev/shm/")}


def scratch_of(process: subprocess.Popen[str]) -> Path:
    """The folder in memory of a command that has started ranks."""
    family = psutil.Process(process.pid).children(recursive=True)
    launchers = [child for child in family if "prterun" in unless_ended(child.name, "")]
    (place,) = {unless_ended(one.environ, {}).get("TMPDIR") for one in launchers} - {None}
    return Path(place)


def ranks_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """Its ranks, in order."""
    found = ranks_in(scratch_of(process))
    return [psutil.Process(found[rank][0]) for rank in sorted(found)]


ROOT_AND_OVERSUBSCRIBED = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_ALLOW_RUN_AS_ROOT": "1",
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
}
