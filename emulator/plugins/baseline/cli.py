"""`feedrate baseline`: measure the storage's own limits with fio, or a Ceph pool's with rados bench."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from emulator import live
from emulator.cli import options
from emulator.errors import SpecError
from emulator.launch.comm import Comm, agreed
from emulator.launch.world import world
from emulator.plugins.baseline.fio_suite import FioSuite
from emulator.plugins.baseline.measure import Tool, measure
from emulator.plugins.baseline.rados import RadosBench
from emulator.plugins.baseline.suites import SUITES, find_suite
from emulator.units import parse_bytes, parse_list, parse_seconds

Folders = Annotated[
    list[Path],
    typer.Argument(
        metavar="DIR...",
        help="Folder on the storage, several to spread files over them, or the word rados for a Ceph pool.",
    ),
]
SuiteName = Annotated[str, typer.Option("--suite", help=", ".join(SUITES))]
Quick = Annotated[bool, typer.Option("--quick", help="Small files and few depths, for one minute.")]
Depths = Annotated[str | None, typer.Option(help="Queue depths, such as 1,8,32.")]
Jobs = Annotated[int | None, typer.Option(min=1, help="fio jobs per client.")]
Size = Annotated[str | None, typer.Option(help="Size of a job's file; default 1GiB.")]
Runtime = Annotated[str | None, typer.Option(help="Measured time of one test; default 30s.")]
Keep = Annotated[bool, typer.Option("--keep", help="Leave fio's files in DIR, or the pool's objects.")]
Pool = Annotated[str | None, typer.Option("--pool", help="With rados: the pool.")]
CephConf = Annotated[Path, typer.Option("--ceph-conf", help="With rados: the cluster's ceph.conf.")]
CephUser = Annotated[str, typer.Option("--ceph-user", help="With rados: client.NAME.")]


def baseline(
    folders: Folders,
    suite: SuiteName = "four-corners",
    quick: Quick = False,
    depths: Depths = None,
    jobs: Jobs = None,
    size: Size = None,
    runtime: Runtime = None,
    keep: Keep = False,
    pool: Pool = None,
    ceph_conf: CephConf = Path("/etc/ceph/ceph.conf"),
    ceph_user: CephUser = "",
    out: options.Out = None,
    label: options.Label = "",
    dry_run: options.DryRun = False,
    force: options.Force = False,
) -> None:
    """Measure the storage's own limits with fio: IOPS, GB/s and latency over queue depths.

    Under mpirun or srun each rank runs a fio of its own. `feedrate baseline rados --pool P --ceph-conf F`
    runs rados bench on a pool instead.

    \b
    Examples:
      feedrate baseline /mnt/ai --quick
      feedrate baseline rados --pool ai --ceph-conf /etc/ceph/ceph.conf
    """
    # ./rados is a folder of that name.
    on_ceph = pool is not None or folders == [Path("rados")]
    given_depths = parse_list("--depths", depths) if depths else ()
    seconds, ramp_seconds, file_bytes, pool_bytes = (
        (2.0, 0.2, 2**26, 2**28) if quick else (30.0, 5.0, 2**30, 0)
    )
    common: dict[str, Any] = {
        "seconds": parse_seconds(runtime or 0.0) or seconds,
        "keep": keep,
        "out": out or options.default_out("rados" if on_ceph else suite),
        "command": options.command_line(),
        "label": label,
    }
    tool: Tool
    if on_ceph:
        tool = RadosBench(
            pool=_pool(folders, pool),
            conf=ceph_conf,
            user=ceph_user,
            depths=given_depths or (16,),  # that of rados bench
            most_bytes=parse_bytes(size or pool_bytes),
            **common,
        )
    else:
        tool = FioSuite(
            suite=find_suite(suite, given_depths, jobs, quick=quick),
            folders=tuple(folders),
            file_bytes=parse_bytes(size or file_bytes),
            ramp_seconds=ramp_seconds,
            **common,
        )
    comm = world()
    if dry_run:
        _show_plan(tool, comm)
    elif (result := measure(tool, comm, force=force)) is not None:
        options.show_result(result, tool.out)


def _pool(folders: list[Path], pool: str | None) -> str:
    """Return the pool that rados bench measures. Raises SpecError."""
    if pool is None:
        raise SpecError("baseline rados needs a pool", "add --pool POOL; for a folder write ./rados")
    if folders != [Path("rados")]:
        raise SpecError("--pool is for rados bench", f"use feedrate baseline rados --pool {pool}")
    return pool


def _show_plan(tool: Tool, comm: Comm) -> None:
    lines = agreed(comm, lambda: [] if comm.rank else tool.plan(comm.size))
    if comm.rank == 0 and live.for_programs():
        live.answer({"clients": comm.size, "plan": lines})
    for line in lines:
        typer.echo(line)
