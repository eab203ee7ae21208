"""`feedrate baseline rados`: what a Ceph pool reads and writes, measured by rados bench."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from emulator.cli import options
from emulator.errors import SpecError
from emulator.record.result import RunResult
from emulator.run.comm import Comm, guarded

if TYPE_CHECKING:
    from emulator.satellites.baseline.measure import Plan
    from emulator.satellites.baseline.rados import RadosPlan

RADOS_QUICK_SECONDS, RADOS_FULL_SECONDS = "2s", "30s"
RADOS_QUICK_BYTES = "256MiB"


class RadosOptions(NamedTuple):
    """What the command line says of it."""

    conf: Path
    user: str
    quick: bool
    depths: str | None
    size: str | None
    runtime: str | None
    keep: bool
    out: Path | None


Measure = Callable[[Comm, str], RunResult | None]
"""Measures as the client of that name, with the group of all clients; the result on the first of them."""


def measure_as_clients(comm: Comm, node: Comm, per_host: int, out: Path, measure: Measure) -> None:
    """Let the first `per_host` ranks of each host measure while the others wait, and show the result.

    Collective over `comm`, of which `node` is the part on this host.
    """
    active = node.rank < per_host
    group = comm.split(0 if active else 1)
    with guarded(comm, out):
        if active:
            host = socket.gethostname()
            result = measure(group, host if per_host == 1 else f"{host}-{node.rank}")
            if result is not None:
                options.show_result(result, out)
        comm.barrier()


def baseline_rados(
    folder: Path, pool: str | None, given: RadosOptions, per_host: int, force: bool, dry_run: bool
) -> None:
    """One rados bench per host (the first `per_host` ranks of each); other ranks wait."""
    from dataclasses import replace

    from emulator.run.comm import agreed, world
    from emulator.satellites.baseline.rados import check, measure

    plan = _plan(folder, pool, given)
    comm = world()
    node = comm.node()
    active = node.rank < per_host
    if dry_run:
        agreed(comm, lambda: _show(plan) if comm.rank == 0 else None)
        return
    plan = replace(plan, out=comm.bcast(plan.out))
    agreed(comm, lambda: check(plan, force) if active else None)
    measure_as_clients(
        comm,
        node,
        per_host,
        plan.out,
        lambda group, name: measure(plan, group, name, force=force, say=typer.echo),
    )


def _plan(folder: Path, pool: str | None, given: RadosOptions) -> RadosPlan:
    """Raises SpecError."""
    from emulator.satellites.baseline.measure import parse_list
    from emulator.satellites.baseline.rados import DEPTHS, Cluster, RadosPlan
    from emulator.units import parse_bytes, parse_seconds

    if pool is None:
        raise SpecError("baseline rados needs a pool", "--pool POOL; a folder of that name is ./rados")
    if folder != Path("rados"):
        raise SpecError("--pool is for rados bench", f"feedrate baseline rados --pool {pool}")
    size = given.size or (RADOS_QUICK_BYTES if given.quick else None)
    runtime = given.runtime or (RADOS_QUICK_SECONDS if given.quick else RADOS_FULL_SECONDS)
    return RadosPlan(
        cluster=Cluster(pool=pool, conf=given.conf, user=given.user),
        depths=parse_list("--depths", given.depths) if given.depths else DEPTHS,
        seconds=max(1.0, parse_seconds(runtime)),
        most_bytes=parse_bytes(size) if size else 0,
        keep=given.keep, command=options.command_line(),
        out=given.out or options.default_out("rados"),
    )  # fmt: skip


def _show(plan: RadosPlan) -> None:
    """Raises MissingError."""
    from emulator.units import show_seconds

    benches = plan.benches("HOST")
    typer.echo(f"rados bench: pool {plan.cluster.pool}, at least {show_seconds(len(benches) * plan.seconds)}")
    for bench in benches:
        typer.echo("  " + " ".join(bench.command(plan.cluster)))


# ---- `feedrate baseline`: the storage's own limits, measured by fio; a Ceph pool's, by rados bench.


QUICK_BYTES, FULL_BYTES = "64MiB", "1GiB"
QUICK_SECONDS, FULL_SECONDS = "2s", "30s"
QUICK_RAMP, FULL_RAMP = "200ms", "5s"


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
    dry_run: options.DryRun = False,
    force: options.Force = False,
) -> None:
    """What fio reads and writes here: IOPS, GB/s and latency over queue depths, one fio per host.

    `feedrate baseline rados --pool P --ceph-conf F` runs rados bench on a pool instead.
    """
    from emulator.satellites.baseline.measure import Plan, parse_list
    from emulator.satellites.baseline.suites import QUICK_DEPTHS, find_suite, tuned
    from emulator.units import parse_bytes, parse_seconds

    if pool is not None or folder == Path("rados"):
        baseline_rados(
            folder, pool, RadosOptions(ceph_conf, ceph_user, quick, depths, size, runtime, keep, out),
            per_host, force, dry_run,
        )  # fmt: skip
        return
    found = find_suite(suite)
    usual = QUICK_DEPTHS if quick and found.depths else None
    wanted = parse_list("--depths", depths) if depths else usual
    plan = Plan(
        folder=folder, suite=tuned(found, wanted, jobs),
        clients=parse_list("--clients", clients) if clients else (),
        file_bytes=parse_bytes(size or (QUICK_BYTES if quick else FULL_BYTES)),
        seconds=parse_seconds(runtime or (QUICK_SECONDS if quick else FULL_SECONDS)),
        ramp_seconds=parse_seconds(ramp or (QUICK_RAMP if quick else FULL_RAMP)),
        engine=engine, keep=keep, command=options.command_line(),
        out=out or options.default_out(suite),
    )  # fmt: skip
    if servers:
        _on_servers(plan, servers, force, dry_run)
    else:
        _measure(plan, per_host, force, dry_run)


def _on_servers(plan: Plan, text: str, force: bool, dry_run: bool) -> None:
    """This process speaks with the fio of every host."""
    from emulator.errors import SpecError
    from emulator.run.comm import world
    from emulator.satellites.baseline.measure import check, measure_remote, parse_servers, reach

    if world().size > 1:
        raise SpecError("--servers is for one process, not for ranks", "leave mpirun or --servers out")
    servers = parse_servers(text)
    if dry_run:
        _show_baseline(plan, len(servers))
        return
    check(plan, len(servers), force)
    reach(servers)
    options.show_result(measure_remote(plan, servers, force=force, say=typer.echo), plan.out)


def _measure(plan: Plan, per_host: int, force: bool, dry_run: bool) -> None:
    """One client a host (the first `per_host` ranks of each); other ranks wait."""
    from dataclasses import replace

    from emulator.run.comm import agreed, world
    from emulator.satellites.baseline.measure import check, measure

    comm = world()
    node = comm.node()
    active = node.rank < per_host
    clients = sum(comm.allgather(active))
    if dry_run:
        agreed(comm, lambda: _show_baseline(plan, clients) if comm.rank == 0 else None)
        return
    plan = replace(plan, out=comm.bcast(plan.out))
    agreed(comm, lambda: check(plan, clients, force))
    measure_as_clients(
        comm,
        node,
        per_host,
        plan.out,
        lambda group, name: measure(plan, group, name, force=force, say=typer.echo),
    )


def _show_baseline(plan: Plan, clients: int) -> None:
    from emulator.satellites.baseline.suites import files_needed
    from emulator.units import show_bytes, show_seconds

    planned = plan.turns(clients)
    files = files_needed(planned)
    typer.echo(f"suite:    {plan.suite.name}, {plan.suite.title}")
    typer.echo(
        f"clients:  {clients}, each with {files} files of {show_bytes(plan.file_bytes)} in {plan.folder}"
    )
    least = len(planned) * (plan.seconds + plan.ramp_seconds)
    typer.echo(f"tests:    {len(planned)}, at least {show_seconds(least)}")
    for turn in planned:
        typer.echo(f"  {turn.name}")
