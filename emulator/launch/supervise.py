"""Run a command as two processes: a child that does the work, and a supervisor that can exit without it.

A call into a dead mount may never return, and the kernel may be unable to end the process that made it.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from emulator.errors import StorageError
from emulator.launch.process import (
    die_with_parent,
    kill_family,
    let_go_of_output,
    process_state,
    set_name,
    short_of_memory,
    write_stderr,
)
from emulator.launch.watch import Watchdog
from emulator.units import show_seconds

_SI_KERNEL = 0x80
"""si_code of a signal from the terminal, which sends it to all processes of the foreground group."""
_EXIT_SECONDS = 2.0
"""Seconds to wait for a child that was killed or whose storage hangs: it may be unable to end."""
_GIVE_UP = b"!"
_STATUS = b"="
"""Prefix of a message whose next byte is the exit status of the finished command."""


FOR_PROGRAMS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGCONT", "SIGWINCH")
"""Signals that a command passes on to the user's program that it runs."""


def supervised(timeout: float, *, runs_a_program: bool = False) -> None:
    """Fork, and return in the child, which does the work. The parent ends when the child ends or hangs.

    The parent passes signals on to the child. When it ends, even by SIGKILL, so does the child.
    `runs_a_program`: signals are for a program that the child runs, so they do not start a deadline.
    """
    handled = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    if runs_a_program:
        handled |= {signal.Signals[name] for name in FOR_PROGRAMS}
    handled -= {number for number in handled if signal.getsignal(number) == signal.SIG_IGN}
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    handled.add(signal.SIGCHLD)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, handled)
    beats, beat = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    parent, child = os.getpid(), os.fork()
    if child == 0:
        os.close(beats)
        die_with_parent(parent)
        set_name("feedrate")
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        _to_supervisor.append(beat)
        Watchdog(timeout, lambda error: _give_up(beat, error), lambda: _tell(beat, b"."))
        return
    os.close(beat)
    heard = _Heard(time.monotonic())
    status = _supervise(child, beats, handled, timeout, heard, ends=not runs_a_program)
    _exit_as(status, over=heard.status is not None)


def tell_status(status: int) -> None:
    """Tell the supervisor, if there is one, that the command has finished.

    This process may still hang while it closes files of a storage that does not answer.
    """
    for pipe in _to_supervisor:
        _tell(pipe, _STATUS + bytes([status & 0xFF]))


_to_supervisor: list[int] = []


def _tell(pipe: int, word: bytes) -> None:
    with suppress(OSError):
        os.write(pipe, word)


@contextmanager
def interruptible() -> Iterator[None]:
    """Have SIGINT raise KeyboardInterrupt during the body. Outside of it, SIGINT ends the process at once.

    If SIGINT is ignored, or handled by a program that calls feedrate, that stays so.
    """
    ours = signal.getsignal(signal.SIGINT) == signal.SIG_DFL
    if ours:
        signal.signal(signal.SIGINT, _interrupted_once())
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def _interrupted_once() -> Callable[[int, FrameType | None], None]:
    """Return a SIGINT handler that ignores a repetition within 1 s, as passed on by the supervisor."""
    last = -1.0

    def handler(number: int, frame: FrameType | None) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last > 1.0:
            last = now
            raise KeyboardInterrupt

    return handler


def _give_up(pipe: int, error: StorageError) -> None:
    """Report `error` and end. Tells the supervisor first: this process may be unable to end."""
    write_stderr(f"feedrate: error: {error}")
    let_go_of_output()
    _tell(pipe, _GIVE_UP)
    os._exit(error.exit_code)


def _supervise(
    child: int, beats: int, handled: set[signal.Signals], timeout: float, heard: _Heard, *, ends: bool
) -> int:
    """Wait for `child`; return its wait status, or -1 - exit status if it cannot be ended.

    `ends`: a signal asks it to end.
    """
    told_to_end, before = False, time.monotonic()
    while True:
        # Do not wait in sigtimedwait: Python's returns a signal that was not sent after a stop and continue.
        select.select([beats] if heard.open else [], [], [], 0.25 if heard.open else 0.02)
        received = signal.sigtimedwait(handled, 0)
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            heard.listen(beats, heard.last, prolong=False)
            return status
        now = time.monotonic()
        if now - before > timeout / 2:
            heard.last = now  # this process was stopped or got no CPU: so may have been the child
        before = now
        if received is not None and received.si_signo != signal.SIGCHLD:
            if received.si_code != _SI_KERNEL:  # the terminal has sent it to the child, too
                os.kill(child, received.si_signo)
            if ends and not told_to_end:
                # The deadline for the end counts from here; heartbeats no longer extend it.
                told_to_end, heard.last = True, now
        if heard.listen(beats, now, prolong=not told_to_end):
            _leave(child)
            return -1 - StorageError.exit_code
        silent = now - heard.last
        # A hung storage will not let the command end. A working one may be slow to close files.
        patience = _EXIT_SECONDS if heard.status == StorageError.exit_code else timeout
        if heard.status is not None and silent > patience:
            _leave(child)
            return -1 - heard.status
        if silent > timeout + 3.0 and (told_to_end or heard.alive):
            if process_state(child) in "Tt":  # stopped on purpose, by a debugger or job control
                heard.last = now
                continue
            why = "has not ended after a signal" if told_to_end else "has not reported"
            silence = show_seconds(timeout)
            write_stderr(f"feedrate: error: the command {why} for {silence}: does the storage hang?")
            _leave(child)
            return -1 - StorageError.exit_code


class _Heard:
    """The state that the child has reported through its pipe."""

    def __init__(self, now: float) -> None:
        self.last = now
        """Time of the last sign of life, in seconds of time.monotonic."""
        self.alive = False
        """True after the first heartbeat."""
        self.open = True
        """False once the write end of the pipe is closed."""
        self.status: int | None = None
        """Exit status of the command; None while it works."""

    def listen(self, pipe: int, now: float, *, prolong: bool) -> bool:
        """Read the pipe; return True if the child gives up. With `prolong` a heartbeat is a sign of life."""
        word = b""
        with suppress(BlockingIOError):
            word = os.read(pipe, 4096)
            self.open = bool(word)
        before, _, status = word.partition(_STATUS)
        self.alive = self.alive or bool(word)
        if status:
            self.status, self.last = status[0], now
        elif word and prolong and self.status is None:
            self.last = now
        return _GIVE_UP in before


def _leave(child: int) -> None:
    """Kill the child and its descendants, and report a child that does not end."""
    kill_family(child)
    deadline = time.monotonic() + _EXIT_SECONDS
    while time.monotonic() < deadline:
        if os.waitpid(child, os.WNOHANG)[0]:
            return
        time.sleep(0.02)
    write_stderr(f"feedrate: process {child} is left behind: it cannot end until the storage answers")


def end_by(number: int) -> None:
    """End this process with signal `number`, without a core file; return if that does not end it."""
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)


def _exit_as(status: int, *, over: bool) -> None:
    """End this process with the child's status or signal; `over`: its command had finished before."""
    if status < 0:
        os._exit(-1 - status)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if over or number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            end_by(number)
        name = signal.Signals(number).name
        write_stderr(f"feedrate: error: the command was killed by {name}{short_of_memory(number)}")
        os._exit(128 + number)
    os._exit(os.waitstatus_to_exitcode(status))
