"""Run a job unchanged and receive its events: the child process, the pipes, the signals."""

from __future__ import annotations

import fcntl
import os
import selectors
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType

from emulator.errors import LaunchError, SpecError, StorageError
from emulator.launch.child import signals_to
from emulator.launch.process import die_with_parent, has_ended, kill_family
from emulator.launch.scratch import scratch
from emulator.launch.supervise import FOR_PROGRAMS, end_by, tell_status
from emulator.launch.watch import UNWATCHED, storage_timeout
from emulator.plugins.recorder import strace
from emulator.plugins.recorder.hook import feedrate_probe as probe
from emulator.plugins.recorder.watch import Watch
from emulator.units import show_seconds

HOOK = Path(probe.__file__).parent
"""Folder at the start of the job's PYTHONPATH."""

_CALLS = "calls"
_POLL_SECONDS = 0.25
"""Seconds between two reads of the counters in /proc."""
_GULP_SECONDS = 0.02
"""Seconds between two reads of the pipes."""
_END_SECONDS = 5.0
"""Seconds for a tracer to end."""
_CHUNK = 1 << 20
"""Bytes that a pipe holds, and most bytes of a read."""
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_SAME_SECONDS = 0.5
"""Seconds within which two equal signals are one, from the process group and from the supervisor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """The outcome of the job."""

    status: int
    """Exit status; -N for signal N."""
    stopped: bool
    """True if the recording ended before the job, after the requested steps."""


class Listener:
    """A thread that reads the pipes into a Watch until it is stopped."""

    def __init__(self, folder: Path, watch: Watch, traced: int, enough: int | None) -> None:
        """Start the thread. Calls are traced for `traced` steps; recording ends after `enough` steps."""
        self._watch = watch
        self._traced = traced
        self._enough = enough
        self._events = _pipe(folder / probe.EVENTS)
        self._output = folder / _CALLS
        self._calls = _pipe(self._output) if watch.traced else -1
        self._stop = threading.Event()
        self.full = False
        """True after `enough` steps."""
        self.failure = ""
        """Why the thread failed; empty if it did not."""
        # Unwatched, because it calls stat on the job's files, which may hang: that must not end the job.
        self._thread = threading.Thread(target=self._run, name=UNWATCHED, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._listen()
        except Exception as error:  # noqa: BLE001  the job must not wait for a dead reader
            self.failure = f"the recording ended early ({type(error).__name__}: {error})"
        if self._calls >= 0 or not self._watch.traced:
            self._end_reads()
        os.close(self._events)

    def _listen(self) -> None:
        selector = selectors.DefaultSelector()
        selector.register(self._events, selectors.EVENT_READ)
        if self._calls >= 0:
            selector.register(self._calls, selectors.EVENT_READ)
        due = 0.0
        while True:
            # Read large pieces: with a wake-up for each line, this thread uses more CPU than strace.
            time.sleep(_GULP_SECONDS)
            ready = selector.select(_POLL_SECONDS)
            for key, _ in ready:
                data = _read(key.fd)
                if key.fd == self._events:
                    self._watch.events(data)
                else:
                    self._watch.tracer.feed(data)
            now = time.monotonic()
            if now >= due:
                due = now + _POLL_SECONDS
                self._watch.poll()
            steps = self._watch.steps
            # Somebody may have killed the tracer: reads after that are not seen.
            if self._calls >= 0 and (steps >= self._traced or self._watch.tracer.gone()):
                selector.unregister(self._calls)
                self._end_reads()
            self.full = self._enough is not None and steps >= self._enough
            if self.full or (self._stop.is_set() and not ready):
                return

    def _end_reads(self) -> None:
        """Detach strace from all processes of the job, and read the rest of its output."""
        tracer, deadline = self._watch.tracer.strace, time.monotonic() + _END_SECONDS
        calls, self._calls = self._calls, -1
        if calls >= 0:
            strace.end(self._output)
            while time.monotonic() < deadline:
                over = has_ended(tracer)
                data = _read(calls)
                self._watch.tracer.feed(data)
                if over and not data:
                    break
                time.sleep(0.0 if data else 0.001)
            os.close(calls)  # a tracer that still runs ends with its next line
        self._watch.end_reads()

    def stop(self) -> None:
        """Read the rest of the pipes, and end. Processes of the job that still run are no longer traced.

        Raises StorageError if a file of the job does not answer.
        """
        self._stop.set()
        timeout = storage_timeout(sys.argv[1:])
        self._thread.join(_END_SECONDS + timeout)
        if self._thread.is_alive():
            raise StorageError(
                f"a file that the job read has not answered for {show_seconds(timeout)}",
                "the storage hangs; see the system log",
            )


def _pipe(path: Path) -> int:
    os.mkfifo(path, 0o600)
    # Also open for writing, so that the pipe has no EOF after its last writer.
    descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    with suppress(OSError):
        fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _CHUNK)
    return descriptor


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, _CHUNK)
    except BlockingIOError:
        return b""


def environment(folder: Path, traced: bool) -> dict[str, str]:
    """Return the job's environment."""
    variables = dict(os.environ)
    variables["PYTHONPATH"] = os.pathsep.join([str(HOOK), *filter(None, [variables.get("PYTHONPATH", "")])])
    variables[probe.FOLDER] = str(folder)
    variables.pop(probe.OPENS, None)
    if not traced:
        variables[probe.OPENS] = "1"
    return variables


def run_job(job: Sequence[str], watch: Watch, *, steps: int | None, warmup: int, traced_steps: int) -> Ran:
    """Run the command `job` to its end with a Listener.

    It records `steps` steps (None for all) after `warmup`, and traces reads in the first `traced_steps` of
    them, but at most in half. Raises LaunchError if the job cannot be started, StorageError.
    """
    traced = warmup + (traced_steps if steps is None else min(traced_steps, steps // 2))
    enough = None if steps is None else warmup + steps
    if shutil.which(job[0]) is None:
        raise LaunchError(f"there is no program {job[0]!r}", "give the command of the job after --")
    with scratch() as (folder, _):
        listener = Listener(folder, watch, traced, enough)
        words = strace.command(folder / _CALLS, job) if watch.traced else list(job)
        try:
            status = _run(words, environment(folder, watch.traced))
        finally:
            listener.stop()
    if listener.failure:
        sys.stderr.write(f"feedrate record: {listener.failure}; the job was not affected\n")
    return Ran(status=status, stopped=listener.full)


def _run(words: Sequence[str], env: dict[str, str]) -> int:
    child: list[int] = []
    with signals_to(_forwarding(child), [signal.Signals[name] for name in FOR_PROGRAMS]):
        try:
            started = subprocess.Popen(
                words, env=env, preexec_fn=partial(die_with_parent, os.getpid(), signal.SIGTERM)
            )
        except OSError as error:
            raise LaunchError(f"cannot run {words[0]}: {error.strerror}", "give the job after --") from None
        child.append(started.pid)
        while True:
            try:
                return started.wait()
            except KeyboardInterrupt:  # raised before the handlers were set
                continue


def _forwarding(child: list[int]) -> Callable[[int, FrameType | None], None]:
    """Return a handler that passes signals on to the process in `child`, once there is one.

    A second SIGINT kills it and its descendants.
    """
    last: dict[int, float] = {}

    def forward(number: int, frame: FrameType | None) -> None:
        if number in _ENDING:
            before, now = last.get(number), time.monotonic()
            if before is not None and now - before < _SAME_SECONDS:
                return
            last[number] = now
            if before is not None and number == signal.SIGINT:
                for process in child:
                    kill_family(process)
                return
        if number in (signal.SIGINT, signal.SIGQUIT) and _in_foreground():
            return  # the terminal has sent it to the job, too
        for process in child:
            with suppress(ProcessLookupError):
                os.kill(process, number)

    return forward


def _in_foreground() -> bool:
    """Return True if a terminal's signal keys reach both this process and the job."""
    with suppress(OSError), Path("/dev/tty").open("rb", buffering=0) as terminal:
        return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    return False


@contextmanager
def inside(watch: Watch) -> Iterator[Listener]:
    """Watch this process and its workers during the body. Raises SpecError."""
    if probe.FOLDER in os.environ:
        raise SpecError("this process is recorded already", "use one recording at a time")
    with scratch() as (folder, _):
        listener, before = Listener(folder, watch, 0, None), dict(os.environ)
        os.environ.update(environment(folder, traced=False))
        undo: Callable[[], None] = probe.install()
        try:
            yield listener
        finally:
            undo()
            for name in (probe.FOLDER, probe.OPENS, "PYTHONPATH"):
                os.environ.pop(name, None)
                if name in before:
                    os.environ[name] = before[name]
            listener.stop()


def end_as(status: int) -> int:
    """Return the exit status for a job's `status`; end this process by the signal that ended the job."""
    if status >= 0:
        return status
    sys.stdout.flush()
    sys.stderr.flush()
    tell_status(128 - status)
    end_by(-status)
    return 128 - status
