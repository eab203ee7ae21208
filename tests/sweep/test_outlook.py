"""Estimates of a sweep's duration."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
from clocks import LateClock
from synthetic_results import point

from emulator.analysis.search import KneeSearch
from emulator.config.storage import StorageSpec
from emulator.config.workload import load_workload
from emulator.record.result import Probe
from emulator.run.job import TrainingJob
from emulator.sweep.adaptive import Adaptive
from emulator.sweep.outlook import BETWEEN_SECONDS, Pace

MANIFEST = SimpleNamespace(total=960_000_000, samples=1000, samples_per_file=1)


def pace(tmp_path, rate):
    job = TrainingJob(
        kind="sweep", dataset=tmp_path, workload=load_workload("unet3d-tiny"), loader="direct",
        storage=StorageSpec(shaped_rate=rate), epochs=None, steps=60, out=tmp_path, command=(),
    )  # fmt: skip
    return Pace(job, MANIFEST)


def test_known_bandwidth_decides_how_long_a_step_takes(tmp_path):
    known, unknown, probed = (pace(tmp_path, rate) for rate in (384e6, None, None))
    probed.probed(
        [Probe(request_bytes=2**20, depth=4, requests_per_second=384e6 / 2**20, latency_seconds=0.01)]
    )
    # 4 samples of 960 kB in 50 ms: 76.8 MB/s a rank, so 5 ranks
    assert known.limit == probed.limit == pytest.approx(5) and unknown.limit == math.inf
    assert known.step(2, ()) == known.step(5, ()) == unknown.step(50, ()) == pytest.approx(0.05)
    assert known.step(10, ()) == pytest.approx(0.1)


def test_what_a_run_takes_beside_its_steps_is_learnt(tmp_path):
    learns = pace(tmp_path, None)
    assert learns.run(1, ()) == pytest.approx(BETWEEN_SECONDS + 60 * 0.05)
    learns.took(10.0, replace(point(2, 1e9), seconds=4.0))
    assert learns.between(1) == learns.between(2) == pytest.approx(6.0)
    assert learns.between(4) == pytest.approx(12.0), "each rank has a start of its own"


def test_more_ranks_are_slower_where_the_storage_or_the_cores_are_used_up(tmp_path):
    known = pace(tmp_path, None)
    (host,) = point(2, 1e9).hosts
    host = replace(host, cores=4, cpu_seconds=8.0)
    fed = replace(point(2, 1e9), x_ideal=1.0, seconds=4.0, steps=8, hosts=(host,))
    assert known.step(2, [fed]) == known.step(4, [fed]) == pytest.approx(0.5)
    assert known.step(1, [fed]) == pytest.approx(0.25) and known.step(1, [replace(fed, seconds=0.5)]) == 0.05
    assert known.step(8, [fed]) == pytest.approx(1.0), "four ranks use all cores"
    assert known.step(4, [replace(fed, x_ideal=0.5)]) == pytest.approx(1.0), "the storage"


@pytest.mark.parametrize(("limit", "most"), [(0.4, 4), (5.0, 20), (100.0, 4), (math.inf, 20)])
def test_a_sweep_is_played_before_it_begins(limit, most):
    search, clock = KneeSearch(maximum=12), LateClock(0.0)
    clock.time = 0.0
    schedule = Adaptive(search, clock, 60)
    counts = schedule.expected((), limit)
    assert counts[0] == schedule.next_count([]) and 2 <= len(counts) <= most
    clock.time = 45.0
    assert schedule.seconds_left == 15.0
