"""How long a point is when nobody says it."""

from types import SimpleNamespace

import numpy as np
import pytest

from emulator.analysis.flags import LONG
from emulator.config.storage import StorageSpec
from emulator.config.workload import load_workload
from emulator.run.job import POINT_SECONDS, TrainingJob, enough_steps


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
