"""`feedrate doctor`: check what this machine has and say how to get what is missing."""

from __future__ import annotations

import os
import resource
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from emulator import live
from emulator.config.storage import ObjectURL, parse_place
from emulator.errors import FeedrateError, LaunchError, MissingError, StorageError
from emulator.launch.launched import mpi_library
from emulator.launch.mpirun import Launcher, find_launcher, rank_environment
from emulator.launch.scratch import scratch
from emulator.record.machine import cores, describe_mount, installed, memory_bytes
from emulator.registry import GROUPS
from emulator.storage import open_store
from emulator.storage.batches import engines, has_module
from emulator.storage.posix import probe_direct
from emulator.units import show_bytes


def doctor(
    folder: Annotated[
        str, typer.Argument(metavar="[DIR]", help="Folder on the storage, s3://BUCKET or rados://POOL.")
    ] = ".",
) -> None:
    """Check MPI, torch, the storage and the limits of this machine.

    \b
    Examples:
      feedrate doctor /mnt/ai
      feedrate doctor s3://bucket
    """
    place = parse_place(folder)
    findings = [
        *_mpi(),
        _package("torch loader", "torch", "pip install 'feedrate[torch]'; --loader direct works without"),
        _package("plots", "altair", "pip install 'feedrate[report]'; the terminal table works without"),
        *(_objects(place) if isinstance(place, ObjectURL) else _folder(place)),
        *_machine(),
        _tool("fio", "the storage's own limits need it: apt install fio, or dnf install fio"),
        _tool("rados", "baseline rados needs it: apt install ceph-common"),
        *_plugins(),
    ]
    if live.for_programs():
        live.answer([asdict(finding) for finding in findings])
    width = max(len(finding.what) for finding in findings)
    for finding in findings:
        mark = "ok     " if finding.good else ("MISSING" if finding.required else "note   ")
        line = f"{mark}  {finding.what:{width}}  {finding.found}"
        typer.echo(line if finding.good or not finding.advice else f"{line}: {finding.advice}")
    if any(finding.required and not finding.good for finding in findings):
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    what: str
    good: bool
    found: str
    advice: str = ""
    """Advice for when `good` is False."""
    required: bool = False
    """True when no run works without it."""


def _refused(what: str, error: FeedrateError) -> Finding:
    return Finding(what, False, error.what, error.hint, required=True)


def _mpi() -> Iterator[Finding]:
    try:
        launcher = find_launcher()
        yield Finding("mpirun", True, f"{launcher.family} {launcher.version}, {launcher.path}")
    except LaunchError as error:
        yield _refused("mpirun", error)
        return
    try:
        library = mpi_library()
        same = library.family in (None, launcher.family)
        abi = launcher.family.replace(" ", "").lower()
        advice = (
            f"mpirun is {launcher.family}'s; MPI4PY_MPIABI={abi} has mpi4py look for its library, and "
            "launch/README.md has which pairs work"
        )
        yield Finding("MPI library", same, f"mpi4py uses {library}", advice)
    except LaunchError as error:
        yield _refused("MPI library", error)
    yield _ranks(launcher)


def _ranks(launcher: Launcher) -> Finding:
    """Start two ranks: mpirun and mpi4py may belong to different MPIs, and then each rank is alone."""
    hello = "from mpi4py import MPI; w = MPI.COMM_WORLD; w.allreduce(1); print(w.rank, w.size)"
    try:
        with scratch() as (_, variables):
            done = subprocess.run(
                launcher.command(2, [sys.executable, "-c", hello]),
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
                env={**rank_environment(), **variables},
                stdin=subprocess.DEVNULL,
            )
    except (OSError, StorageError, subprocess.TimeoutExpired) as error:
        return Finding("ranks", False, " ".join(str(error).split()), required=True)
    said = set(done.stdout.split("\n"))
    if {"0 2", "1 2"} <= said:
        return Finding("ranks", True, "2 ranks see each other")
    if "0 1" in said:
        advice = "mpirun and mpi4py must use the same MPI: pip install --force-reinstall 'feedrate[mpi]'"
        return Finding("ranks", False, "2 ranks do not see each other", advice, required=True)
    words = [word for word in done.stderr.split() if set(word) != {"-"}]
    return Finding("ranks", False, f"mpirun -n 2 failed: {' '.join(words)[:200]}", required=True)


def _package(what: str, name: str, advice: str) -> Finding:
    found = installed(name)
    return Finding(what, found is not None, f"{name} {found or 'is not installed'}", advice)


def _tool(name: str, advice: str) -> Finding:
    path = shutil.which(name)
    return Finding(name, path is not None, path or "not installed", advice)


def _folder(folder: Path) -> Iterator[Finding]:
    if not folder.is_dir():
        what = f"{folder} is a file" if folder.exists() else f"there is no folder {folder}"
        advice = "give the folder that it is in" if folder.exists() else "mount it, or check the path"
        yield Finding("storage", False, what, advice, required=True)
        return
    mount, free = describe_mount(folder), shutil.disk_usage(folder).free
    where = f"{mount.get('type', '?')} on {mount.get('mount', '?')}" if mount else str(folder)
    yield Finding("storage", True, f"{where}, {show_bytes(free)} free")
    try:
        direct = probe_direct(folder)
    except (FeedrateError, OSError) as error:
        yield Finding("O_DIRECT", False, str(error))
        return
    found = "works" if direct else "not on this file system"
    yield Finding("O_DIRECT", direct, found, "cold reads use posix_fadvise instead, at a higher cost in CPU")
    advice = "install feedrate where a C compiler is: small files are read faster"
    yield Finding("reads", has_module(), engines(), advice)
    for what, place in (("others", folder), ("others at OUT", Path())):
        if place is folder or not folder.samefile(place):
            try:
                who = who_else_writes(place.resolve())
            except OSError as error:
                who = f"cannot see the rights of {place} ({error.strerror})"
            advice = "they can change samples and results: chmod go-w, or use a folder of your own"
            yield Finding(what, not who, who or f"only you can write to {place}", advice)


def who_else_writes(folder: Path) -> str:
    """Say who else may write to `folder`, to an entry of it, or to a folder above it. Raises OSError.

    Empty if none may. Root does not count; files in sub-folders are not looked at.
    """
    inside = [Path(entry.path) for entry in islice(os.scandir(folder), _ENTRIES)]
    for path in (folder, *folder.parents, *inside):
        info = path.lstat()
        # In a sticky folder users may rename only what is theirs.
        sticky = info.st_mode & stat.S_ISVTX and path in folder.parents
        if stat.S_ISLNK(info.st_mode) or sticky:
            continue
        mode = f"{path} (mode {stat.S_IMODE(info.st_mode):o})"
        if info.st_mode & stat.S_IWOTH:
            return f"every user may write to {mode}"
        if info.st_mode & stat.S_IWGRP and info.st_gid not in (0, os.getegid()):
            return f"the group {info.st_gid} may write to {mode}"
        if info.st_uid not in (0, os.geteuid()):
            return f"user {info.st_uid} owns {mode}"
    return ""


_ENTRIES = 10_000
"""Largest number of entries of a folder to look at."""


def _objects(place: ObjectURL) -> Iterator[Finding]:
    """List one object, which needs the endpoint, the keys and the bucket, or the cluster, user and pool."""
    try:
        some = next(iter(open_store(place).entries()), None)
        yield Finding("storage", True, f"{place} answers, {'with' if some else 'no'} objects")
    except FeedrateError as error:
        yield _refused("storage", error)


def _machine() -> Iterator[Finding]:
    memory = Path("/dev/shm")
    free = shutil.disk_usage(memory).free if memory.is_dir() else 0
    advice = "MPI and DataLoader workers share memory there: mount it larger (docker: --shm-size=1g)"
    yield Finding("/dev/shm", free >= 2**28, f"{show_bytes(free)} free", advice)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield Finding("open files", soft >= 1024, f"at most {soft}", f"ulimit -n {min(hard, 65536)}")
    python = ".".join(map(str, sys.version_info[:3]))
    yield Finding("host", True, f"{cores()} cores, {show_bytes(memory_bytes())} memory, Python {python}")


def _plugins() -> Iterator[Finding]:
    """A line for each plug-in that cannot be imported, and a count of the rest."""
    working = 0
    for group in GROUPS:
        for name in group:
            try:
                group.load(name)
                working += 1
            except MissingError as error:
                yield Finding(f"{group.noun} {name}", False, error.what, error.hint)
    yield Finding("plug-ins", True, f"{working} can be imported")
