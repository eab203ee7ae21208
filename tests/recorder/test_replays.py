"""Three real trainings and their replays on a capped device. As root: make test-record."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks/own_job.py"


@pytest.mark.record
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["volumes", "images", "slices"])
def test_a_replay_is_as_fast_as_its_job(kind, tmp_path):
    """Within 5 % of samples/s, one process and two, whether storage or computing is the limit."""
    folder = tmp_path / kind
    command = [sys.executable, str(BENCHMARK), kind, str(folder)]
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, check=True)
    print(done.stdout)
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    assert len(rows) == 9
    for row in rows:
        for loader in ("torch", "direct"):
            assert abs(median(turn[loader] for turn in row["turns"])) <= 0.05, row
