"""`feedrate baseline`: measure the storage's own limits with fio, or a Ceph pool's with rados bench."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from emulator import live
from emulator.cli import options
from emulator.errors import SpecError
from emulator.plugins.baseline.clients import Plan, measure, planned
from emulator.plugins.baseline.fio_plan import fio_plan
from emulator.plugins.baseline.rados import rados_plan
from emulator.run.comm import Comm
from emulator.run.world import world
from emulator.units import parse_bytes, parse_list, parse_seconds

Folder = Annotated[
    Path, typer.Argument(metavar="DIR", help="Folder on the storage, or the word rados for a Ceph pool.")
]
SuiteName = Annotated[
    str, typer.Option("--suite", help="four-corners, mixed, sequential, weka2023 or noisy-neighbour.")
]
Quick = Annotated[bool, typer.Option("--quick", help="Small files and few depths, for one minute.")]
Depths = Annotated[str | None, typer.Option(help="Queue depths, such as 1,8,32.")]
Jobs = Annotated[int | None, typer.Option(min=1, help="fio jobs per client.")]
ClientCounts = Annotated[
    str | None, typer.Option(help="Client counts to sweep, such as 1,2,4; default all clients.")
]
PerHost = Annotated[int, typer.Option(min=1, help="Clients per host, if it has as many ranks.")]
Size = Annotated[str | None, typer.Option(help="Size of a job's file; default 1GiB.")]
Runtime = Annotated[str | None, typer.Option(help="Measured time of one test; default 30s.")]
Keep = Annotated[bool, typer.Option("--keep", help="Leave fio's files in DIR, or the pool's objects.")]
Pool = Annotated[str | None, typer.Option("--pool", help="With rados: the pool.")]
CephConf = Annotated[Path, typer.Option("--ceph-conf", help="With rados: the cluster's ceph.conf.")]
CephUser = Annotated[str, typer.Option("--ceph-user", help="With rados: client.NAME.")]


def baseline(
    folder: Folder,
    suite: SuiteName = "four-corners",
    quick: Quick = False,
    depths: Depths = None,
    jobs: Jobs = None,
    clients: ClientCounts = None,
    per_host: PerHost = 1,
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
    """Measure the storage's own limits with fio: IOPS, GB/s and latency over queue depths, one fio per host.

    `feedrate baseline rados --pool P --ceph-conf F` runs rados bench on a pool instead.

    \b
    Examples:
      feedrate baseline /mnt/ai --quick
      feedrate baseline rados --pool ai --ceph-conf /etc/ceph/ceph.conf
    """
    queue_depths = parse_list("--depths", depths) if depths else ()
    seconds = None if runtime is None else parse_seconds(runtime)
    if pool is None and folder != Path("rados"):
        plan: Plan = fio_plan(
            folder,
            out or options.default_out(suite),
            suite=suite,
            quick=quick,
            depths=queue_depths,
            jobs=jobs,
            counts=parse_list("--clients", clients) if clients else (),
            file_bytes=None if size is None else parse_bytes(size),
            seconds=seconds,
            per_host=per_host,
            keep=keep,
            command=options.command_line(),
            label=label,
        )
    else:
        plan = rados_plan(
            _pool(folder, pool),
            out or options.default_out("rados"),
            conf=ceph_conf,
            user=ceph_user,
            quick=quick,
            depths=queue_depths,
            seconds=seconds,
            most_bytes=None if size is None else parse_bytes(size),
            per_host=per_host,
            keep=keep,
            command=options.command_line(),
            label=label,
        )
    comm = world()
    if dry_run:
        _show_plan(plan, comm)
    elif (result := measure(plan, comm, force=force)) is not None:
        options.show_result(result, plan.out)


def _pool(folder: Path, pool: str | None) -> str:
    """Return the pool that rados bench measures. Raises SpecError."""
    if pool is None:
        raise SpecError("baseline rados needs a pool", "add --pool POOL; for a folder write ./rados")
    if folder != Path("rados"):
        raise SpecError("--pool is for rados bench", f"use feedrate baseline rados --pool {pool}")
    return pool


def _show_plan(plan: Plan, comm: Comm) -> None:
    clients, lines = planned(plan, comm)
    if comm.rank == 0 and live.for_programs():
        live.answer({"clients": clients, "plan": lines})
    for line in lines:
        typer.echo(line)
