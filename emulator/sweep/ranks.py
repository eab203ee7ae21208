"""Measure many points with one group of ranks: they start once, and each count runs on some of them.

Only rank 0 has a `Leader`, which chooses counts and concludes from points.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import numpy as np

from emulator.dataset.manifest import Dataset
from emulator.dataset.shared import open_together
from emulator.launch.comm import Comm, Quiet, agreed, entered, guarded
from emulator.record.out import RESULT
from emulator.record.result import RunResult
from emulator.record.steps import Spool, make_spool, next_part, remove_spools, write_part
from emulator.run.environment import hosts_of
from emulator.run.job import TrainingJob
from emulator.run.point import run_point
from emulator.run.probe import probe_storage
from emulator.sweep.leader import Leader
from emulator.sweep.schedule import activation_order


def follow(world: Comm) -> int:
    """Run the jobs that rank 0 broadcasts, on another rank; return the exit status that it broadcasts."""
    while not isinstance(job := world.bcast(None), int):
        with suppress(Quiet):  # all ranks failed together, and one has reported why
            measure(job, world, None)
    return job


def measure(job: TrainingJob, world: Comm, leader: Leader | None) -> RunResult | None:
    """Run the points that rank 0's `leader` chooses; return the result on rank 0, None on others.

    Collective over `world`: when a rank fails, it reports why, and all ranks end.
    """
    with guarded(world, job.out):
        hosts, memory = hosts_of(world)
        dataset = open_together(world, job.dataset)
        opened = partial(leader.open, dataset, hosts, memory, world) if leader else None
        with entered(world, opened) as folder:
            number, part = world.bcast((len(leader.points), next_part(job.out)) if leader else None)
            part += list(dict.fromkeys(hosts)).index(hosts[world.rank])  # each host writes its own
            # OUT may be another folder on another host: its first rank looks for the result there.
            sees_out = world.all(np.array([world.node().rank > 0 or (job.out / RESULT).is_file()]))
            if leader:
                leader.keep_rows_on({host for host, sees in zip(hosts, sees_out, strict=True) if not sees})
            with _spooling(job, world, part) as spool:
                order = activation_order(hosts, job.placement)
                _measure_points(job, dataset, world, leader, order, number, spool)
            return folder.complete() if folder else None


@contextmanager
def _spooling(job: TrainingJob, world: Comm, part: int) -> Iterator[Spool]:
    """Open the spool of this rank's host for the body, then write its rows as `part` of the step log.

    Collective over `world`. The spool of a body that fails stays, with all rows so far.
    """
    node = world.node()
    first = node.rank == 0  # one rank per host makes the spool, and removes it
    path = agreed(world, lambda: make_spool(job.out, part) if first else None)
    spool_of_host = node.bcast(path)
    with agreed(world, lambda: Spool(spool_of_host, node.rank, node.size)) as spool:
        yield spool
    agreed(world, lambda: write_part(job.out, part, [path]) if path else None)
    agreed(world, lambda: remove_spools(job.out, [path]) if path else None)


def _measure_points(
    job: TrainingJob,
    dataset: Dataset,
    world: Comm,
    leader: Leader | None,
    order: Sequence[int],
    number: int,
    spool: Spool,
) -> None:
    """Run points, from `number` on, until the leader has no further count."""
    progress = leader.progress if leader else lambda log: None
    _probe_if_requested(job, dataset, world, leader)
    while (choice := world.bcast(leader.next_run() if leader else None)) is not None:
        count, seconds = choice
        until = time.monotonic() + seconds
        active = world.rank in order[:count]
        group = world.split(0 if active else 1)
        point = None
        if active:
            point = run_point(job, dataset, number, group, spool, progress, world.links, until)
        if leader and point:
            leader.add(point)
        number += 1
        world.barrier()  # idle ranks wait here, so that they take no CPU from active ones
        _probe_if_requested(job, dataset, world, leader)


def _probe_if_requested(job: TrainingJob, dataset: Dataset, world: Comm, leader: Leader | None) -> None:
    """Probe the storage from the first rank of each host, if the leader requests it."""
    size = world.bcast(leader.request_to_probe if leader else None)
    if size is None:
        return
    first = world.node().rank == 0
    group = world.split(0 if first else 1)
    if first:
        storage = dataset.store.for_ranks(direct=dataset.store.takes_direct(), cache="cold")
        folder = job.dataset if isinstance(job.dataset, Path) else None
        probes = probe_storage(storage, dataset.manifest, folder, size, group)
        if leader:
            leader.add_probe(probes)
