"""`feedrate sweep` without counts: it finds a known knee, keeps to its limits, and goes on after a cut."""

import signal
import time

import pytest
from command import ANSWERED, feedrate, started

from emulator.record.out import read_result
from emulator.record.steps import read_steps

pytestmark = [pytest.mark.mpi, pytest.mark.alone]


def words(tiny, *more):
    job = ("--workload", "unet3d-tiny", "--loader", "direct", "-n", "8", "--steps", "16")
    return ("sweep", tiny, *job, "--storage", "shaped:200MB/s", *more)


def test_it_finds_the_knee_and_says_why_it_stopped(tiny, tmp_path):
    out = tmp_path / "out"
    done = feedrate(*words(tiny, "--max-runs", "6", "--out", out), timeout=150)
    assert done.status in ANSWERED, done.err
    result = read_result(out)
    if result.knee.kind == "at-least":
        pytest.skip("others keep the machine's cores busy: the client was the limit")
    assert "done: " in done.out and "knee between" in done.out
    assert 5 <= len(result.points) <= 6
    low, high = result.knee.interval
    truth = 200e6 / (80 * result.dataset["bytes"] / result.dataset["files"]) / 0.9
    assert low * 0.9 < truth < high * 1.1
    assert all(point.bound is not None for point in result.points)


@pytest.mark.long
def test_a_budget_ends_it(tiny, tmp_path):
    done = feedrate(*words(tiny, "--budget", "3s", "--out", tmp_path / "out"))
    assert done.status in ANSWERED, done.err
    assert "the budget of 3 s is used up" in done.out
    assert len(read_result(tmp_path / "out").points) < 5


def test_a_run_that_would_take_longer_than_the_budget_is_stopped(tiny, tmp_path):
    out = tmp_path / "out"
    job = ("--budget", "3s", "--steps", "2000", "--set", "training.sync='step'")
    done = feedrate(*words(tiny, *job, "--out", out))
    assert done.status in ANSWERED, done.err
    assert "of 2000 steps: the time is used up" in done.out + done.err
    (point,) = read_result(out).points
    assert 0 < point.seconds < 6, "2000 steps of 50 ms are 100 s"
    rows = read_steps(out)
    assert len(rows) == point.ranks * point.steps, "all ranks stop at the same step"
    again = feedrate("sweep", "--resume", out)
    assert again.status in ANSWERED, again.err


@pytest.mark.long
def test_an_interrupted_sweep_goes_on_where_it_was(tiny, tmp_path):
    out = tmp_path / "out"
    fixed = words(tiny, "--counts", "1,2,3,4,5,6")
    process = started(*fixed, "--out", out)
    for line in process.stdout:
        if line.startswith("point 3"):
            break
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode != 0
    cut = read_result(out)
    assert cut.status == "incomplete" and 2 <= len(cut.points) < 6

    other = feedrate(*fixed, "--set", "training.shuffle_seed=9", "--resume", out)
    assert other.status == 2
    assert "of another workload" in other.one_line()

    done = feedrate(*fixed, "--resume", out)
    assert done.status in ANSWERED, done.err
    result, rows = read_result(out), read_steps(out)
    assert result.status == "complete"
    assert [point.ranks for point in result.points] == [1, 2, 3, 4, 5, 6]
    kept = [point.seconds for point in cut.points]
    assert [point.seconds for point in result.points[: len(kept)]] == kept
    assert [(rows["point"] == number).sum() for number in range(6)] == [16 * n for n in range(1, 7)]
