"""The answer of `feedrate ask` in sentences."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from synthetic_results import SAMPLE_BYTES, knee, plain_sweep, point, result

from emulator.config.storage import StorageSpec
from emulator.config.workload import load_workload
from emulator.record.result import Bound, Knee
from emulator.sweep.answer import answer_lines
from emulator.sweep.ask import Answer
from emulator.sweep.asked_data import Question
from emulator.units import show_rate

NO_NUMBER = knee(None, None, "")
DEMAND = 7 / 0.636 * SAMPLE_BYTES
QUESTION = Question(
    place=Path("/mnt/ai"), workload=load_workload("unet3d-a100"), up_to=16, seconds=60.0,
    storage=StorageSpec(), out=Path("out"), keep=False, force=False, command=(),
)  # fmt: skip


def says(found: Knee, workload: str = "unet3d-a100") -> str:
    question = replace(QUESTION, workload=load_workload(workload))
    answer = Answer(storage=replace(plain_sweep(), knee=found), pytorch=None)
    return answer_lines(question, answer, cores=2, hosts=1)[0].says


@pytest.mark.parametrize(
    ("found", "part"),
    [
        (knee(1.0, None, ""), "feeds 1 A100 (3D"),
        (knee(1.996, None, ""), "feeds 2 A100s (3D"),
        (replace(knee(1.2, None, ""), interval=(0.9, 1.4)), "KiTS19), 95 % sure of at most 1."),
        (replace(knee(2.9, None, ""), interval=(2.1, 3.4)), "95 % sure of 2 to 3."),
        (replace(knee(2.9, None, ""), interval=(2.1, 2.95)), "95 % sure of 2."),
        (replace(NO_NUMBER, kind="below"), "does not feed 1 A100 (3D"),
        (replace(NO_NUMBER, kind="at-least", fed=1), "feeds at least 1 A100 (3D"),
        (replace(NO_NUMBER, kind="at-least", fed=None), "feeds 1 A100 (3D U-Net on KiTS19) is not known"),
        (replace(NO_NUMBER, kind="not-identifiable", fed=4, starved=9), "at least 4 A100s (3D"),
        (replace(NO_NUMBER, kind="not-identifiable", fed=None, starved=9), "feeds fewer than 9 A100s (3D"),
    ],
)
def test_accelerators_are_counted_in_the_right_number(found, part):
    assert part in says(found)


@pytest.mark.parametrize(
    ("ranks", "rate", "part"),
    [
        (1, 0.02, "does not feed 1 A100 (3D"),
        (2, 0.02, "feeds fewer than 2 A100s (3D"),
        (2, 2.0, "feeds at least 2 A100s (3D"),
    ],
)
def test_runs_of_one_count_have_an_answer_without_a_knee(ranks, rate, part):
    storage = replace(plain_sweep(), points=(point(ranks, rate * DEMAND),), knee=None)
    answer = Answer(storage=storage, pytorch=None)
    assert part in answer_lines(QUESTION, answer, cores=2, hosts=1)[0].says


def test_storage_that_fed_every_count_has_no_limit():
    """Runs at 92 % of ideal are fed, though the storage is their limit."""
    full = replace(point(2, 2 * DEMAND), x_ideal=0.92, bound=Bound(kind="bandwidth", evidence=()))
    answer = Answer(storage=replace(plain_sweep(), points=(full,), knee=None), pytorch=None)
    line = answer_lines(QUESTION, answer, cores=2, hosts=1)[0]
    assert "feeds at least 2 A100s" in line.says and not line.limit


def test_the_storages_limit_is_that_of_a_point_that_it_starved():
    """Eight ranks read more, but the client's CPU starved those."""
    points = [
        replace(point(ranks, rate * DEMAND), x_ideal=0.6, bound=Bound(kind=kind, evidence=()))
        for ranks, rate, kind in ((4, 2.4, "bandwidth"), (8, 4.8, "client-cpu"))
    ]
    answer = Answer(storage=replace(plain_sweep(), points=tuple(points), knee=None), pytorch=None)
    limit = answer_lines(QUESTION, answer, cores=2, hosts=1)[0].limit
    assert limit == f"storage bandwidth, {show_rate(points[0].bytes_per_second)}"


def test_what_trainings_were_fed_the_storage_feeds():
    unsure = replace(plain_sweep(), knee=replace(NO_NUMBER, kind="not-identifiable", fed=None, starved=9))
    trained = replace(plain_sweep(), points=tuple(point(n, 3.5 * DEMAND) for n in (3, 4)))
    answer = Answer(storage=unsure, pytorch=trained)
    assert "feeds at least 3 A100s" in answer_lines(QUESTION, answer, cores=2, hosts=1)[0].says


@pytest.mark.parametrize(
    ("ranks", "rate", "part"),
    [
        ((3,), 3.0, "feeds 3 of them."),
        ((3, 6), 3.5, "feeds 3 to 5 of them."),
        ((4,), 1.0, "feeds fewer than 4 of"),
    ],
)
def test_trainings_are_fed_up_to_the_count_below_the_one_that_starved(ranks, rate, part):
    trained = result([point(count, rate * DEMAND) for count in ranks])
    lines = answer_lines(QUESTION, Answer(storage=plain_sweep(), pytorch=trained), cores=2, hosts=1)
    assert f"PyTorch on this client {part}" in lines[1].says


@pytest.mark.parametrize(
    ("workload", "one", "two"),
    [
        ("unet3d-v100", "1 V100 32 GB (", "2 V100s 32 GB ("),
        ("unet3d-tiny", "1 accelerator in miniature (", "2 accelerators in miniature ("),
    ],
)
def test_the_plural_comes_before_what_follows_the_noun(workload, one, two):
    assert one in says(knee(1.0, None, ""), workload) and two in says(knee(2.0, None, ""), workload)


def test_cores_that_are_missing_follow_from_the_smallest_count_that_starved():
    """One run of 4 on 2 cores, not fed: it said that 6 more would feed 4, as if 1 had starved."""
    starved = replace(point(4, 0.6 * 4 * DEMAND), bound=Bound(kind="client-cpu", evidence=()))
    starved = replace(starved, hosts=tuple(replace(host, cpu_seconds=1.0) for host in starved.hosts))
    answer = Answer(storage=plain_sweep(), pytorch=result([starved]))
    lines = answer_lines(replace(QUESTION, up_to=8), answer, cores=2, hosts=1)
    assert lines[-1].says == "To feed 8: about 2 cores more for PyTorch."


def test_cores_that_other_programs_use_are_not_called_the_clients_own():
    starved = replace(point(4, 0.6 * 4 * DEMAND), bound=Bound(kind="client-cpu", evidence=()))
    (host,) = starved.hosts
    busy = replace(host, cores=2, busy_share=1.0, cpu_seconds=0.75 * starved.seconds)
    answer = Answer(storage=plain_sweep(), pytorch=result([replace(starved, hosts=(busy,))]))
    line = answer_lines(QUESTION, answer, cores=2, hosts=1)[1]
    assert line.limit.startswith("its 2 cores, 1.2") and line.limit.endswith("used by other programs")


@pytest.mark.parametrize(
    ("kind", "limit", "missing"),
    [
        ("bandwidth", r"storage bandwidth, .*[GM]B/s$", r"^To feed 16: .* GB/s more\.$"),
        ("iops", r"storage IOPS, 400 requests/s of 4 MB$", r"^To feed 16: 5,409 requests/s more"),
        (
            "latency",
            r"storage latency, 10 ms a request$",
            r"^To feed 16: requests that take 0.689 ms instead of 10 ms",
        ),
        (
            "metadata",
            r"storage metadata, 500 ms to open a sample$",
            r"^To feed 16: .* more files opened per second\.$",
        ),
    ],
)
def test_what_is_missing_is_in_the_unit_of_the_limit(kind, limit, missing):
    """Four servers of 10 ms without a cap: the advice was 537 MB/s more."""
    rate, size = 1.6e9, 4_000_000
    requests = 4000
    starved = replace(
        point(4, rate), x_ideal=0.3, bytes_per_second=rate, bytes=requests * size, samples=100,
        read_latency={"10000": requests}, read_seconds=requests * 0.010, open_seconds=50.0,
        bound=Bound(kind=kind, evidence=()),
    )  # fmt: skip
    answer = Answer(storage=replace(plain_sweep(), points=(starved,), knee=None), pytorch=None)
    lines = answer_lines(QUESTION, answer, cores=2, hosts=1)
    assert re.search(limit, lines[0].limit) and re.search(missing, lines[-1].says)
