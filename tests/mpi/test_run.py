"""`feedrate run` with real ranks: what is written, what adds up, what costs nothing."""

import json
from pathlib import Path

import numpy as np
import pytest
from command import feedrate
from synthetic_results import plain_sweep

from emulator.analysis.point import point_of
from emulator.analysis.throughput import durations
from emulator.config.workload import load_workload
from emulator.record.out import read_result, write_result
from emulator.record.steps import read_steps

pytestmark = pytest.mark.mpi


@pytest.fixture(scope="module", params=[pytest.param("torch", marks=pytest.mark.long), "direct"])
def three_ranks(request, tiny, tmp_path_factory) -> tuple[Path, str]:
    """OUT of a run of three ranks, two epochs."""
    out = tmp_path_factory.mktemp("run") / "out"
    words = ("run", tiny, "--workload", "unet3d-tiny", "-n", 3, "--loader", request.param)
    done = feedrate(*words, "--out", out, "--set", "training.sync=step")
    assert done.status == 0, done.err
    return out, done.out


@pytest.mark.alone  # on a busy machine 16 steps are too few for an AU
def test_the_result_tells_everything(three_ranks, tiny):
    out, shown = three_ranks
    result = read_result(out)
    assert (result.kind, result.status, len(result.points)) == ("run", "complete", 1)
    point = result.points[0]
    assert (point.ranks, point.epochs, point.steps, point.left_out) == (3, 2, 16, 0)
    assert point.samples == 16 * 3 * 4 == 192
    files = sum(path.stat().st_size for path in tiny.rglob("*.npz"))
    assert point.bytes == 2 * files, "every byte of every sample, in both epochs"
    assert 0 < point.au <= 1.05
    assert point.hosts[0].ranks == 3
    assert result.environment["ranks_started"] == 3
    assert result.storage["shaped_rate"] is None
    assert "AU" in shown and str(out) in shown
    assert sorted(path.name for path in out.iterdir()) == ["run.json", "steps.parquet"]
    assert json.loads((out / "run.json").read_text())["schema"] == 1


@pytest.mark.alone  # not made for it a second time
def test_every_second_of_every_rank_is_accounted_for(three_ranks):
    rows = read_steps(three_ranks[0])
    for rank in range(3):
        mine = rows[rows["rank"] == rank]
        ends = mine["begin"] + durations(mine)
        assert np.allclose(mine["begin"][1:], ends[:-1], rtol=1e-6, atol=1e-6)
        assert durations(mine).sum() == pytest.approx(ends[-1], rel=0.001)


@pytest.mark.alone  # not made for it a second time
def test_figures_are_those_of_the_step_log(three_ranks):
    """Of all ranks' rows in one place; tests/analysis has the formulas."""
    result, rows = read_result(three_ranks[0]), read_steps(three_ranks[0])
    (point,), workload = result.points, load_workload("unet3d-tiny", ["training.sync=step"])
    found = point_of(workload, result.dataset["samples"], 3, rows)
    for name in (
        "samples_per_second",
        "bytes_per_second",
        "x_ideal",
        "x_ideal_first",
        "wait_share",
        "seconds",
    ):
        assert getattr(point, name) == pytest.approx(getattr(found, name)), name


def test_the_users_own_mpirun_gives_the_same_figures(tiny, tmp_path):
    words = ("run", tiny, "--workload", "unet3d-tiny", "--loader", "direct", "--epochs", 1)
    joined = feedrate(*words, "--out", tmp_path / "mpirun", mpirun=8)
    forked = feedrate(*words, "-n", 8, "--out", tmp_path / "forked")
    assert joined.status == forked.status == 0, joined.err + forked.err
    results = [read_result(tmp_path / name) for name in ("mpirun", "forked")]
    points = [result.points[0] for result in results]
    assert points[0].ranks == 8 and results[0].environment["mpi"] and not results[1].environment["mpi"]
    for name in ("ranks", "samples", "bytes", "steps", "ideal_samples_per_second"):
        assert getattr(points[0], name) == getattr(points[1], name), name


@pytest.mark.alone
def test_waiting_costs_no_cpu(tiny, tmp_path):
    """Compute and barriers sleep: under 3 % of ranks x wall, measured by the ranks themselves."""
    out = tmp_path / "out"
    words = ("run", tiny, "-w", "unet3d-tiny", "-n", 2, "--loader", "direct", "--steps", 8, "--cache", "warm")
    settings = ("--set", "accelerator.step_seconds=0.5", "--set", "training.sync=step")
    done = feedrate(*words, *settings, "--out", out)
    assert done.status == 0, done.err
    point = read_result(out).points[0]
    assert point.hosts[0].cpu_seconds < 0.03 * 2 * point.seconds
    assert point.au > 0.97


def test_a_result_is_never_overwritten_without_force(tiny, tmp_path):
    words = ("run", tiny, "--workload", "unet3d-tiny", "-n", 1, "--loader", "direct", "--steps", 2)
    (tmp_path / "out").mkdir()
    write_result(tmp_path / "out", plain_sweep())
    again = feedrate(*words, "--out", tmp_path / "out")
    assert again.status == 2
    assert "is not empty" in again.one_line() and "--force" in again.one_line()
    assert read_result(tmp_path / "out").kind == "sweep"
    assert feedrate(*words, "--out", tmp_path / "out", "--force").status == 0
    assert read_result(tmp_path / "out").command.count("--out") == 1


def test_a_dry_run_tells_the_plan_and_touches_nothing(tiny, tmp_path):
    done = feedrate(
        "sweep", tiny, "--workload", "unet3d-tiny", "--counts", "1,4", "--out", tmp_path / "out", "--dry-run"
    )
    assert done.status == 0, done.err
    assert not (tmp_path / "out").exists()
    for word in ("one rank asks", "steps", "expected: about 2 runs"):
        assert word in done.out
