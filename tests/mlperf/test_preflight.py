"""What MLPerf's rules would not count is refused before it is run."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from command import feedrate
from test_rules import swept

from emulator.errors import SpecError
from emulator.plugins.mlperf.rules import broken
from emulator.record.out import read_result
from emulator.run.preflight import Rules


def test_a_run_that_would_not_count_is_refused_and_leaves_nothing(tiny, tmp_path):
    words = ("run", tiny, "-w", "unet3d-b200", "--loader", "direct", "-n", 2, "--epochs", 5,
             "--cache", "warm", "--mismatched-dataset", "--out", tmp_path / "out", "--rules", "v3.0",
             "--loops")  # fmt: skip
    one, six = feedrate(*words, 1), feedrate(*words, 6, "--closed")
    for done in (one, six):
        assert done.status == 2 and not (tmp_path / "out").exists()
        assert "NOT MET  dataset / memory of all client hosts" in done.out + done.err
    assert "rules of v3.0: change what is said" in one.one_line() and "NOT MET  runs: 1" in one.out + one.err
    assert "of v3.0 for CLOSED" in six.one_line()
    assert "NOT MET  runs" not in six.out + six.err and "data loader: direct" in six.out + six.err


def test_a_set_of_runs_is_one_result(tiny, tmp_path):
    done = feedrate(
        "run", tiny, "-w", "unet3d-tiny", "--loader", "direct", "-n", 2, "--steps", 3, "--cache", "warm",
        "--loops", 2, "--out", tmp_path / "out",
    )  # fmt: skip
    assert done.status == 0, done.err
    assert [point.ranks for point in read_result(tmp_path / "out").points] == [2, 2]


def test_a_checkpoint_that_would_not_count_is_refused_and_leaves_nothing(tmp_path):
    (tmp_path / "ai").mkdir()
    done = feedrate("checkpoint", tmp_path / "ai", "--scale", "1/1000", "-n", 1, "--rules", "v3.0",
                    "--closed", "--out", tmp_path / "out")  # fmt: skip
    assert done.status == 2 and "of v3.0 for CLOSED" in done.one_line()
    assert "NOT MET  sizes: scaled to 1/1000" in done.out + done.err
    assert not (tmp_path / "out").exists() and not list((tmp_path / "ai").iterdir())


def test_what_is_not_measured_yet_breaks_no_rule():
    result = swept("unet3d-b200")
    planned = replace(
        result, points=(replace(result.points[0], au=math.nan, samples_per_second=math.nan),) * 6
    )
    lines = broken(planned, "v3.0", closed=True)
    assert not [line for line in lines if "AU of every run" in line or "spread of the runs" in line]
    eight = broken(replace(result, points=result.points[:1] * 8), "v3.0", closed=False)
    assert any("warm-up run before them: 3 more runs" in line for line in eight)


@pytest.mark.parametrize(
    ("version", "closed", "said"), [("", True, "without --rules"), ("v9", False, "use one of v1.0")]
)
def test_rules_that_nobody_has(version, closed, said):
    with pytest.raises(SpecError, match=said):
        Rules(version, closed)
