"""The answers of `feedrate ask`: for the storage, and for PyTorch on its clients."""

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from synthetic_results import SAMPLE_BYTES, knee, plain_sweep, point, result

from emulator.analysis.answer import Answer, answer_of
from emulator.analysis.search import KneeSearch
from emulator.config.storage import StorageSpec
from emulator.config.workload import load_workload
from emulator.record.result import Bound, Knee
from emulator.sweep.adaptive import Adaptive
from emulator.sweep.answer import Client, pytorch_answer
from emulator.sweep.ask import as_asked
from emulator.sweep.asked_data import Question
from emulator.units import show_rate

NO_NUMBER = knee(None, None)
DEMAND = 7 / 0.636 * SAMPLE_BYTES
QUESTION = Question(
    place=Path("/tmp"), workload=load_workload("unet3d-a100"), up_to=16, seconds=60.0,
    storage=StorageSpec(), out=Path("out"), keep=False, force=False, command=(),
)  # fmt: skip
CLIENT = Client(cores=2, hosts=1)


def answer(found: Knee | None, *points, trained=None) -> Answer:
    storage = replace(plain_sweep(), knee=found)
    storage = replace(storage, points=points) if points else storage
    return answer_of(as_asked(storage, QUESTION, trained))


@pytest.mark.parametrize(
    ("found", "part"),
    [
        (replace(knee(1.2, None), interval=(0.9, 1.4)), "/tmp feeds 1 A100 (between 0.9 and 1.4, 95 % sure)"),
        (replace(knee(2.9, None), interval=(2.1, 3.4)), "/tmp feeds 2 A100s (between 2.1 and 3.4"),
        (replace(knee(2.99, None), interval=(2.1, 3.4)), "/tmp feeds 3 A100s (between"),
        (replace(NO_NUMBER, kind="below", starved=1), "does not feed 1 A100"),
        (replace(NO_NUMBER, kind="at-least", fed=1), "feeds at least 1 A100"),
        (replace(NO_NUMBER, kind="at-least", fed=None), "Whether it feeds 1 A100 is not known"),
        (replace(NO_NUMBER, kind="not-identifiable", fed=4, starved=9), "at least 4 A100s and fewer than 9"),
        (replace(NO_NUMBER, kind="not-identifiable", fed=None, starved=9), "feeds fewer than 9 A100s"),
    ],
)
def test_each_kind_of_knee_has_its_sentence(found, part):
    assert part in answer(found).sentence


@pytest.mark.parametrize(
    ("ranks", "rate", "part"),
    [
        (1, 0.02, "feeds 0.02 of an A100"),
        (5, 0.85, "feeds at least 0.85 of an A100"),
        (2, 1.1, "feeds fewer than 2 A100s"),
        (2, 2.0, "feeds at least 2 A100s"),
    ],
)
def test_runs_of_one_count_have_an_answer_without_a_knee(ranks, rate, part):
    starved = replace(point(ranks, rate * DEMAND), bound=Bound(kind="bandwidth", evidence=()))
    assert part in answer(None, starved).sentence


def test_storage_that_fed_every_count_has_no_limit():
    """Runs at 92 % of ideal are fed, though the storage is their limit."""
    full = replace(point(2, 2 * DEMAND), x_ideal=0.92, bound=Bound(kind="bandwidth", evidence=()))
    found = answer(None, full)
    assert "feeds at least 2 A100s" in found.sentence and not found.limit and not found.advice


def test_the_storages_limit_is_that_of_a_point_that_it_starved():
    """Eight ranks read more, but the client's CPU starved those."""
    points = [
        replace(point(ranks, rate * DEMAND), x_ideal=0.6, bound=Bound(kind=kind, evidence=()))
        for ranks, rate, kind in ((4, 2.4, "bandwidth"), (8, 4.8, "client-cpu"))
    ]
    assert answer(None, *points).limit == f"storage bandwidth, {show_rate(points[0].bytes_per_second)}"


def test_what_trainings_were_fed_the_storage_feeds():
    unsure = replace(NO_NUMBER, kind="not-identifiable", fed=None, starved=9)
    trained = replace(plain_sweep(), points=tuple(point(n, 3.5 * DEMAND) for n in (3, 4)))
    assert "feeds at least 3 A100s" in answer(unsure, trained=trained).sentence


@pytest.mark.parametrize(
    ("ranks", "rate", "part"),
    [
        ((3,), 3.0, "feeds at least 3 A100s."),
        ((3, 4), 3.5, "feeds 3 A100s."),
        ((3, 6), 3.5, "feeds 3 to 5 A100s."),
        ((4,), 1.1, "feeds fewer than 4 A100s."),
        ((1,), 0.3, "feeds 0.3 of an A100."),
    ],
)
def test_trainings_are_fed_up_to_the_count_below_the_one_that_starved(ranks, rate, part):
    trained = result([point(count, rate * DEMAND) for count in ranks])
    found = pytorch_answer(trained, 16, CLIENT)
    assert found.sentence == f"PyTorch on this client {part}"


def test_cores_that_are_missing_follow_from_the_smallest_count_that_starved():
    """One run of 4 on 2 cores, not fed: it said that 6 more would feed 4, as if 1 had starved."""
    starved = replace(point(4, 0.6 * 4 * DEMAND), bound=Bound(kind="client-cpu", evidence=()))
    starved = replace(starved, hosts=tuple(replace(host, cpu_seconds=1.0) for host in starved.hosts))
    found = pytorch_answer(result([starved]), 8, CLIENT)
    assert found.advice == "To feed 8: about 2 cores more for PyTorch."


def test_cores_that_other_programs_use_are_not_called_the_clients_own():
    starved = replace(point(4, 0.6 * 4 * DEMAND), bound=Bound(kind="client-cpu", evidence=()))
    (host,) = starved.hosts
    busy = replace(host, cores=2, busy_share=1.0, cpu_seconds=0.75 * starved.seconds)
    limit = pytorch_answer(result([replace(starved, hosts=(busy,))]), 16, CLIENT).limit
    assert limit.startswith("its 2 cores, 1.2") and limit.endswith("used by other programs")


@pytest.mark.parametrize(
    ("kind", "limit", "missing"),
    [
        ("bandwidth", r"storage bandwidth, .*[GM]B/s$", r"^To feed 16: .* GB/s more\.$"),
        ("iops", r"storage IOPS, 400 requests/s of 4 MB$", r"^To feed 16: 5,4\d\d requests/s more"),
        (
            "latency",
            r"storage latency, 10 ms a request$",
            r"^To feed 16: requests that take 0.6\d\d ms instead of 10 ms",
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
        point(4, rate), x_ideal=0.3, bytes_per_second=rate, bytes=requests * size, samples=109,
        read_latency={"10000": requests}, read_seconds=requests * 0.010, open_seconds=54.5,
        bound=Bound(kind=kind, evidence=()),
    )  # fmt: skip
    found = answer(None, starved)
    assert re.search(limit, found.limit) and re.search(missing, found.advice)


def test_no_run_begins_that_would_not_end_in_time():
    """`--within 60s` took 72 s; another time it ended after 36 s, since a run like the first did not fit."""
    clock = SimpleNamespace(time=0.0)
    clock.now = lambda: clock.time
    schedule = Adaptive(KneeSearch(maximum=10, threshold=0.9), clock, 60.0)
    schedule.cost = lambda ranks, points: 3.0 * ranks
    starved = replace(point(10, 2.0 * DEMAND), bound=Bound(kind="bandwidth", evidence=()))
    clock.time = 50.0
    assert schedule.next_count((starved,)) in (1, 2, 3), "10 s are left"
    clock.time = 58.0
    assert schedule.next_count((starved,)) is None
