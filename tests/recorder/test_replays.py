"""Training jobs in many styles and their replays, on a device of known rate and latency. make test-record."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks/own_job.py"
DISTRUSTED = {"unlike-job", "job-cpu"}


@pytest.mark.record
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("kind", "processes"),
    [
        *((kind, 1) for kind in ("volumes", "images", "slices", "npy", "turn", "hdf5", "threads", "mosaic")),
        *((kind, 1) for kind in ("nii", "parquet", "tars", "mds", "members", "waves", "zarr", "tokens")),
        *((kind, 2) for kind in ("volumes", "images", "slices", "npy", "hdf5")),
    ],
)
def test_a_replay_is_as_fast_as_its_job(kind, processes, tmp_path):
    """Within 5 % of samples/s, in memory and from storage, unless `record` refuses or distrusts the job."""
    words = [BENCHMARK, kind, tmp_path / kind, "--processes", processes, "--turns", 3]
    done = subprocess.run([sys.executable, *map(str, words)], text=True, stdout=subprocess.PIPE, check=True)
    print(done.stdout)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) == 3
    for row in rows:
        if not row["refused"] and not DISTRUSTED & set(row["flags"]):
            assert abs(median(row["torch"])) <= 0.05 and abs(median(row["direct"])) <= 0.05, row
