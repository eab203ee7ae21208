"""`sweep --for fit`: few runs, placed where a fit needs them."""

from types import SimpleNamespace

import pytest
from command import feedrate
from hypothesis import given
from hypothesis import strategies as st

from emulator.sweep.ranks import activation_order, half_of
from emulator.sweep.schedule import ForFit


def run(schedule, limit):
    """The counts that are run on a storage that feeds `limit`, and which of them on half of the hosts."""
    points, half = [], []
    while (count := schedule.next_count(points)) is not None:
        half.append(schedule.on_half(points))
        rate = float(min(count, limit))
        points.append(
            SimpleNamespace(
                ranks=count, samples_per_second=rate, ideal_samples_per_second=count, starved=None
            )
        )
    return [found.ranks for found in points], half, schedule.verdict(points)


def test_one_below_the_limit_and_two_above():
    counts, half, verdict = run(ForFit(16), 8)
    assert counts == [16, 5, 10] and not any(half)
    assert verdict == "the runs suffice for feedrate fit"


def test_with_hosts_one_run_is_on_half_of_them():
    schedule = ForFit(16)
    schedule.hosts = 4
    counts, half, _ = run(schedule, 8)
    assert counts == [16, 5, 10, 8] and half == [False, False, False, True]


def test_without_a_limit_it_says_so():
    assert "no limit up to 16" in run(ForFit(16), 100)[2]


@given(st.integers(2, 500), st.floats(1, 400), st.integers(1, 9))
def test_the_counts_surround_the_limit(maximum, limit, hosts):
    schedule = ForFit(maximum)
    schedule.hosts = hosts
    counts, half, _ = run(schedule, limit)
    assert len(counts) == 3 + (hosts > 1) and sum(half) == (hosts > 1)
    assert all(1 <= count <= maximum for count in counts)
    if limit < 0.7 * maximum and limit > 2:
        assert counts[1] < limit < counts[2]


def test_half_of_the_hosts():
    hosts = ["a", "a", "b", "b", "c", "c"]
    assert half_of(hosts, activation_order(hosts)) == [0, 2, 1, 3]
    assert half_of(["a", "a"], [0, 1]) == [0, 1]


@pytest.mark.long
@pytest.mark.mpi
def test_the_command_runs_three_and_fit_knows_the_limit(tiny, tmp_path):
    done = feedrate(
        "sweep", tiny, "-w", "unet3d-tiny", "--set", "accelerator.step_seconds=0.1", "--loader", "direct",
        "--storage", "shaped:120MB/s", "--steps", 12, "-n", 6, "--for", "fit", "--out", tmp_path / "out",
    )  # fmt: skip
    assert done.status == 0, done.err
    assert "the runs suffice for feedrate fit" in done.out
    fitted = feedrate("fit", tmp_path / "out", "--out", tmp_path / "s.toml")
    assert fitted.status == 0 and "bandwidth: 1" in fitted.out, fitted.out + fitted.err
    assert "chooses the counts" in feedrate(
        "sweep", tiny, "-w", "unet3d-tiny", "--counts", "1", "--for", "fit"
    ).one_line()  # fmt: skip
