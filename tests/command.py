"""The command as a user runs it."""

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import psutil
import pytest

from emulator.cli.entry import entry
from emulator.errors import Inconclusive, MissingError
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
    if _server and not mpirun and not any(name.startswith(("PYTHON", "LD_")) for name in environment):
        return _forked(list(map(str, words)), timeout, cwd, {**ROOT_AND_OVERSUBSCRIBED, **environment})
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
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "preexec_fn": _heed_signals, **how}
    return subprocess.Popen(
        [sys.executable, "-m", "emulator", *map(str, words)], text=True, stdin=subprocess.DEVNULL,
        env={**os.environ, **ROOT_AND_OVERSUBSCRIBED, **environment}, **how,
    )  # fmt: skip


def _heed_signals() -> None:
    """Undo what the tests inherit where they run in the background: SIGINT and SIGHUP are ignored there."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


_server: list[str] = []
"""The socket of the server of `warm`."""


@contextmanager
def warm(folder: Path) -> Iterator[None]:
    """Fork commands, during the body, from a process that has imported all verbs."""
    code = "import sys, command; command.serve(int(sys.argv[1]))"
    path = os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH"))))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(folder / "commands"))
        listener.listen(64)
        server = subprocess.Popen(
            [sys.executable, "-c", code, str(listener.fileno())],
            pass_fds=[listener.fileno()], env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip
    _server.append(str(folder / "commands"))
    yield
    _server.clear()
    server.kill()
    server.wait()


def serve(descriptor: int) -> None:
    """Fork a command for each connection. Returns in the commands."""
    import altair  # noqa: F401
    import jinja2  # noqa: F401
    import pyarrow.parquet  # noqa: F401

    for verb in VERBS:
        with suppress(MissingError):
            VERBS.load(verb)
    gc.freeze()
    listener = socket.socket(fileno=descriptor)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        connection, _ = listener.accept()
        if not os.fork():
            break
        connection.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    listener.close()
    asked, streams, *_ = socket.recv_fds(connection, 2**18, 3)
    if process := os.fork():
        for stream in streams:
            os.close(stream)
        connection.send(str(process).encode())
        _, status = os.waitpid(process, 0)
        connection.send(str(os.waitstatus_to_exitcode(status)).encode())
        os._exit(0)
    connection.close()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    cwd, environment, *sys.argv[1:] = json.loads(asked)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    entry()


def _forked(words: Sequence[str], timeout: float, cwd: Path | None, environment: Mapping[str, str]) -> Done:
    begin = time.monotonic()
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server,
        tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, Path(os.devnull).open() as nothing,
    ):  # fmt: skip
        server.connect(_server[0])
        asked = json.dumps([os.fspath(cwd or Path.cwd()), {**os.environ, **environment}, *words])
        socket.send_fds(server, [asked.encode()], [nothing.fileno(), out.fileno(), err.fileno()])
        process = int(server.recv(64))
        server.settimeout(timeout)
        try:
            status = int(server.recv(64))
        except TimeoutError:
            os.kill(process, signal.SIGKILL)
            raise subprocess.TimeoutExpired(list(words), timeout) from None
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode())
    return Done(status, *texts, time.monotonic() - begin)


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
    (command,) = psutil.Process(process.pid).children()
    (place,) = Path("/dev/shm").glob(f"feedrate-*-{command.pid}-*")
    return place


def ranks_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """Its ranks, in order: their names are feedrate-0, feedrate-1 ..."""
    family = psutil.Process(process.pid).children(recursive=True)
    ranks = [child for child in family if unless_ended(child.name, "").startswith("feedrate-")]
    return sorted(ranks, key=lambda rank: int(rank.name().partition("-")[2]))


ROOT_AND_OVERSUBSCRIBED = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_ALLOW_RUN_AS_ROOT": "1",
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
}
