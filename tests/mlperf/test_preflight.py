"""What MLPerf's rules would not count is refused before it is run."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from artefacts import Run
from command import feedrate
from test_rules import MEMORY, swept

from emulator.errors import SpecError
from emulator.plugins.mlperf.rules import broken
from emulator.plugins.page.report import report
from emulator.record.out import read_result, write_result
from emulator.record.result import RunResult
from emulator.run.preflight import Rules


def test_a_run_that_would_not_count_is_refused_and_leaves_nothing(tiny, tmp_path):
    words = ("run", tiny, "-w", "unet3d-b200", "--loader", "direct", "-n", 2, "--epochs", 5,
             "--cache", "warm", "--mismatched-dataset", "--out", tmp_path / "out", "--rules", "v3.0",
             "--loops")  # fmt: skip
    six, dry = feedrate(*words, 6, "--closed"), feedrate(*words, 1, "--dry-run")
    for done in (six, dry):
        assert done.status == 2 and not (tmp_path / "out").exists()
        assert "NOT MET  files of the dataset" in done.out + done.err
    assert "change what they list" in dry.one_line() and "NOT MET  runs: 1" in dry.out + dry.err
    assert "of v3.0 for CLOSED" in six.one_line()
    assert "NOT MET  runs" not in six.out + six.err and "loader direct instead" in six.out + six.err


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
    lines = broken([planned], "v3.0", closed=True)
    assert not [line for line in lines if "AU of every run" in line or "spread of the runs" in line]
    eight = broken([replace(result, points=result.points[:1] * 8)], "v3.0", closed=False)
    assert any("runs: 8" in line for line in eight)


@pytest.mark.parametrize(
    ("version", "closed", "said"), [("", True, "without --rules"), ("v9", False, "use one of v3.0")]
)
def test_rules_that_nobody_has(version, closed, said):
    with pytest.raises(SpecError, match=said):
        Rules(version, closed)


def alone(number: int, host: str = "a") -> RunResult:
    """One of six runs that were made as results of their own, each with a shuffle seed."""
    whole = swept("unet3d-b200")
    training = {**whole.workload["training"], "shuffle_seed": number}
    point = whole.points[0]
    return replace(
        whole,
        kind="run",
        created=f"2026-11-25T10:{number:02d}:00+00:00",
        workload={**whole.workload, "training": training},
        environment={**whole.environment, "memory_of_hosts": {host: MEMORY}},
        points=(replace(point, hosts=(replace(point.hosts[0], host=host),)),),
    )


def test_a_report_says_which_results_are_a_valid_set(tmp_path):
    for number in range(6):
        (tmp_path / "results" / f"run{number}").mkdir(parents=True)
        write_result(tmp_path / "results" / f"run{number}", alone(number))
    done = feedrate("report", *sorted((tmp_path / "results").iterdir()), "--rules", "v3.0")
    assert done.status == 0, done.err
    sets = done.out.partition("Sets of runs by the rules of v3.0")[2]
    assert " ".join(f"run{number}," for number in range(5)) in sets and "no rule is broken" in sets


def test_sets_are_of_one_dataset_and_imports_are_sets_of_their_own(tmp_path):
    for number, place in enumerate(("/mnt/one", "/mnt/two")):
        own = alone(number)
        (tmp_path / "results" / f"run{number}").mkdir(parents=True)
        write_result(
            tmp_path / "results" / f"run{number}", replace(own, dataset={**own.dataset, "path": place})
        )
    for system in ("A", "B"):
        Run().write(tmp_path / f"in/{system}/results/sys/training/unet3d/run/20260101_000000", "v3.0")
    assert feedrate("import", tmp_path / "in", "--out", tmp_path / "results").status == 0
    first, *others = (run.parent for run in sorted((tmp_path / "results").glob("*/run.json")))
    found = report(first, others, rules="v3.0").tables[-1]
    assert {row[1] for row in found.rows} == {"run0", "run1", "A-sys-unet3d-h100", "B-sys-unet3d-h100"}


def test_results_of_other_hosts_are_no_set():
    lines = broken([*(alone(number) for number in range(5)), alone(5, host="b")], "v3.0", closed=True)
    assert lines == [
        "2 accelerators: NOT MET  one set: hosts: a and b "
        "(required: the same hosts, version and dataset in every run; open and closed)"
    ]
