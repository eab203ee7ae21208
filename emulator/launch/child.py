"""Child programs that end with this process: fio, rados, a checkpointing job, feedrate itself."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any

from emulator import live
from emulator.errors import NOT_MET, FeedrateError, Inconclusive, StorageError
from emulator.launch.process import die_with_parent
from emulator.units import show_seconds

ERROR = "feedrate: error: "
"""Begins the line on stderr that says why a command failed."""
_KILL_SECONDS = 5.0
"""Seconds to wait for a killed process: one that is blocked in a hung mount does not end."""


class ChildProcess(subprocess.Popen[str]):
    """A Popen with text pipes that ends when this process ends, even by SIGKILL.

    The kernel sends it `on_death` when the thread that started it ends, so start it in the main thread. It
    has its own session, so that Ctrl-C in a terminal reaches it only through this process. SIGPIPE stays
    ignored, so that a program can clean up when its reader has ended.
    """

    def __init__(
        self, name: str, command: Sequence[str], *, on_death: int = signal.SIGKILL, **options: Any
    ) -> None:
        """Start `command`. `name` is for error messages; `options` are Popen's."""
        self.name = name
        live.detail(shlex.join(command))
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        super().__init__(
            command,
            text=True,
            errors="replace",
            preexec_fn=partial(die_with_parent, os.getpid(), on_death),
            **{**pipes, "start_new_session": True, "restore_signals": False, **options},
        )

    def finish(
        self,
        text: str | None = None,
        seconds: float | None = None,
        hint: str = "the storage hangs; see the system log",
    ) -> tuple[str, str]:
        """Write `text`, close stdin, wait for the end, and return stdout and stderr.

        After `seconds` the child is killed and StorageError raised, with `hint`.
        """
        try:
            return self.communicate(text, timeout=seconds)
        except subprocess.TimeoutExpired:
            late = f"{self.name} did not end within {show_seconds(seconds or 0.0)}"
            raise StorageError(late, hint) from None
        finally:
            self.end()

    def end(self) -> None:
        """Kill the child if it runs, and close its pipes. Never raises."""
        if self.poll() is None:
            self.kill()
            with suppress(subprocess.TimeoutExpired):
                self.wait(timeout=_KILL_SECONDS)
        for pipe in (self.stdin, self.stdout, self.stderr):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()


def feedrate(*words: str) -> None:
    """Run the command `feedrate WORDS` in a process of its own; raise the FeedrateError that it ended with.

    For callers that may have threads. What it says on stderr is passed on. 9 and 10 are answers, no errors.
    """
    reason = ""
    with ChildProcess(
        f"feedrate {words[0]}",
        [sys.executable, "-m", "emulator", *words],
        on_death=signal.SIGTERM,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    ) as process:
        try:
            for line in process.stderr or ():
                if line.startswith(ERROR):
                    reason = line.removeprefix(ERROR).strip()
                else:
                    sys.stderr.write(line)
            status = process.wait()
        except BaseException:  # Ctrl-C
            process.terminate()
            raise
    if status not in (0, Inconclusive.exit_code, NOT_MET):
        kinds = {error.exit_code: error for error in FeedrateError.__subclasses__()}
        ended = f"feedrate {words[0]} ended with status {status}"
        raise kinds.get(status, FeedrateError)(reason or ended)


@contextmanager
def signals_to(
    handler: Callable[[int, FrameType | None], object],
    numbers: Iterable[int] = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP),
) -> Iterator[None]:
    """Handle these signals by `handler` during the body; ignored ones stay ignored (nohup)."""
    previous = {
        number: signal.signal(number, handler)
        for number in numbers
        if signal.getsignal(number) != signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, former in previous.items():
            signal.signal(number, former)
