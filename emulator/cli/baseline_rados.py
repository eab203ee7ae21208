"""`feedrate baseline rados`: what a Ceph pool reads and writes, measured by rados bench."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from emulator.cli.clients import measure_as_clients
from emulator.cli.say import say
from emulator.errors import SpecError

if TYPE_CHECKING:
    from emulator.baseline.rados import RadosPlan

QUICK_SECONDS, FULL_SECONDS = "2s", "30s"
QUICK_BYTES = "256MiB"


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


def baseline_rados(
    folder: Path, pool: str | None, given: RadosOptions, per_host: int, force: bool, dry_run: bool
) -> None:
    """One rados bench per host (the first `per_host` ranks of each); other ranks wait."""
    from dataclasses import replace

    from emulator.baseline.rados import check, measure
    from emulator.run.comm import world
    from emulator.run.guard import agreed

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
        comm, node, per_host, plan.out, lambda group, name: measure(plan, group, name, force=force, say=say)
    )


def _plan(folder: Path, pool: str | None, given: RadosOptions) -> RadosPlan:
    """Raises SpecError."""
    import sys
    import time

    from emulator.baseline.plan import parse_list
    from emulator.baseline.rados import DEPTHS, RadosPlan
    from emulator.baseline.rados_bench import Cluster
    from emulator.units import parse_bytes, parse_seconds

    if pool is None:
        raise SpecError("baseline rados needs a pool", "--pool POOL; a folder of that name is ./rados")
    if folder != Path("rados"):
        raise SpecError("--pool is for rados bench", f"feedrate baseline rados --pool {pool}")
    size = given.size or (QUICK_BYTES if given.quick else None)
    return RadosPlan(
        cluster=Cluster(pool=pool, conf=given.conf, user=given.user),
        depths=parse_list("--depths", given.depths) if given.depths else DEPTHS,
        seconds=max(1.0, parse_seconds(given.runtime or (QUICK_SECONDS if given.quick else FULL_SECONDS))),
        most_bytes=parse_bytes(size) if size else 0,
        keep=given.keep, command=("feedrate", *sys.argv[1:]),
        out=given.out or Path("feedrate-results") / f"rados-{time.strftime('%Y%m%d-%H%M%S')}",
    )  # fmt: skip


def _show(plan: RadosPlan) -> None:
    """Raises MissingError."""
    from emulator.units import show_seconds

    benches = plan.benches("HOST")
    say(f"rados bench: pool {plan.cluster.pool}, at least {show_seconds(len(benches) * plan.seconds)}")
    for bench in benches:
        say("  " + " ".join(bench.command(plan.cluster)))
