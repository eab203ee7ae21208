from __future__ import annotations

import math
from dataclasses import replace

import pytest
from points import host, point

from emulator.analysis.evidence import usable
from emulator.analysis.flags import (
    below_shape,
    costly_barrier,
    jobs_cpu,
    neighbour,
    point_flags,
    short_run,
    small_dataset,
    unlike_job,
)
from emulator.analysis.point import measured_au
from emulator.config.workload import JobSpec, ReplaySpec, load_workload
from emulator.record.device import DeviceReads
from emulator.record.result import Bound, Flag, Starved


def test_a_clean_point_raises_nothing():
    assert point_flags(point(4, 0.99, resident_share=0.001)) == ()


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("overshoot", {"overshoot_share": 0.05}),
        ("steal", {"hosts": (host("a"), host("b", busy_share=0.9, steal_share=0.4))}),
        ("page-cache", {"resident_share": 0.2}),
        ("uneven-hosts", {"hosts": (host("a"), host("b", wait_seconds=20.0), host("c"))}),
    ],
)
def test_each_flag_alone(name, fields):
    (flag,) = point_flags(point(4, 0.9, **fields))
    assert flag.name == name
    assert flag.value > flag.threshold > 0
    assert flag.sentence.endswith(".")


def test_the_host_is_named():
    (flag,) = point_flags(point(4, 0.9, hosts=(host("a"), host("b", wait_seconds=20.0))))
    assert "Ranks on b waited 50%" in flag.sentence


def test_what_cannot_have_moved_the_throughput_is_no_flag():
    """Late processes that held nothing up, a crowd that cost nothing, CPU stolen from fed accelerators."""
    assert point_flags(point(4, 0.9, overshoot_p99=0.5, hosts=(host("c9", runqueue=12.0),))) == ()
    assert point_flags(point(4, 1.0, hosts=(host("a", busy_share=0.9, steal_share=0.4),))) == ()
    slept = Starved(seconds=9.0, storage=1.0)
    stolen = host("a", busy_share=0.9, steal_share=0.4)
    assert point_flags(point(4, 0.5, hosts=(stolen,), starved=slept)) == ()
    assert point_flags(point(4, 0.5, hosts=(stolen,), starved=Starved(seconds=9.0, cores=1.0)))


def test_a_neighbour_on_the_datasets_device_is_told_with_its_share():
    workload = load_workload("unet3d-tiny")
    disk = DeviceReads(name="sdb", requests=900, bytes=1_500_000_000, seconds=3.0, written_bytes=500_000_000)
    beside = point(4, 0.6, hosts=(host(device=disk),))
    flag = neighbour(beside, workload)
    assert flag is not None and flag.value == pytest.approx(0.5)
    assert "500 MB and wrote 500 MB on sdb" in flag.sentence
    assert neighbour(replace(beside, x_ideal=1.0), workload) is None, "nobody starved"
    alone = replace(disk, bytes=1_000_000_000, written_bytes=0)
    assert neighbour(point(4, 0.6, hosts=(host(device=alone),)), workload) is None


def test_each_flag_says_how_much():
    (flag,) = point_flags(point(4, 0.9, resident_share=0.04))
    assert "4.0% of the pages" in flag.sentence and flag.value == 0.04
    (flag,) = point_flags(point(4, 0.9, hosts=(host("a"), host("b", wait_seconds=20.0, ranks=2))))
    assert f"by up to {flag.value:.1%}" in flag.sentence


def test_emulated_storage_that_gives_less_than_it_is_shaped_to():
    full = point(4, 0.5, bound=Bound(kind="storage", evidence=()))
    rate = full.bytes_per_second / len(full.hosts)
    assert below_shape(full, rate) is None
    assert below_shape(point(4, 0.5, bound=Bound(kind="loader", evidence=())), rate * 2) is None
    flag = below_shape(full, rate * 1.25)
    assert flag is not None and flag.value == pytest.approx(0.2) and "by up to 20.0%" in flag.sentence


def test_what_was_not_measured_raises_nothing():
    unknown = host(steal_share=None, runqueue=None, busy_share=None)
    assert point_flags(point(4, 0.9, hosts=(unknown,))) == ()
    assert point_flags(point(4, 0.9, hosts=())) == ()


def test_dataset_against_memory():
    flag = small_dataset(100 * 10**9, 64 * 10**9)
    assert flag is not None
    assert flag.value == pytest.approx(100 / 64)
    assert flag.threshold == 5
    assert "100 GB" in flag.sentence
    assert small_dataset(320 * 10**9, 64 * 10**9) is None


def test_read_ahead_and_a_shuffle_buffer_ask_for_more_steps():
    ahead = load_workload("unet3d-tiny", ["loader.prefetch=2"])
    flag = short_run(point(4, 0.9, steps=9, wait_share=0.1), ahead)
    assert flag is not None and flag.threshold == 10
    assert short_run(point(4, 0.9, steps=9, wait_share=0.0), ahead) is None
    assert short_run(point(4, 0.9, steps=9, wait_share=0.0, bytes_per_second=0.0), ahead), (
        "all was read before"
    )
    assert short_run(point(4, 0.9, steps=10, wait_share=0.1), ahead) is None
    buffer = f"access.shuffle_buffer={3 * ahead.loader.batch_size}"
    shuffled = load_workload("unet3d-tiny", ["loader.prefetch=2", "access.pattern=sequential", buffer])
    flag = short_run(point(4, 0.9, steps=10, wait_share=0.1), shuffled)
    assert flag is not None and flag.threshold == 25
    assert "5 batches of read-ahead" in flag.sentence


@pytest.mark.parametrize(("steps", "measured"), [(8, False), (13, False), (15, False), (16, True)])
def test_au_rests_on_clearly_more_steps_than_were_read_ahead(steps, measured):
    """An H100 with 13 steps, 8 batches read ahead, showed AU 99.9 % beside 64 % of the throughput."""
    h100 = load_workload("unet3d-h100")
    found = measured_au(point(4, 0.64, au=0.999, au_here=0.98, steps=steps), h100)
    assert math.isnan(found.au) == math.isnan(found.au_here) == (not measured)
    flag = short_run(found, h100)
    assert flag is not None and ("AU is not measured" in flag.sentence) == (not measured)


def test_a_replay_is_faster_than_a_job_that_has_not_the_cores_for_it():
    """4 ranks, 100 steps/s each, on 8 cores."""
    plain = load_workload("unet3d-tiny")
    fast = point(4, 0.9, samples_per_second=400.0 * plain.loader.batch_size)
    assert jobs_cpu(fast, plain) is None, "nothing is known of the job's CPU"
    within, beyond = (
        load_workload("unet3d-tiny", [f"accelerator.host_cpu_seconds={seconds}"]) for seconds in (0.018, 0.03)
    )
    assert jobs_cpu(fast, within) is None
    flag = jobs_cpu(fast, beyond)
    assert flag is not None and flag.value == pytest.approx(1.5) and "150% of the 8 cores" in flag.sentence


def test_a_recording_whose_replay_differs_from_its_job_is_flagged():
    plain = load_workload("unet3d-tiny")
    assert unlike_job(plain) is None
    job = ReplaySpec(
        samples_per_second=100.0,
        waited=0.1,
        replay_samples_per_second=104.0,
        replay_waited=0.1,
        why="decoding",
    )
    assert unlike_job(replace(plain, job=JobSpec(replay=job))) is None
    flag = unlike_job(replace(plain, job=JobSpec(replay=replace(job, replay_samples_per_second=80.0))))
    assert flag is not None and flag.value == pytest.approx(0.2) and flag.threshold == 0.05
    assert "20% slower than the job (80.0 samples/s, not 100.0): decoding" in flag.sentence


def test_repeated_requests_are_flagged_where_they_cost():
    (flag,) = point_flags(point(4, 0.9, read_retries={"busy": 8, "cut": 1}, read_latency={"10": 300}))
    assert (flag.name, flag.value) == ("retries", 0.03)
    assert "9 requests for 300 reads had to be repeated (busy 8, cut 1)" in flag.sentence
    assert point_flags(point(4, 0.9, read_retries={"busy": 1}, read_latency={"10": 300})) == ()
    assert point_flags(point(4, 0.9, read_retries={"timeout": 1}, read_latency={"10": 300}))


@pytest.mark.parametrize(
    ("name", "value", "left"),
    [("page-cache", 0.02, 3), ("page-cache", 0.06, 2), ("steal", 0.2, 3), ("runqueue", 9.0, 3)],
)
def test_flags_invalidate_only_where_the_throughput_is_not_the_storages(name, value, left):
    flag = Flag(name=name, value=value, threshold=0.01, sentence="...")
    points = [point(1, 1.0), point(2, 0.9, flags=(flag,)), point(4, 0.5)]
    assert len(usable(points)) == left
    assert usable(points[1:]) == points[1:], "two process counts at least"


@pytest.mark.parametrize(("sync", "polled", "raised"), [
    ("step", True, True), ("step", False, False), ("epoch", True, False), ("none", True, False),
])  # fmt: skip
def test_barriers_cost_what_they_hold_up(sync, polled, raised):
    """10 ms of a step of 50 ms, in 100 steps: hidden behind steps unless hosts look for each other."""
    workload = load_workload("unet3d-tiny", [f"training.sync={sync}"])
    some = point(4, 0.8, steps=100, seconds=6.0, barrier_seconds=0.01)
    found = costly_barrier(some, workload, polled=polled)
    assert (found is not None) == raised
    assert found is None or found.value == pytest.approx(1 / 6)


def test_a_barrier_longer_than_a_step_holds_everybody_up():
    workload = load_workload("unet3d-tiny", ["training.sync=step"])
    slow = point(4, 0.5, steps=100, seconds=10.0, barrier_seconds=0.09)
    assert costly_barrier(slow, workload, polled=False).value == pytest.approx(0.4)
