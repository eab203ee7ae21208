from __future__ import annotations

import pytest
from points import host, point

from emulator.analysis.flags import point_flags, short_run, small_dataset, usable
from emulator.config.workload import load_workload
from emulator.record.result import Flag


def test_a_clean_point_raises_nothing():
    assert point_flags(point(4, 0.99, resident_share=0.001)) == ()


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("overshoot", {"overshoot_p99": 0.05}),
        ("steal", {"hosts": (host("a"), host("b", steal_share=0.1))}),
        ("runqueue", {"hosts": (host("a", runqueue=12.0),)}),
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
    (flag,) = point_flags(point(4, 0.9, hosts=(host("c9", runqueue=12.0),)))
    assert "12.0 threads wanted the 8 cores of c9" in flag.sentence


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
    assert short_run(point(4, 0.9, steps=10, wait_share=0.1), ahead) is None
    buffer = f"access.shuffle_buffer={3 * ahead.loader.batch_size}"
    shuffled = load_workload("unet3d-tiny", ["loader.prefetch=2", "access.pattern=sequential", buffer])
    flag = short_run(point(4, 0.9, steps=10, wait_share=0.1), shuffled)
    assert flag is not None and flag.threshold == 25
    assert "5 batches of read-ahead" in flag.sentence


def test_a_single_repeated_request_is_flagged():
    (flag,) = point_flags(point(4, 0.9, read_retries={"busy": 2, "cut": 1}, read_latency={"10": 300}))
    assert (flag.name, flag.value, flag.threshold) == ("retries", 0.01, 0.0)
    assert "3 requests for 300 reads had to be repeated (busy 2, cut 1)" in flag.sentence


@pytest.mark.parametrize(
    ("name", "value", "left"),
    [("page-cache", 0.02, 3), ("page-cache", 0.06, 2), ("steal", 0.2, 3), ("runqueue", 9.0, 3)],
)
def test_flags_invalidate_only_where_the_throughput_is_not_the_storages(name, value, left):
    flag = Flag(name=name, value=value, threshold=0.01, sentence="...")
    points = [point(1, 1.0), point(2, 0.9, flags=(flag,)), point(4, 0.5)]
    assert len(usable(points)) == left
    assert usable(points[1:]) == points[1:], "two process counts at least"
