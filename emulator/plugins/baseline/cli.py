"""`feedrate baseline`: the storage's own limits, measured by fio; a Ceph pool's, by rados bench."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from emulator import live
from emulator.cli import options
from emulator.errors import SpecError
from emulator.plugins.baseline import rados
from emulator.plugins.baseline.fio import Server, Setting, parse_servers, reach, run_fio, run_on
from emulator.plugins.baseline.measure import BaselinePlan, RunFio, as_clients, measure
from emulator.plugins.baseline.suites import QUICK_DEPTHS, find_suite, tuned
from emulator.record.result import RunResult
from emulator.run.comm import Comm, agreed, world
from emulator.units import parse_bytes, parse_list, parse_seconds

QUICK_BYTES, FULL_BYTES = "64MiB", "1GiB"
QUICK_SECONDS, FULL_SECONDS = "2s", "30s"
QUICK_RAMP, FULL_RAMP = "200ms", "5s"
RADOS_QUICK_BYTES = "256MiB"

Folder = Annotated[
    Path, typer.Argument(metavar="DIR", help="Folder on the storage; or the word rados, for a Ceph pool.")
]
SuiteName = Annotated[
    str, typer.Option("--suite", help="four-corners, mixed, sequential, weka2023 or noisy-neighbour.")
]
Quick = Annotated[bool, typer.Option("--quick", help="A minute's look: small files, few depths.")]
Depths = Annotated[str | None, typer.Option(help="Queue depths: 1,8,32.")]
Jobs = Annotated[int | None, typer.Option(min=1, help="fio jobs of a client.")]
ClientCounts = Annotated[
    str | None, typer.Option(help="Numbers of clients to sweep over: 1,2,4. Default: all at once.")
]
Servers = Annotated[
    str | None,
    typer.Option(help="Hosts that run fio --server, instead of mpirun: node1,node2:8766. DIR is there too."),
]
PerHost = Annotated[int, typer.Option(min=1, help="Clients on a host, where it has as many ranks.")]
Size = Annotated[str | None, typer.Option(help=f"Size of a job's file; default {FULL_BYTES}.")]
Runtime = Annotated[str | None, typer.Option(help=f"Measured time of one test; default {FULL_SECONDS}.")]
Ramp = Annotated[str | None, typer.Option(help=f"Time before it, not counted; default {FULL_RAMP}.")]
Engine = Annotated[str, typer.Option(help="fio's ioengine.")]
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
    servers: Servers = None,
    per_host: PerHost = 1,
    size: Size = None,
    runtime: Runtime = None,
    ramp: Ramp = None,
    engine: Engine = "libaio",
    keep: Keep = False,
    pool: Pool = None,
    ceph_conf: CephConf = Path("/etc/ceph/ceph.conf"),
    ceph_user: CephUser = "",
    out: options.Out = None,
    label: options.Label = "",
    dry_run: options.DryRun = False,
    force: options.Force = False,
) -> None:
    """What fio reads and writes here: IOPS, GB/s and latency over queue depths, one fio per host.

    `feedrate baseline rados --pool P --ceph-conf F` runs rados bench on a pool instead.
    """
    queue_depths = parse_list("--depths", depths) if depths else None
    seconds = parse_seconds(runtime or (QUICK_SECONDS if quick else FULL_SECONDS))
    if pool is not None or folder == Path("rados"):
        if pool is None:
            raise SpecError("baseline rados needs a pool", "--pool POOL; a folder of that name is ./rados")
        if folder != Path("rados"):
            raise SpecError("--pool is for rados bench", f"feedrate baseline rados --pool {pool}")
        _measure(
            rados.RadosPlan(
                cluster=rados.Cluster(pool=pool, conf=ceph_conf, user=ceph_user),
                depths=queue_depths or rados.DEPTHS,
                seconds=max(1.0, seconds),
                most_bytes=parse_bytes(size or (RADOS_QUICK_BYTES if quick else "0")),
                keep=keep,
                out=out or options.default_out("rados"),
                command=options.command_line(),
                label=label,
            ),
            lambda plan, comm, name: rados.measure(plan, comm, name, force=force, say=live.say),
            per_host,
            (),
            force,
            dry_run,
        )
        return
    found = find_suite(suite)
    if quick and found.depths:
        queue_depths = queue_depths or QUICK_DEPTHS
    hosts = parse_servers(servers) if servers else ()

    def run_suite(plan: BaselinePlan, comm: Comm, name: str) -> RunResult | None:
        names = [host.name for host in hosts] or [name]
        run: RunFio = partial(run_on, hosts) if hosts else _run_here
        return measure(plan, comm, names, run, force=force, say=live.say)

    _measure(
        BaselinePlan(
            suite=tuned(found, queue_depths, jobs),
            clients=parse_list("--clients", clients) if clients else (),
            setting=Setting(
                folder=folder,
                file_bytes=parse_bytes(size or (QUICK_BYTES if quick else FULL_BYTES)),
                engine=engine,
                seconds=seconds,
                ramp_seconds=parse_seconds(ramp or (QUICK_RAMP if quick else FULL_RAMP)),
            ),
            keep=keep,
            out=out or options.default_out(suite),
            command=options.command_line(),
            label=label,
        ),
        run_suite,
        per_host,
        hosts,
        force,
        dry_run,
    )


Plan = TypeVar("Plan", BaselinePlan, rados.RadosPlan)


def _measure(
    plan: Plan,
    run: Callable[[Plan, Comm, str], RunResult | None],
    per_host: int,
    servers: Sequence[Server],
    force: bool,
    dry_run: bool,
) -> None:
    """`run(plan, group, name)` on the first `per_host` ranks of each host, while the others wait."""
    comm = world()
    if servers and comm.size > 1:
        raise SpecError("--servers is for one process, not for ranks", "leave mpirun or --servers out")
    active = comm.node().rank < per_host
    clients = len(servers) or sum(comm.allgather(active))
    if dry_run:
        lines = agreed(comm, lambda: list(plan.lines(clients)) if comm.rank == 0 else [])
        if live.for_programs() and comm.rank == 0:
            live.answer({"clients": clients, "plan": lines})
        for line in lines:
            typer.echo(line)
        return
    plan = replace(plan, out=comm.bcast(plan.out))  # one clock decides on the default name
    agreed(comm, lambda: plan.check(clients, force) if active else None)
    reach(servers)
    result = as_clients(comm, per_host, plan.out, lambda group, name: run(plan, group, name))
    if result is not None:
        options.show_result(result, plan.out)


def _run_here(texts: Sequence[str], seconds: float | None) -> list[str]:
    return [run_fio(text, seconds) for text in texts]
