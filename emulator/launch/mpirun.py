"""Start ranks on this host by mpirun, watch them, and filter mpirun's messages."""

from __future__ import annotations

import math
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from emulator import live
from emulator.errors import Inconclusive, LaunchError, RankError, StorageError
from emulator.launch.child import ChildProcess, signals_to
from emulator.launch.forkserver import Preload, fork_server
from emulator.launch.launched import Family
from emulator.launch.process import has_ended, no_heartbeat, short_of_memory
from emulator.launch.scratch import processes_of, ranks_in, scratch
from emulator.launch.watch import REASON, briefly, left_statuses, storage_timeout, told_why
from emulator.live import Follower
from emulator.record.machine import cores
from emulator.record.out import replace_failure

_OPENMPI_OPTIONS = (
    # One host needs only shared memory; probing for fabrics takes a second. Its name is vader in Open MPI 4
    # and sm in Open MPI 5, which accepts vader, too.
    *("--mca", "pml", "ob1", "--mca", "btl", "self,vader", "--mca", "osc", "^ucx"),
    *("--map-by", ":oversubscribe", "--bind-to", "none"),
)

_ENVIRONMENT = {
    # Open MPI refuses root unless told twice; containers and CI run as root.
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_ALLOW_RUN_AS_ROOT": "1",
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    # Ranks only read: a thread pool for linear algebra would waste memory.
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
}


@dataclass(frozen=True, slots=True)
class Launcher:
    """An mpirun that runs on this host."""

    path: str
    family: Family
    version: str

    def command(self, ranks: int, program: Sequence[str]) -> list[str]:
        """Return the command line that starts `program` `ranks` times."""
        options = _OPENMPI_OPTIONS if self.family == "Open MPI" else ()
        return [self.path, *options, "-n", str(ranks), *program]


def find_launcher() -> Launcher:
    """Find the mpirun beside this Python (from a wheel), else on PATH. Raises LaunchError."""
    beside = str(Path(sys.executable).parent)
    path = shutil.which("mpirun", path=beside) or shutil.which("mpirun") or shutil.which("mpiexec")
    if path is None:
        raise LaunchError(
            "no mpirun was found", "pip install 'feedrate[mpi]', or load your site's MPI module"
        )
    try:
        done = subprocess.run(
            [path, "--version"],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
            env=rank_environment(),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(f"{path} does not run", str(error)) from None
    output = (done.stdout + done.stderr).strip()
    version = re.search(r"\d+\.\d+(\.\d+)?\S*", output)
    family: Family = "Open MPI" if re.search(r"Open ?MPI|OpenRTE|prte", output, re.IGNORECASE) else "MPICH"
    return Launcher(path, family, version[0] if version else "unknown")


def feedrate(words: Sequence[str]) -> list[str]:
    """Return the command `feedrate WORDS` for this Python."""
    return [sys.executable, "-m", "emulator", *words]


def rank_environment() -> dict[str, str]:
    """Return the environment with the variables that ranks need; it keeps those already set."""
    return {**_ENVIRONMENT, **os.environ}


def launch(ranks: int, words: Sequence[str], out: Path, preload: Preload) -> int:
    """Run `feedrate WORDS` as `ranks` ranks with `preload`, and return its exit status.

    If a signal, a dead rank or a missing heartbeat ends the run, the reason is in OUT/failure.txt and on
    stderr. Raises LaunchError if there is no mpirun or limits are too low. SIGINT, SIGTERM and SIGHUP end
    the ranks.
    """
    if ":" in words:
        raise LaunchError("mpirun would interpret the argument ':'", "write ./: for a file or folder")
    launcher = find_launcher()
    require_limits(ranks, launcher.family)
    timeout = storage_timeout(words)
    with (
        scratch() as (folder, variables),
        _program(launcher, folder, preload, words, {**rank_environment(), **variables}) as program,
        # A new process group, so that Ctrl-C in a terminal reaches it only through this process. The same
        # session, so that it can write to the terminal. SIGPIPE ends it when our output is no longer read.
        ChildProcess(
            "mpirun",
            launcher.command(ranks, program),
            start_new_session=False,
            process_group=0,
            restore_signals=True,
            stdin=subprocess.DEVNULL,
            stdout=None,
            env={**rank_environment(), **variables},
        ) as mpirun,
    ):
        run = _Run(mpirun, folder, ranks)
        status = run.watch(timeout)
        if run.reason:
            briefly(partial(replace_failure, out, run.reason))
        return status


@contextmanager
def _program(
    launcher: Launcher, folder: Path, preload: Preload, words: Sequence[str], variables: dict[str, str]
) -> Iterator[list[str]]:
    """Yield the command that `launcher` starts for each rank of `feedrate WORDS`."""
    if launcher.family == "Open MPI":
        with fork_server(folder, preload, words, variables) as stand_in:
            yield [*stand_in, *feedrate(words)]
    else:  # MPICH's mpiexec talks to each rank through a descriptor that a forked rank would lack
        yield feedrate(words)


class _Run:
    """A running mpirun: watches its ranks and finds out why it ended."""

    def __init__(self, mpirun: ChildProcess, folder: Path, ranks: int) -> None:
        """`folder` is the scratch folder, with the ranks' heartbeats."""
        self.reason = ""
        """Why the run ended, if no rank could report it."""
        self._mpirun = mpirun
        self._folder = folder
        self._ranks = ranks
        self._follower = Follower(folder)
        self._said = False
        self._hidden: list[str] = []
        self._signal = 0
        self._dead: list[int] = []
        """Numbers of the ranks that have ended, in that order."""

    def watch(self, timeout: float) -> int:
        """Wait for the end, report a reason that no rank could report, and return the exit status."""
        reader = threading.Thread(target=self._show, name="words of mpirun", daemon=True)
        reader.start()
        deadline, before, stopped = math.inf, time.monotonic(), False
        began = time.monotonic()

        def stop(number: int, frame: object) -> None:
            self._signal = self._signal or number

        with signals_to(stop):
            while True:
                reader.join(_LOOK_SECONDS)
                self._follower.follow()
                if not reader.is_alive() or self._mpirun.poll() is not None:
                    break
                now = time.monotonic()
                if now - before > timeout / 2:
                    began = now  # this process was stopped: its ranks may have been, too
                before = now
                if self._signal and not stopped:
                    self.reason = _ENDED_BY.get(self._signal, "ended")
                elif not stopped and (late_rank := self._silent(timeout, began)):
                    self.reason = late_rank
                if self.reason and not stopped:
                    stopped, deadline = True, now + _GRACE_SECONDS
                    self._mpirun.send_signal(signal.SIGTERM)  # ranks flush their spools
                # A rank has reported why it ends, or none is left: mpirun may hang while it ends.
                if len(self._dead) == self._ranks or (self._folder / REASON).exists():
                    deadline = min(deadline, now + _GRACE_SECONDS)
                if now > deadline:
                    break
                self._note_dead()
        status = self._end()
        reader.join(1.0)
        self._follower.follow()
        live.current().close()
        return self._conclude(status)

    def _show(self) -> None:
        assert self._mpirun.stderr is not None
        for line in without_banners(self._mpirun.stderr, self._hidden):
            self._said |= line.startswith("feedrate: error:")
            if self._signal and "interrupted" in line:
                continue
            sys.stderr.write(line)
            sys.stderr.flush()

    def _silent(self, timeout: float, began: float) -> str:
        """Describe a rank without a heartbeat for `timeout` seconds; empty if there is none."""
        if (self._folder / REASON).exists():  # a rank has reported why the run ends
            return ""
        now = time.monotonic()
        for rank, (pid, beat, host) in ranks_in(self._folder).items():
            silent = now - max(began, beat)
            if silent > timeout and not has_ended(pid):
                return no_heartbeat(rank, host, silent, pid)
        return ""

    def _note_dead(self) -> None:
        for rank, (pid, *_) in ranks_in(self._folder).items():
            if rank not in self._dead and has_ended(pid):
                self._dead.append(rank)

    def _end(self) -> int:
        """End mpirun and remaining ranks, name those that cannot be killed, and return mpirun's status."""
        try:
            status = self._mpirun.wait(timeout=_LOOK_SECONDS)
        except subprocess.TimeoutExpired:
            self._mpirun.kill()
            status = self._mpirun.wait()
            left = left_statuses(self._folder)
            status = max(left) if len(left) == self._ranks else status
        ours = {pid: f"process {pid}" for pid in processes_of(self._folder)}
        ours |= {pid: f"rank {rank} (process {pid})" for rank, (pid, *_) in ranks_in(self._folder).items()}
        begun = time.monotonic()
        while ours and (now := time.monotonic()) < begun + _LEAVE_SECONDS + _EXIT_SECONDS:
            for pid in list(ours):
                if has_ended(pid) and not _has_threads(pid):
                    del ours[pid]
                elif now > begun + _LEAVE_SECONDS:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        if ours:
            are = "are" if len(ours) > 1 else "is"
            names = ", ".join(ours.values())
            print(f"feedrate: {names} {are} left behind until the storage answers", file=sys.stderr)
        return status

    def _conclude(self, status: int) -> int:
        """Return the exit status. Prints the reason in one line if no rank has reported it."""
        if self._signal:
            print(f"feedrate: {self.reason}", file=sys.stderr)
            return 128 + self._signal
        if status == Inconclusive.exit_code and not self.reason:
            return status  # the sweep has reported it
        report = told_why(self._folder)
        if report is not None:
            status = report[0]  # mpirun's may be that of a rank which was ended because of it
        words = " ".join(" ".join(self._hidden).split())
        death = re.search(r"process rank (\d+) with PID (\d+) on node (\S+) exited on signal (\d+)", words)
        if not self.reason and not self._said and death is not None:
            rank, _, host, number = death.groups()
            name = signal.Signals(int(number)).name
            self.reason = f"rank {rank} on {host} was killed by {name}{short_of_memory(int(number))}"
        if not self.reason and not self._said and status:
            if report is not None:  # the rank may have been ended before it printed the reason
                self.reason = report[1]
                print(f"feedrate: error: {self.reason}", file=sys.stderr)
                return status
            if self._dead:
                self.reason = f"rank {self._dead[0]} ended without an error: see ulimit -a and the system log"
        if not self.reason and not self._said and status:
            last = next((line for line in reversed(words.split("  ")) if line.strip("- ")), "")
            hint = f": {last}" if last else ""
            print(f"feedrate: error: mpirun ended with status {status}{hint}", file=sys.stderr)
            return LaunchError.exit_code
        if self.reason:
            print(f"feedrate: error: {self.reason}", file=sys.stderr)
            return RankError.exit_code
        return status if status >= 0 else StorageError.exit_code  # it had to be killed: a rank hangs


_LOOK_SECONDS = 0.25
_GRACE_SECONDS = 4.0
"""Seconds for ranks to flush their spools."""
_LEAVE_SECONDS = 1.0
"""Seconds for children of ranks that were told to end, such as fio, to remove their files."""
_EXIT_SECONDS = 2.0
_ENDED_BY: dict[int, str] = {
    signal.SIGINT: "interrupted",
    signal.SIGTERM: "ended by SIGTERM",
    signal.SIGHUP: "ended by SIGHUP",
}


def _has_threads(pid: int) -> bool:
    """Return True if a process has threads left that the kernel cannot end."""
    try:
        return len(list(Path(f"/proc/{pid}/task").iterdir())) > 1
    except OSError:
        return False


_FILES_OF_MPIRUN, _FILES_A_RANK = 32, 4
"""Open files of mpirun itself and per rank: prterun had 26, 44 and 68 with 2, 8 and 16 ranks."""
_PROCESSES_A_RANK = 12
"""Threads of a rank with the torch loader and four workers, in /proc/PID/task."""


RANKS_A_CORE: Mapping[Family, int] = {"Open MPI": 128, "MPICH": 64}
"""Most ranks per core. With the fork server, a run of 256 ranks on two busy cores took 77 s; with 384, some
ranks spent more than 30 s in MPI_Init, which ends a run. Without the server that happened with 256."""


def require_limits(ranks: int, family: Family) -> None:
    """Raise the soft limit of open files to the number that `ranks` ranks need.

    Raises LaunchError if this host does not allow as many files, processes or threads.
    """
    files = _FILES_OF_MPIRUN + _FILES_A_RANK * ranks
    most = RANKS_A_CORE[family] * cores()
    if ranks > most:
        raise LaunchError(
            f"{ranks} ranks are too many for the {cores()} cores of this host: they would not start in time",
            f"use at most -n {most} here, or more hosts (launch/README.md)",
        )
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < files:
        if hard != resource.RLIM_INFINITY and hard < files:
            raise LaunchError(
                f"{ranks} ranks need {files} open files, and {hard} are allowed", f"ulimit -n {files}"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if soft == resource.RLIM_INFINITY or os.geteuid() == 0:  # root has no such limit
        return
    used = sum(_threads_of_user(Path(entry.path)) for entry in os.scandir("/proc") if entry.name.isdigit())
    needed = used + 20 + _PROCESSES_A_RANK * ranks
    if soft < needed:
        raise LaunchError(
            f"{ranks} ranks need {needed} processes and threads, and {soft} are allowed",
            f"ulimit -u {needed}",
        )


def _threads_of_user(process: Path) -> int:
    try:
        return len(list((process / "task").iterdir())) if process.stat().st_uid == os.getuid() else 0
    except OSError:
        return 0


_BANNERS = (
    "non-zero status",
    "MPI_ABORT was invoked",
    "BAD TERMINATION",
    "noticed that process rank",
    "has exited due to process rank",
    "PMIx",
    "PMIX",
    "PRTE",
    "prterun",
    "mpirun",
    "Open MPI",
)
"""Words in mpirun's banners, which are replaced by feedrate's message."""
_NOISE = re.compile(
    r"\[[^\]]*:\d+\] ((?i:PMIX|PRTE|OPAL|ORTE|OMPI|MCA)|Local abort|\*\*\*|\[ ?\d+\])|"
    r"\[warn\]|Abort is in progress|(mpirun|prterun|mpiexec): (abort|killing|Forwarding)|"
    r".*hit ctrl-c again|\s*\*\*\* "
)
"""Messages of Open MPI, PMIx and libevent."""


def without_banners(lines: Iterable[str], hidden: list[str]) -> Iterator[str]:
    """Yield `lines` of mpirun's stderr without its own; append those to `hidden`.

    Its banners are between two rules of dashes or equals signs.
    """
    block: list[str] = []
    dropped = False
    # mpirun sometimes forwards NUL bytes when a rank ends.
    for line in (line.replace("\0", "") for line in lines):
        rule = re.fullmatch(r"(-{60,}|={60,})\s*", line) is not None
        if not block and not rule:
            if _NOISE.match(line):
                hidden.append(line)
                dropped = True
                continue
            if line.strip() or not dropped:  # the empty line after a banner belongs to it
                yield line
            dropped = False
            continue
        block.append(line)
        if rule and len(block) > 1:
            dropped = _is_banner(block)
            if dropped:
                hidden += block
            else:
                yield from block
            block = []
    if _is_banner(block):
        hidden += block
    else:
        yield from block


def _is_banner(block: list[str]) -> bool:
    return any(banner in "".join(block) for banner in _BANNERS)
