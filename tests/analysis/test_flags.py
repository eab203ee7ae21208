from __future__ import annotations

import math
from dataclasses import replace

import pytest
from points import host, point

from emulator.analysis.evidence import usable
from emulator.analysis.flags import (
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
from emulator.record.result import Flag, Starved

SLOW = host("b", wait_seconds=20.0)
BRIEF = host("b", wait_seconds=0.2)
STOLEN = host("b", busy_share=0.9, steal_share=0.4)
READS = {"10": 300}


@pytest.mark.parametrize(
    ("name", "value", "fields", "said"),
    [
        ("client", 0.05, {"overshoot_share": 0.05}, "held up for 5.0% of the time"),
        ("client", 0.25, {"step": {"compute": 0.3, "overshoot": 0.1}}, "held up for 25.0% of the time"),
        ("steal", 0.1 * 0.4 / 0.9, {"hosts": (host("a"), STOLEN)}, "40.0% of the CPU time of b"),
        ("page-cache", 0.04, {"resident_share": 0.04}, "4.0% of the bytes came from memory"),
        ("page-cache", 0.17, {"resident_share": 0.0, "read_amplification": 0.83}, "17.0% of the bytes"),
        ("uneven-hosts", 0.5, {"hosts": (host("a"), SLOW, host("c"))}, "Ranks on b waited 50%"),
        ("uneven-hosts", 0.5, {"hosts": (host("a"), BRIEF), "seconds": 0.1}, "Ranks on b waited 50%"),
        ("uneven-hosts", 1.0, {"hosts": (host("a"), replace(SLOW, ranks=2)), "barrier_share": 0.9}, "on b"),
        ("retries", 0.03, {"read_retries": {"busy": 8, "cut": 1}, "read_latency": READS}, "(busy 8, cut 1)"),
        ("retries", 1 / 300, {"read_retries": {"timeout": 1}, "read_latency": READS}, "(timeout 1)"),
    ],
)
def test_a_flag_says_by_how_much_the_throughput_may_have_moved(name, value, fields, said):
    (flag,) = point_flags(point(4, 0.9, **fields))
    assert flag.name == name and said in flag.sentence
    assert flag.value == pytest.approx(value) and flag.value > flag.threshold >= 0


@pytest.mark.parametrize(
    "fields",
    [
        {"resident_share": 0.001},
        {"read_amplification": 0.98},
        {"read_amplification": 1.4},  # read-ahead
        {"read_amplification": 0.0},  # FUSE and objects count nothing
        {"x_ideal": 1.0, "hosts": (STOLEN,)},  # the accelerators were fed
        {"hosts": (STOLEN,), "starved": Starved(seconds=9.0, storage=1.0)},  # no core was wanted
        {"read_retries": {"busy": 1}, "read_latency": READS},
        {"hosts": (host(steal_share=None, busy_share=None),)},  # not measured
        {"hosts": ()},
    ],
)
def test_what_did_not_move_the_throughput_is_no_flag(fields):
    assert point_flags(point(4, 0.9, **fields)) == ()


def test_a_neighbour_on_the_datasets_device_is_told_with_its_share():
    workload = load_workload("unet3d-tiny")
    disk = DeviceReads(name="sdb", requests=900, bytes=1_500_000_000, seconds=3.0, written_bytes=500_000_000)
    beside = point(4, 0.6, hosts=(host(device=disk),), read_amplification=1.0, steps=100_000)
    flag = neighbour(beside, workload)
    assert flag is not None and flag.value == pytest.approx(0.5, rel=1e-3)
    assert "500 MB and wrote 500 MB on sdb" in flag.sentence
    assert neighbour(replace(beside, x_ideal=1.0), workload) is None, "nobody starved"
    alone = replace(disk, bytes=1_000_000_000, written_bytes=0)
    assert neighbour(replace(beside, hosts=(host(device=alone),)), workload) is None
    ahead = replace(beside, hosts=(host(device=replace(disk, written_bytes=0)),))
    assert neighbour(replace(ahead, read_amplification=1.5), workload) is None, "the kernel's read-ahead"
    assert neighbour(replace(ahead, steps=2 * workload.batches_ahead), workload) is None, "not consumed"


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
    h100 = load_workload("unet3d-h100", ["loader.prefetch=8"])
    found = measured_au(point(4, 0.64, au=0.999, steps=steps), h100)
    assert math.isnan(found.au) == (not measured)
    flag = short_run(found, h100)
    assert flag is not None and ("AU is not measured" in flag.sentence) == (not measured)


def test_the_advice_for_au_is_a_longer_run():
    h100 = load_workload("unet3d-h100")
    for steps in (13, 500):
        flag = short_run(measured_au(point(4, 0.64, steps=steps), h100, kept_up=False), h100)
        assert flag is not None and flag.threshold > steps


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
    same = ReplaySpec(samples_per_second=100, waited=0, replay_samples_per_second=104, replay_waited=0)
    slower = replace(same, differences={"rate": 0.2}, why="decoding")
    assert unlike_job(plain) is unlike_job(replace(plain, job=JobSpec(replay=same))) is None
    for job, said in (
        (JobSpec(replay=slower), "differ by 20% in rate: decoding"),
        (JobSpec(unchecked="half of it came from memory"), "half of it came from memory"),
    ):
        flag = unlike_job(replace(plain, job=job))
        assert flag is not None and said in flag.sentence


@pytest.mark.parametrize(
    ("name", "value", "left"), [("page-cache", 0.02, 3), ("page-cache", 0.06, 2), ("steal", 0.2, 3)]
)
def test_flags_invalidate_only_where_the_throughput_is_not_the_storages(name, value, left):
    flag = Flag(name=name, value=value, threshold=0.01, sentence="...")
    points = [point(1, 1.0), point(2, 0.9, flags=(flag,)), point(4, 0.5)]
    assert len(usable(points)) == left
    assert usable(points[1:]) == points[1:], "two process counts at least"


@pytest.mark.parametrize(
    ("sync", "cost", "value"),
    [
        ("step", 0.01, None),  # hidden behind steps of 50 ms
        ("step", 0.09, 4 / 6),
        ("none", 0.09, None),
    ],
)
def test_barriers_cost_what_they_hold_up(sync, cost, value):
    workload = load_workload("unet3d-tiny", [f"training.sync={sync}"])
    found = costly_barrier(point(4, 0.8, steps=100, seconds=6.0, barrier_seconds=cost), workload)
    assert (found and found.value) == (value and pytest.approx(value))
