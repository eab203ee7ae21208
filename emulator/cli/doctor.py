"""What a machine has for the emulator, what it lacks, and how to get that."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

import typer

from emulator.config.storage import ObjectURL, Place
from emulator.errors import FeedrateError, LaunchError, MissingError
from emulator.record.machine import cores, describe_mount, memory_bytes
from emulator.registry import OBJECTS, load
from emulator.run.mpirun import environment, find_launcher
from emulator.storage import open_store
from emulator.storage.posix import probe_direct
from emulator.units import show_bytes

_RANKS = 2
_HELLO = "from mpi4py import MPI; w = MPI.COMM_WORLD; w.allreduce(1); print(w.rank, w.size)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the examination."""

    what: str
    good: bool
    found: str
    advice: str = ""
    """What to do when it is not good."""
    required: bool = False
    """Nothing runs without it."""


def examine(place: Place) -> list[Finding]:
    """Everything that is worth knowing before a run on `place`."""
    if isinstance(place, ObjectURL):
        folder, storage = Path(), [_objects(place)]
    else:
        folder, storage = place, [_folder(place), _direct(place)]
    first: tuple[Callable[[Path], Finding], ...] = (_mpirun, _ranks, _torch, _report)
    last: tuple[Callable[[Path], Finding], ...] = (
        _shared_memory, _open_files, _host, _fio, _s3, _rados, _rados_bench,
    )  # fmt: skip
    return [*(check(folder) for check in first), *storage, *(check(folder) for check in last)]


def _mpirun(folder: Path) -> Finding:
    try:
        launcher = find_launcher()
    except LaunchError as error:
        return Finding(what="mpirun", good=False, found=error.what, advice=error.hint, required=True)
    return Finding(what="mpirun", good=True, found=f"{launcher.flavour} {launcher.version}, {launcher.path}")


def _ranks(folder: Path) -> Finding:
    """Real ranks that really talk: mpirun and mpi4py may well belong to different MPIs."""
    try:
        launcher = find_launcher()
        command = launcher.command(_RANKS, [])
        command[command.index("-m") :] = ["-c", _HELLO]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=60, check=False, env=environment(),
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (FeedrateError, OSError, subprocess.TimeoutExpired) as error:
        return Finding(what="ranks", good=False, found=" ".join(str(error).split()), required=True)
    said = sorted(done.stdout.split("\n"))
    good = all(f"{rank} {_RANKS}" in said for rank in range(_RANKS))
    return Finding(
        what="ranks", good=good, required=True,
        found=f"{_RANKS} ranks see each other" if good else f"mpirun -n {_RANKS} failed",
        advice="mpirun and mpi4py must use the same MPI: pip install --force-reinstall 'feedrate[mpi]'",
    )  # fmt: skip


def _package(what: str, name: str, advice: str) -> Finding:
    try:
        return Finding(what=what, good=True, found=f"{name} {version(name)}")
    except PackageNotFoundError:
        return Finding(what=what, good=False, found=f"{name} is not installed", advice=advice)


def _torch(folder: Path) -> Finding:
    return _package("torch loader", "torch", "pip install 'feedrate[torch]'; --loader direct works without")


def _report(folder: Path) -> Finding:
    return _package("plots", "altair", "pip install 'feedrate[report]'; the terminal table works without")


def _folder(folder: Path) -> Finding:
    if not folder.is_dir():
        return Finding(
            what="storage", good=False, found=f"{folder} is not there", advice="mount it", required=True
        )
    mount = describe_mount(folder)
    free = shutil.disk_usage(folder).free
    where = f"{mount.get('type', '?')} on {mount.get('mount', '?')}" if mount else str(folder)
    return Finding(what="storage", good=True, found=f"{where}, {show_bytes(free)} free")


def _direct(folder: Path) -> Finding:
    try:
        good = probe_direct(folder)
    except (FeedrateError, OSError) as error:
        return Finding(what="O_DIRECT", good=False, found=str(error))
    return Finding(
        what="O_DIRECT", good=good, found="works" if good else "not on this file system",
        advice="cold reads use posix_fadvise instead, at a higher cost in CPU",
    )  # fmt: skip


def _shared_memory(folder: Path) -> Finding:
    place = Path("/dev/shm")
    free = shutil.disk_usage(place).free if place.is_dir() else 0
    return Finding(
        what="/dev/shm", good=free >= 2**28, found=f"{show_bytes(free)} free",
        advice="MPI and DataLoader workers share memory there: mount it larger (docker: --shm-size=1g)",
    )  # fmt: skip


def _open_files(folder: Path) -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Finding(
        what="open files", good=soft >= 1024, found=f"at most {soft}", advice=f"ulimit -n {min(hard, 65536)}"
    )


def _host(folder: Path) -> Finding:
    python = ".".join(map(str, sys.version_info[:3]))
    return Finding(
        what="host", good=True, found=f"{cores()} cores, {show_bytes(memory_bytes())} memory, Python {python}"
    )


def _fio(folder: Path) -> Finding:
    path = shutil.which("fio")
    return Finding(
        what="fio", good=path is not None, found=path or "not installed",
        advice="the storage's own limits need it: apt install fio, or dnf install fio",
    )  # fmt: skip


def _objects(place: ObjectURL) -> Finding:
    """Whether the objects can be listed: endpoint, keys and bucket, or cluster, user and pool."""
    try:
        some = next(iter(open_store(place).entries()), None)
    except FeedrateError as error:
        return Finding(what="storage", good=False, found=error.what, advice=error.hint, required=True)
    return Finding(what="storage", good=True, found=f"{place} answers, {'with' if some else 'no'} objects")


def _s3(folder: Path) -> Finding:
    return _package("s3://", "obstore", "pip install 'feedrate[s3]'; folders work without")


def _rados(folder: Path) -> Finding:
    try:
        load(OBJECTS["rados"].store)
    except MissingError as error:
        return Finding(
            what="rados://", good=False, found="python3-rados is not visible here", advice=error.hint
        )
    return Finding(what="rados://", good=True, found="python3-rados")


def _rados_bench(folder: Path) -> Finding:
    path = shutil.which("rados")
    return Finding(
        what="rados", good=path is not None, found=path or "not installed",
        advice="baseline rados needs it: apt install ceph-common",
    )  # fmt: skip


# ---- `feedrate doctor`: what this machine has, what is missing, and how to get it.


def doctor(
    folder: Annotated[
        str, typer.Argument(metavar="[DIR]", help="Folder on the storage, s3://BUCKET or rados://POOL.")
    ] = ".",
) -> None:
    """Check MPI, torch, the storage and the limits of this machine."""
    from emulator.config.storage import parse_place

    findings = examine(parse_place(folder))
    width = max(len(finding.what) for finding in findings)
    for finding in findings:
        mark = "ok     " if finding.good else ("MISSING" if finding.required else "note   ")
        line = f"{mark}  {finding.what:{width}}  {finding.found}"
        typer.echo(line if finding.good or not finding.advice else f"{line}: {finding.advice}")
    if any(finding.required and not finding.good for finding in findings):
        raise typer.Exit(1)
