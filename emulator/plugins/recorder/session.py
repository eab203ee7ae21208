"""Run a job unchanged and receive its events: the child process, the pipes, the signals."""

from __future__ import annotations

import fcntl
import math
import os
import selectors
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType

from emulator import notes
from emulator.errors import LaunchError, StorageError
from emulator.launch.child import signals_to
from emulator.launch.process import die_with_parent, kill_family
from emulator.launch.scratch import scratch
from emulator.launch.supervise import FOR_PROGRAMS, end_by, tell_status
from emulator.plugins.recorder import strace
from emulator.plugins.recorder.hook import feedrate_probe as probe
from emulator.plugins.recorder.watch import Watch
from emulator.units import show_seconds

HOOK = Path(probe.__file__).parent
"""Folder at the start of the job's PYTHONPATH."""

_POLL_SECONDS = 0.25
"""Seconds between two reads of the counters in /proc."""
_GULP_SECONDS = 0.02
"""Seconds between two reads of the pipes."""
_END_SECONDS = 5.0
"""Seconds for a tracer to end."""
_CHUNK = 1 << 20
"""Bytes that a pipe holds, and most bytes of a read."""
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_SILENT_SECONDS = 25.0
"""Seconds without a Python process after which that is said."""
_UNSEEN = (
    "feedrate record: no Python process has been seen yet. If the job has started one: it must keep the "
    "PYTHONPATH that feedrate gives it, and run without -I, -E and -S\n"
)
_SAME_SECONDS = 0.5
"""Seconds within which two equal signals are one, from the process group and from the supervisor."""


class Listener:
    """A thread that reads the job's events and the output of straces into a Watch until it is stopped."""

    def __init__(self, folder: Path, watch: Watch, traced: int, enough: int | None) -> None:
        """Start the thread. Calls are traced for `traced` steps; recording ends after `enough` steps."""
        self._watch = watch
        self._traced = traced
        self.enough = enough
        self._events = _pipe(folder / probe.EVENTS)
        self._pipes = selectors.DefaultSelector()
        self._pipes.register(self._events, selectors.EVENT_READ)
        self._tracing = folder / probe.TRACING
        self._tracers: dict[int, tuple[int, subprocess.Popen[bytes]]] = {}  # output -> process, its strace
        self._tracing.touch()
        self._stop = threading.Event()
        self.full = False
        """True after `enough` steps."""
        self.failure = ""
        """Why the thread failed; empty if it did not."""
        self._thread = threading.Thread(target=self._run, name="listener", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        notes.unwatched()  # it calls stat on the job's files, which may hang: that must not end the job
        try:
            self._listen()
        except Exception as error:  # noqa: BLE001  the job must not wait for a dead reader
            self.failure = f"the recording ended early ({type(error).__name__}: {error})"
        if not self._watch.traced_until:
            self._end_reads()
        os.close(self._events)

    def _listen(self) -> None:
        next_poll, silent = 0.0, time.monotonic() + _SILENT_SECONDS
        while True:
            # Read large pieces: with a wake-up for each line, this thread uses more CPU than strace.
            time.sleep(_GULP_SECONDS)
            ready = [key.fd for key, _ in self._pipes.select(_POLL_SECONDS)]
            self._read_ready(ready)
            now = time.monotonic()
            if now >= next_poll:
                next_poll = now + _POLL_SECONDS
                self._watch.poll()
            if not self._watch.processes and now >= silent:
                silent = math.inf
                sys.stderr.write(_UNSEEN)
            self.full = self.enough is not None and self._watch.steps >= self.enough
            if self.full or (self._stop.is_set() and not ready):
                return

    def _read_ready(self, ready: Sequence[int]) -> None:
        """Read from these descriptors, attach strace to the processes that ask, and end tracing in time."""
        watch = self._watch
        if self._events in ready:
            watch.events(_read(self._events))
        ended = [self._calls_of(descriptor) for descriptor in ready if descriptor in self._tracers]
        self._trace()
        # Somebody may have killed a tracer, or not permitted it: reads after that are not seen.
        failed = min(ended, default=0) < 0 or bool(watch.tracer.errors)
        if not watch.traced_until and (failed or watch.steps >= self._traced or watch.log.full):
            self._end_reads()

    def _trace(self) -> None:
        """Attach strace to the processes that ask for it."""
        asking, self._watch.asking = self._watch.asking, []
        for process in asking:
            if self._watch.traced_until or probe.tracer_of(process):
                continue
            tracer = strace.attach(process)
            assert tracer.stdout is not None
            _widen(tracer.stdout.fileno())
            self._tracers[tracer.stdout.fileno()] = process, tracer
            self._pipes.register(tracer.stdout, selectors.EVENT_READ)

    def _calls_of(self, descriptor: int) -> int:
        """Read the output of a tracer, and return its exit status; 0 while it runs."""
        data = _read(descriptor)
        process, tracer = self._tracers[descriptor]
        self._watch.tracer.feed(data or b"\n", process)  # a killed tracer may leave half a line
        if data:
            return 0
        self._pipes.unregister(descriptor)
        del self._tracers[descriptor]
        with tracer:
            return tracer.wait()

    def _end_reads(self) -> None:
        """Detach strace from all processes of the job, and read the rest of its output."""
        self._tracing.unlink(missing_ok=True)
        for _, tracer in self._tracers.values():
            tracer.kill()
        deadline = time.monotonic() + _END_SECONDS
        while self._tracers and time.monotonic() < deadline:
            for key, _ in self._pipes.select(_POLL_SECONDS):
                if key.fd in self._tracers:  # events are for later: reads end with the present batches
                    self._calls_of(key.fd)
            time.sleep(0.001)
        self._watch.end_reads()

    def stop(self) -> None:
        """Read the rest of the pipes, and end. Processes of the job that still run are no longer traced.

        Raises StorageError if a file of the job does not answer.
        """
        self._stop.set()
        timeout = notes.timeout()
        self._thread.join(_END_SECONDS + timeout)
        if self._thread.is_alive():
            raise StorageError(
                f"a file that the job read has not answered for {show_seconds(timeout)}",
                "the storage hangs; see the system log",
            )


def _pipe(path: Path) -> int:
    os.mkfifo(path, 0o600)
    # Also open for writing, so that the pipe has no EOF after its last writer.
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    _widen(descriptor)
    return descriptor


def _widen(descriptor: int) -> None:
    """Have a pipe hold _CHUNK bytes, if it may, and reads of it not wait."""
    os.set_blocking(descriptor, False)
    with suppress(OSError):
        fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _CHUNK)


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, _CHUNK)
    except BlockingIOError:
        return b""


def environment(folder: Path) -> dict[str, str]:
    """Return the job's environment."""
    variables = dict(os.environ)
    variables["PYTHONPATH"] = os.pathsep.join([str(HOOK), *filter(None, [variables.get("PYTHONPATH", "")])])
    variables[probe.FOLDER] = str(folder)
    variables[probe.TRACER] = str(os.getpid())
    return variables


def run_job(
    job: Sequence[str],
    watch: Watch,
    *,
    steps: int | None,
    warmup: int,
    traced_steps: int,
    on_full: Callable[[], None] = lambda: None,
) -> int:
    """Run the command `job` to its end with a Listener, and return its exit status, -N for signal N.

    It records `steps` steps (None for all) after `warmup`, and traces reads in the first `traced_steps` of
    them, but at most in half. `on_full` is called when all are recorded, while the job runs on. Raises
    LaunchError if the job cannot be started, StorageError.
    """
    traced = warmup + (traced_steps if steps is None else min(traced_steps, steps // 2))
    enough = None if steps is None else warmup + steps
    if shutil.which(job[0]) is None:
        raise LaunchError(f"there is no program {job[0]!r}", "give the command of the job after --")
    with scratch() as (folder, _):
        listener = Listener(folder, watch, traced, enough)
        try:
            status = _run(job, environment(folder), listener, on_full)
        finally:
            listener.stop()
    if listener.failure:
        sys.stderr.write(f"feedrate record: {listener.failure}; the job was not affected\n")
    return status


def _run(job: Sequence[str], env: dict[str, str], listener: Listener, on_full: Callable[[], None]) -> int:
    child: list[int] = []
    early: list[int] = []
    with signals_to(_forwarding(child, early), [signal.Signals[name] for name in FOR_PROGRAMS]):
        try:
            started = subprocess.Popen(
                job, env=env, preexec_fn=partial(die_with_parent, os.getpid(), signal.SIGTERM)
            )
        except OSError as error:
            raise LaunchError(f"cannot run {job[0]}: {error.strerror}", "give the job after --") from None
        child.append(started.pid)
        for number in early:
            started.send_signal(number)
        told = False
        while True:
            with suppress(KeyboardInterrupt, subprocess.TimeoutExpired):  # raised before handlers were set
                return started.wait(None if told or not listener.enough else _POLL_SECONDS)
            if listener.full and not told:
                told = True
                listener.stop()
                on_full()


def _forwarding(child: list[int], early: list[int]) -> Callable[[int, FrameType | None], None]:
    """Return a handler that passes signals on to the process in `child`; to `early` while there is none.

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
        if not child:
            early.append(number)
        for process in child:
            with suppress(ProcessLookupError):
                os.kill(process, number)

    return forward


def _in_foreground() -> bool:
    """Return True if a terminal's signal keys reach both this process and the job."""
    with suppress(OSError), Path("/dev/tty").open("rb", buffering=0) as terminal:
        return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    return False


def end_as(status: int) -> int:
    """Return the exit status for a job's `status`; end this process by the signal that ended the job."""
    if status >= 0:
        return status
    sys.stdout.flush()
    sys.stderr.flush()
    tell_status(128 - status)
    end_by(-status)
    return 128 - status
