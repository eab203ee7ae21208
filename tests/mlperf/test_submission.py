"""Six real runs of 8 emulated accelerators as a submission: what MLPerf's checker says of it, whole."""

from __future__ import annotations

import re
import shutil

import pytest
from command import feedrate
from test_their_tools import PACKAGE, theirs

from emulator.plugins.mlperf.export import export_results
from emulator.plugins.mlperf.rule import CLOSED

pytestmark = [
    pytest.mark.mlperf,
    pytest.mark.skipif(PACKAGE != "mlpstorage_py", reason="MLPERF_STORAGE has no submission checker"),
]
TRIED = ("2.1.11", "2.1.17", "3.1.2", "3.3.2", "3.3.6", "3.6.3")
"""Rules of OPEN of which both sides have a verdict (test_matrix)."""
SETTINGS = ("loader.batch_size=1", "accelerator.step_batch_size=1", "accelerator.step_seconds=0.05")


@pytest.mark.timeout(900)
def test_what_their_checker_says_of_six_runs_of_eight_accelerators(tiny, tmp_path):
    done = feedrate(
        "sweep", tiny, "-w", "unet3d-b200", "--loader", "direct", "--counts", "8,8,8,8,8,8",
        "--epochs", 5,
        "--cache", "warm", "--mismatched-dataset", *(word for one in SETTINGS for word in ("--set", one)),
        "--out", tmp_path / "out", timeout=600,
    )  # fmt: skip
    assert done.status == 0, done.err
    (check,) = export_results([tmp_path / "out"], tmp_path / "exported")
    print("\n".join(check.lines))
    submitter = tmp_path / "tree" / "open" / "feedrate"
    shutil.copytree(tmp_path / "exported/open/feedrate/results", submitter / "results")
    (submitter / "systems").mkdir()
    shown = theirs(
        tmp_path, f"{PACKAGE}.submission_checker", "--input", tmp_path / "tree", "--skip-output-file"
    )
    said = {level: set(re.findall(rf"\[{level}\] \[([\d.]+) ", shown)) for level in ("ERROR", "WARNING")}
    ours = {
        number
        for rule in check.rules
        if rule.division != CLOSED and not rule.met
        for number in rule.number.split(", ")
    }
    assert {number for number in said["ERROR"] if number in TRIED} == ours & set(TRIED)
    assert said["ERROR"] >= {"3.1.2", "3.6.3"}, "a toy dataset, and other parameters than OPEN allows"
    # What is left is of a submitter's tree, which MLPerf's own programs write.
    assert said["ERROR"] - set(TRIED) == {"2.1.6", "2.1.8", "2.1.12", "2.1.14", "2.1.15", "2.1.16", "2.1.19"}
    assert said["WARNING"] == {"3.4.2"}, "it looks for df in a log of MLPerf's own program"
