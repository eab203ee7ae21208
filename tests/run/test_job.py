"""The job of a run: how long a point is when nobody says it, and a dataset that is not the workload's."""

from types import SimpleNamespace

import numpy as np
import pytest
from command import feedrate

from emulator.analysis.flags import LONG
from emulator.config.storage import StorageSpec
from emulator.config.workload import load_workload
from emulator.dataset.manifest import Manifest
from emulator.record.out import read_result
from emulator.run.job import POINT_SECONDS, TrainingJob, enough_steps, mismatch


def job(workload, **more):
    given = {"epochs": None, "steps": None, **more}
    return TrainingJob(
        kind="run", dataset=None, workload=workload, loader="direct", storage=StorageSpec(), out=None,
        command=(), **given,
    )  # fmt: skip


def test_many_ranks_take_half_a_minute_and_few_ranks_as_many_samples():
    unet = load_workload("unet3d-a100")
    step = unet.accelerator.step_seconds
    assert enough_steps(unet, 512, 0.05) * step == pytest.approx(POINT_SECONDS, rel=0.05)
    alone = enough_steps(unet, 1, 0.05)
    sizes = np.random.default_rng(0).normal(unet.sample.bytes_mean, unet.sample.bytes_sd, (400, alone * 7))
    off = sizes.mean(axis=1) / unet.sample.bytes_mean - 1
    assert np.quantile(np.abs(off), 0.95) == pytest.approx(0.025, rel=0.1), "half of the precision"
    assert enough_steps(unet, 1, 0.01) > 20 * alone


def test_never_so_short_that_read_ahead_shows_nor_longer_than_the_epochs():
    slow = load_workload("unet3d-a100", ["accelerator.step_seconds=5", "loader.prefetch=30"])
    assert enough_steps(slow, 512, 0.05) == LONG * 30
    small = SimpleNamespace(samples=70, samples_per_file=1)
    assert job(load_workload("unet3d-a100")).rank_plan(small, 0, 1).length == 5 * 10


def test_who_says_how_long_is_obeyed():
    dataset = SimpleNamespace(samples=70_000, samples_per_file=1)
    unet = load_workload("unet3d-a100")
    assert job(unet, epochs=2).rank_plan(dataset, 0, 10).length == 2000
    assert job(unet, steps=3).rank_plan(dataset, 0, 10).length == 3
    assert job(unet).rank_plan(dataset, 0, 10).length == enough_steps(unet, 10, 0.05) < 60


TINY = load_workload("unet3d-tiny")


def manifest(files: int = 100, size: int = 1_000_000, **changes: object) -> Manifest:
    names = [f"sample_{number}" for number in range(files)]
    facts = {"format": "npz", "names": names, "sizes": np.full(files, size)}
    return Manifest(**{**facts, **changes})


@pytest.mark.parametrize(
    ("dataset", "difference"),
    [
        (manifest(), ""),
        (manifest(size=1_150_000), ""),
        (manifest(files=1, size=2_200_000), ""),  # one sample need not be an average one
        (manifest(size=146_600_628), "its mean sample has 147 MB, that of the workload unet3d-tiny 1 MB"),
        (manifest(size=600_000), "its mean sample has 600 kB"),
        (manifest(format="hdf5"), "its files are hdf5, but the workload unet3d-tiny reads npz"),
        (manifest(size=10_000_000, samples_per_file=10), "it has many samples per file"),
    ],
)
def test_what_makes_a_dataset_another_one(dataset, difference):
    assert mismatch(TINY, dataset).startswith(difference)
    assert bool(mismatch(TINY, dataset)) == bool(difference)


def test_it_ends_the_command_before_anything_runs(tiny, tmp_path):
    for verb in (("run",), ("run", "--dry-run"), ("sweep",)):
        done = feedrate(*verb, tiny, "--workload", "unet3d-a100", "--out", tmp_path / "out")
        assert done.status == 2
        assert "--mismatched-dataset" in done.one_line()
        assert not (tmp_path / "out").exists()


@pytest.mark.mpi
def test_a_result_of_it_says_so(tiny, tmp_path):
    settings = ("--set", "sample.bytes_mean=9MB", "--loader", "direct", "--steps", 2, "--mismatched-dataset")
    done = feedrate("run", tiny, "--workload", "unet3d-tiny", *settings, "--out", tmp_path / "out")
    assert done.status == 0, done.err
    assert "mismatched-dataset" in [flag.name for flag in read_result(tmp_path / "out").flags]
    assert "not the workload's" in done.out
