"""`feedrate doctor`: what this machine has, what is missing, and how to get it."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

import typer

from emulator.config.storage import ObjectURL, parse_place
from emulator.errors import FeedrateError, LaunchError, MissingError
from emulator.record.machine import cores, describe_mount, memory_bytes
from emulator.registry import OBJECTS, load
from emulator.run.mpirun import Launcher, environment, find_launcher
from emulator.storage import open_store
from emulator.storage.posix import probe_direct
from emulator.units import show_bytes


def doctor(
    folder: Annotated[
        str, typer.Argument(metavar="[DIR]", help="Folder on the storage, s3://BUCKET or rados://POOL.")
    ] = ".",
) -> None:
    """Check MPI, torch, the storage and the limits of this machine."""
    place = parse_place(folder)
    findings = [
        *_mpi(),
        _package("torch loader", "torch", "pip install 'feedrate[torch]'; --loader direct works without"),
        _package("plots", "altair", "pip install 'feedrate[report]'; the terminal table works without"),
        *([_objects(place)] if isinstance(place, ObjectURL) else _folder(place)),
        *_machine(),
        _tool("fio", "the storage's own limits need it: apt install fio, or dnf install fio"),
        _package("s3://", "obstore", "pip install 'feedrate[s3]'; folders work without"),
        _rados_binding(),
        _tool("rados", "baseline rados needs it: apt install ceph-common"),
    ]
    width = max(len(finding.what) for finding in findings)
    for finding in findings:
        mark = "ok     " if finding.good else ("MISSING" if finding.required else "note   ")
        line = f"{mark}  {finding.what:{width}}  {finding.found}"
        typer.echo(line if finding.good or not finding.advice else f"{line}: {finding.advice}")
    if any(finding.required and not finding.good for finding in findings):
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the examination."""

    what: str
    good: bool
    found: str
    advice: str = ""
    """What to do when it is not good."""
    required: bool = False
    """Nothing runs without it."""


def _mpi() -> Iterator[Finding]:
    try:
        launcher = find_launcher()
    except LaunchError as error:
        yield Finding("mpirun", False, error.what, error.hint, required=True)
        yield Finding("ranks", False, " ".join(str(error).split()), required=True)
        return
    yield Finding("mpirun", True, f"{launcher.flavour} {launcher.version}, {launcher.path}")
    yield _ranks(launcher)


def _ranks(launcher: Launcher) -> Finding:
    """Whether two real ranks really talk: mpirun and mpi4py may well belong to different MPIs."""
    command = launcher.command(2, [])
    hello = "from mpi4py import MPI; w = MPI.COMM_WORLD; w.allreduce(1); print(w.rank, w.size)"
    command[command.index("-m") :] = ["-c", hello]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=environment(),
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("ranks", False, " ".join(str(error).split()), required=True)
    good = {"0 2", "1 2"} <= set(done.stdout.split("\n"))
    return Finding(
        "ranks",
        good,
        "2 ranks see each other" if good else "mpirun -n 2 failed",
        "mpirun and mpi4py must use the same MPI: pip install --force-reinstall 'feedrate[mpi]'",
        required=True,
    )


def _package(what: str, name: str, advice: str) -> Finding:
    try:
        return Finding(what, True, f"{name} {version(name)}")
    except PackageNotFoundError:
        return Finding(what, False, f"{name} is not installed", advice)


def _tool(name: str, advice: str) -> Finding:
    path = shutil.which(name)
    return Finding(name, path is not None, path or "not installed", advice)


def _folder(folder: Path) -> Iterator[Finding]:
    if folder.is_dir():
        mount, free = describe_mount(folder), shutil.disk_usage(folder).free
        where = f"{mount.get('type', '?')} on {mount.get('mount', '?')}" if mount else str(folder)
        yield Finding("storage", True, f"{where}, {show_bytes(free)} free")
    else:
        yield Finding("storage", False, f"there is no folder {folder}", "mount it", required=True)
    try:
        direct = probe_direct(folder)
    except (FeedrateError, OSError) as error:
        yield Finding("O_DIRECT", False, str(error))
        return
    found = "works" if direct else "not on this file system"
    yield Finding("O_DIRECT", direct, found, "cold reads use posix_fadvise instead, at a higher cost in CPU")


def _objects(place: ObjectURL) -> Finding:
    """Whether the objects can be listed: endpoint, keys and bucket, or cluster, user and pool."""
    try:
        some = next(iter(open_store(place).entries()), None)
    except FeedrateError as error:
        return Finding("storage", False, error.what, error.hint, required=True)
    return Finding("storage", True, f"{place} answers, {'with' if some else 'no'} objects")


def _machine() -> Iterator[Finding]:
    memory = Path("/dev/shm")
    free = shutil.disk_usage(memory).free if memory.is_dir() else 0
    yield Finding(
        "/dev/shm",
        free >= 2**28,
        f"{show_bytes(free)} free",
        "MPI and DataLoader workers share memory there: mount it larger (docker: --shm-size=1g)",
    )
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield Finding("open files", soft >= 1024, f"at most {soft}", f"ulimit -n {min(hard, 65536)}")
    python = ".".join(map(str, sys.version_info[:3]))
    yield Finding("host", True, f"{cores()} cores, {show_bytes(memory_bytes())} memory, Python {python}")


def _rados_binding() -> Finding:
    try:
        load(OBJECTS["rados"].store)
    except MissingError as error:
        return Finding("rados://", False, "python3-rados is not visible here", error.hint)
    return Finding("rados://", True, "python3-rados")
