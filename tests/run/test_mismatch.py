"""A dataset that is not the workload's ends the command, or is named in the result."""

import numpy as np
import pytest
from command import feedrate

from emulator.config.workload import load_workload
from emulator.dataset.manifest import Manifest
from emulator.record.out import read_result
from emulator.run.job import mismatch

TINY = load_workload("unet3d-tiny")


def manifest(files: int = 100, size: int = 1_000_000, **changes: object) -> Manifest:
    names = [f"sample_{number}" for number in range(files)]
    facts = {"format": "npz", "recipe": "tiny", "seed": 1, "names": names, "sizes": np.full(files, size)}
    return Manifest(**{**facts, **changes})


@pytest.mark.parametrize(
    ("dataset", "difference"),
    [
        (manifest(), ""),
        (manifest(size=1_150_000), ""),
        (manifest(files=1, size=2_200_000), ""),  # one sample need not be an average one
        (manifest(size=146_600_628), "its mean sample has 147 MB, that of the workload unet3d-tiny 1 MB"),
        (manifest(size=600_000), "its mean sample has 600 kB"),
        (manifest(format="hdf5"), "its files are hdf5, the workload unet3d-tiny reads npz"),
        (manifest(size=10_000_000, samples_per_file=10), "it has many samples a file"),
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
