"""`feedrate doctor`: check what this machine has and say how to get what is missing."""

from __future__ import annotations

import resource
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from emulator import live
from emulator.config.storage import ObjectURL, parse_place
from emulator.errors import FeedrateError, LaunchError, MissingError
from emulator.launch.mpi import mpi_library
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
    findings = list(_findings(parse_place(folder)))
    if live.for_programs():
        live.answer({"findings": [asdict(finding) for finding in findings]})
    # In JSON mode this goes to stderr.
    width = max(len(finding.what) for finding in findings)
    for finding in findings:
        typer.echo(finding.line(width))
    if any(finding.required and not finding.good for finding in findings):
        raise typer.Exit(1)


def _findings(place: Path | ObjectURL) -> Iterator[Finding]:
    yield from _mpi()
    yield _package("torch loader", "torch", "pip install 'feedrate[torch]'; --loader direct works without")
    yield _package("plots", "altair", "pip install 'feedrate[report]'; the terminal table works without")
    yield from _objects(place) if isinstance(place, ObjectURL) else _folder(place)
    yield from _machine()
    yield _tool("fio", "the storage's own limits need it: apt install fio, or dnf install fio")
    yield _tool("rados", "baseline rados needs it: apt install ceph-common")
    yield _tool("strace", "record needs it: apt install strace, or dnf install strace")
    yield from _plugins()


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

    def line(self, width: int) -> str:
        """The finding for people, with `what` in `width` columns."""
        line = f"{self.what:{width}}  {self.found}"
        if self.good:
            return f"ok       {line}"
        mark = "MISSING" if self.required else "note   "
        return f"{mark}  {line}: {self.advice}" if self.advice else f"{mark}  {line}"


def _mpi() -> Iterator[Finding]:
    """Say which MPI joins ranks of several hosts. Those of one host need none."""
    need = "ranks on several hosts need it: load your site's MPI module, or pip install 'feedrate[mpi]'"
    # pip puts an mpirun beside python, which a PATH without the virtual environment does not have.
    beside = str(Path(sys.executable).parent)
    path = shutil.which("mpirun", path=beside) or shutil.which("mpirun") or shutil.which("mpiexec")
    yield Finding("mpirun", path is not None, path or "not installed", need)
    try:
        yield Finding("MPI library", True, f"mpi4py uses {mpi_library()}")
    except LaunchError as error:
        yield Finding("MPI library", False, error.what, need)


def _package(what: str, name: str, advice: str) -> Finding:
    found = installed(name)
    return Finding(what, found is not None, f"{name} {found or 'is not installed'}", advice)


def _tool(name: str, advice: str) -> Finding:
    path = shutil.which(name)
    return Finding(name, path is not None, path or "not installed", advice)


def _folder(folder: Path) -> Iterator[Finding]:
    if not folder.exists():
        what = f"there is no folder {folder}"
        yield Finding("storage", False, what, "mount it, or check the path", required=True)
        return
    if not folder.is_dir():
        yield Finding("storage", False, f"{folder} is a file", "give the folder that it is in", required=True)
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


def _objects(place: ObjectURL) -> Iterator[Finding]:
    """List one object, which needs the endpoint, the keys and the bucket, or the cluster, user and pool."""
    try:
        some = next(iter(open_store(place).entries()), None)
        yield Finding("storage", True, f"{place} answers, {'with' if some else 'no'} objects")
    except FeedrateError as error:
        yield Finding("storage", False, error.what, error.hint, required=True)


def _machine() -> Iterator[Finding]:
    memory = Path("/dev/shm")
    free = shutil.disk_usage(memory).free if memory.is_dir() else 0
    advice = "DataLoader workers share memory there: mount it larger (docker: --shm-size=1g)"
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
