"""The errors that feedrate raises on purpose, each with its exit status.

A message says what is wrong and where; the hint says what to do. Together they are one line.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from emulator import __version__, notes
from emulator.text import masked, shown


class FeedrateError(Exception):
    """An error for the user to read: one line, no traceback."""

    exit_code = 1
    meaning = (
        "an internal error, something that doctor needs is missing, or the reader of the output has gone"
    )
    """The cause, as `feedrate --help` tells it beside the exit status."""

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(what, hint)  # both in args, so that the error survives pickling
        self.what = what
        self.hint = hint

    def __str__(self) -> str:
        line = f"{self.what}: {self.hint}" if self.hint else self.what
        return shown(" ".join(line.split()))


class SpecError(FeedrateError):
    exit_code = 2
    meaning = "an option, workload, recipe or system file is wrong"


class DatasetError(FeedrateError):
    exit_code = 3
    meaning = "a dataset is missing, truncated or corrupt, or verify found faults"


class StorageError(FeedrateError):
    exit_code = 4
    meaning = "storage refused: full, read-only, hung, not there"


class LaunchError(FeedrateError):
    exit_code = 5
    meaning = "no MPI between hosts, or a rank count that cannot be"


class RankError(FeedrateError):
    exit_code = 6
    meaning = "a rank died; what was measured is kept"


class MissingError(FeedrateError):
    exit_code = 7
    meaning = "an optional package or tool is not installed"


class DeviceError(FeedrateError):
    exit_code = 8
    meaning = "an accelerator is absent, out of memory or throttled"


class Inconclusive(FeedrateError):
    """The client was the limit: nothing is known of the storage.

    A sweep that finds only a lower bound of the knee, or none, exits with this status too, though its result
    is kept and shown: a script must not take it for an answer.
    """

    exit_code = 9
    meaning = "the runs do not answer the question"


NOT_MET = 10
"""Exit status of a gate that was not met."""

_kinds: list[type[FeedrateError]] = [FeedrateError, *FeedrateError.__subclasses__()]
EXIT_STATUS = {
    0: "done",
    **{error.exit_code: error.meaning for error in _kinds},
    NOT_MET: "--require N is not met",
    130: "interrupted (Ctrl-C); 128 + N: ended by signal N",
}
"""Exit status of the command -> its meaning."""


DAMAGE = (ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError)
"""Errors that a damaged file can raise past the checks of its reader."""


def damaged(name: str, error: BaseException) -> DatasetError:
    """Return `error`, one of DAMAGE, as a one-line error about the file `name`."""
    return DatasetError(
        f"{name} cannot be used: {type(error).__name__}: {str(error)[:200]}",
        "it is damaged, or this is a bug of feedrate; FEEDRATE_TRACEBACK=1 shows where",
    )


def storage_error(error: OSError, doing: str) -> StorageError:
    """Return `error` as one line: what was being done, the system's reason, and what to do about it."""
    hints = {
        errno.ENOSPC: "free some space or choose another folder",
        errno.EDQUOT: "the quota is used up; free some space or choose another folder",
        errno.EROFS: "the file system is read-only; choose another folder",
        errno.EACCES: "check the permissions or choose another folder",
        errno.ENOENT: "check the path",
        errno.EIO: "the storage failed to deliver; see the system log",
        errno.ESTALE: "the mount is stale; remount it",
    }
    where = f" ({error.filename})" if error.filename else ""
    reason = error.strerror or str(error)
    return StorageError(f"{doing}{where}: {reason}", hints.get(error.errno or 0, ""))


@contextmanager
def storage_errors(doing: str, path: object = None) -> Iterator[None]:
    """Turn an OSError of the body into the StorageError of `storage_error`; `path` is what is open in it.

    Meanwhile this thread's note (`notes`) says what it does: `doing` is `cannot VERB WHAT`.
    """
    call, _, what = doing.removeprefix("cannot ").partition(" ")
    try:
        with notes.doing(call, path or what):
            yield
    except OSError as error:
        error.filename = error.filename or path
        raise storage_error(error, doing) from None


def unexpected(error: BaseException) -> str:
    """Return one line about a bug, and keep its traceback in a temporary file, which the line names.

    FEEDRATE_TRACEBACK=1 prints the traceback, too. A limit of this process is no bug.
    """
    no_memory = ("can't start new thread", "cannot map", "failed to map segment", "cannot allocate memory")
    if isinstance(error, MemoryError) or any(reason in str(error).lower() for reason in no_memory):
        return "this process gets no more memory or threads: raise its limits (ulimit -v, -u, the cgroup's)"
    if os.environ.get("FEEDRATE_TRACEBACK"):
        traceback.print_exception(error)
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if f"{os.sep}emulator{os.sep}" in frame.filename] or frames
    where = f" ({'/'.join(Path(ours[-1].filename).parts[-2:])}:{ours[-1].lineno})" if ours else ""
    text = " ".join(str(error).split())[:300]
    kept = _kept_traceback(error) or "what FEEDRATE_TRACEBACK=1 shows"
    return f"an internal error, {type(error).__name__}: {text}{where}: please report it, with {kept}"


def _kept_traceback(error: BaseException) -> str:
    """Return the path of a new file with traceback, command and versions; empty if none can be made."""
    import platform  # here, as tempfile: every rank would pay for them at its start
    import tempfile

    text = "".join(traceback.format_exception(error))
    versions = f"feedrate {__version__}, Python {sys.version}, {platform.platform()}"
    with suppress(OSError):
        # Not in TMPDIR: a rank's is removed after it.
        number, path = tempfile.mkstemp(prefix="feedrate-bug-", suffix=".txt", dir="/tmp")
        with os.fdopen(number, "w", encoding="utf-8", errors="replace") as file:
            file.write(masked(f"{versions}\n{' '.join(sys.argv)}\n\n{text}"))
        return path
    return ""
