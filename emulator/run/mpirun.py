"""Starting ranks on this machine: which mpirun, with which options, and which of its words are shown."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from emulator.errors import LaunchError
from emulator.files import memory_folder
from emulator.loader.base import PREFIX_VARIABLE
from emulator.run.child import ChildProcess, signals_to

Flavour = Literal["openmpi", "mpich"]

_OPENMPI_OPTIONS = (
    # Shared memory is all that one machine needs; probing for fabrics costs a second of start-up.
    *("--mca", "pml", "ob1", "--mca", "btl", "self,sm", "--mca", "osc", "^ucx"),
    *("--map-by", ":oversubscribe", "--bind-to", "none"),
)

_ENVIRONMENT = {
    # Open MPI refuses root unless told twice; containers and CI run as root.
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_ALLOW_RUN_AS_ROOT": "1",
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    # A rank reads; it has no use for a linear algebra pool per core.
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
}


@dataclass(frozen=True, slots=True)
class Launcher:
    """An mpirun that works on this machine."""

    path: str
    flavour: Flavour
    version: str

    def command(self, ranks: int, argv: Sequence[str]) -> list[str]:
        """The command line that starts `ranks` ranks of `feedrate ARGV`."""
        options = _OPENMPI_OPTIONS if self.flavour == "openmpi" else ()
        return [self.path, *options, "-n", str(ranks), sys.executable, "-m", "emulator", *argv]


def find_launcher() -> Launcher:
    """The mpirun beside this Python (a pip wheel's), else the one on PATH. Raises LaunchError."""
    beside = str(Path(sys.executable).parent)
    path = shutil.which("mpirun", path=beside) or shutil.which("mpirun") or shutil.which("mpiexec")
    if path is None:
        raise LaunchError(
            "no mpirun was found", "pip install 'feedrate[mpi]', or load your site's MPI module"
        )
    try:
        done = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=20, check=False, env=environment()
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(f"{path} does not run", str(error)) from None
    output = (done.stdout + done.stderr).strip()
    version = re.search(r"\d+\.\d+(\.\d+)?\S*", output)
    flavour: Flavour = "openmpi" if re.search(r"Open ?MPI|OpenRTE|prte", output, re.IGNORECASE) else "mpich"
    return Launcher(path, flavour, version[0] if version else "unknown")


def environment(base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """`base` with what ranks need; a variable that the user set already is left alone."""
    return {**_ENVIRONMENT, **base}


def launch(ranks: int, argv: Sequence[str]) -> int:
    """Run `feedrate ARGV` as `ranks` ranks and return its exit status.

    Raises LaunchError when there is no mpirun. SIGINT and SIGTERM go on to the ranks.
    """
    command = find_launcher().command(ranks, argv)
    terminal = {}  # what ranks cannot see of our terminal
    if sys.stdout.isatty():
        terminal = {"FORCE_COLOR": "1", "COLUMNS": str(shutil.get_terminal_size().columns)}
    with (
        _scratch() as scratch,
        # In our session, where it can write to the terminal; SIGPIPE ends it when nobody reads our output.
        ChildProcess(
            "mpirun",
            command,
            on_death=signal.SIGTERM,
            start_new_session=False,
            restore_signals=True,
            stdin=subprocess.DEVNULL,
            stdout=None,
            env={**environment(), **terminal, **scratch},
        ) as mpirun,
        signals_to(lambda number, _: mpirun.send_signal(number)),
    ):
        assert mpirun.stderr is not None
        for line in without_banners(mpirun.stderr):
            sys.stderr.write(line)
            sys.stderr.flush()
        return mpirun.wait()


@contextmanager
def _scratch() -> Iterator[dict[str, str]]:
    """An environment in which killed ranks leave everything in one folder, which is removed after them.

    That is MPI's shared memory and the sockets of DataLoader workers; semaphores of workers share a prefix.
    """
    # In memory, with a short path: those of sockets have a limit.
    with TemporaryDirectory(prefix="feedrate-", dir=memory_folder(), ignore_cleanup_errors=True) as folder:
        prefix = Path(folder).name
        try:
            yield {"TMPDIR": folder, "OMPI_MCA_btl_sm_backing_directory": folder, PREFIX_VARIABLE: prefix}
        finally:
            for semaphore in Path("/dev/shm").glob(f"sem.{prefix}-*"):
                semaphore.unlink(missing_ok=True)


_BANNERS = (
    "non-zero status",
    "MPI_ABORT was invoked",
    "BAD TERMINATION",
    "noticed that process rank",
    "has exited due to process rank",
)
"""mpirun's own words on a rank that ended: our error line says it better."""


def without_banners(lines: Iterable[str]) -> Iterator[str]:
    """`lines` of mpirun's stderr less its banners, which stand between two rules of dashes or ='s.

    And less the NUL bytes that it now and then forwards when a rank ends.
    """
    block: list[str] = []
    dropped = False
    for line in (line.replace("\0", "") for line in lines):
        rule = re.fullmatch(r"(-{60,}|={60,})\s*", line) is not None
        if not block and not rule:
            if line.strip() or not dropped:  # the empty line after a banner belongs to it
                yield line
            dropped = False
            continue
        block.append(line)
        if rule and len(block) > 1:
            dropped = _is_banner(block)
            if not dropped:
                yield from block
            block = []
    if not _is_banner(block):
        yield from block


def _is_banner(block: list[str]) -> bool:
    return any(banner in "".join(block) for banner in _BANNERS)
