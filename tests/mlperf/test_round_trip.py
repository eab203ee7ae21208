"""Real runs of nine formats, exported, read by MLPerf's reportgen, imported again: the same figures."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from command import feedrate
from test_their_tools import PACKAGE, reportgen

from emulator.plugins.mlperf.export import export_result
from emulator.plugins.mlperf.results import import_folder, results_of
from emulator.plugins.mlperf.tree import find_runs
from emulator.record.out import read_result

pytestmark = [
    pytest.mark.mlperf,
    pytest.mark.skipif(not PACKAGE, reason="MLPERF_STORAGE is no checkout of mlcommons/storage"),
]
FORMATS = ("npz", "npy", "raw", "bytes", "nii.gz", "hdf5", "tfrecord", "jpeg", "parquet")
RECIPE = """\
name = "small"
title = "files of 40 kB"
format = "{form}"
payload = "incompressible"
files = 24
{more}
[size]
distribution = "fixed"
shape = "{shape}"
bytes_mean = 40_000
"""
MORE = {
    "tfrecord": "samples_per_file = 5",
    "hdf5": "samples_per_file = 2",
    "parquet": "samples_per_file = 8\nrow_group = 4\n"
    'columns = [{ name = "a", dtype = "float32", size = 10000 }]',
}
FLAT = ("tfrecord", "jpeg", "bytes", "hdf5", "parquet")


def measured(form: str, home: Path) -> Path:
    """Two ranks over a dataset of this format: OUT of the run."""
    shape = "flat" if form in FLAT else "volume"
    recipe, data, out = home / f"{form}.toml", home / f"{form}.data", home / f"{form}.out"
    recipe.write_text(RECIPE.format(form=form, shape=shape, more=MORE.get(form, "")))
    settings = ["accelerator.step_seconds=0.01", "loader.batch_size=2", "accelerator.step_batch_size=2"]
    options = [option for setting in settings for option in ("--set", setting)]
    for words in (
        ("generate", data, "--recipe", recipe),
        ("run", data, "-w", "unet3d-h100", "--loader", "direct", "-n", 2, "--epochs", 2, "--cache", "warm",
         "--mismatched-dataset", *options, "--out", out),
    ):  # fmt: skip
        done = feedrate(*words)
        assert done.status == 0, done.err
    return out


@pytest.mark.timeout(900)
def test_what_was_measured_goes_out_and_comes_back_with_the_same_figures(tmp_path):
    tree, before, checked = tmp_path / "tree", {}, {}
    for form in FORMATS:
        out = measured(form, tmp_path)
        (check,) = export_result(out, tmp_path / f"{form}.exported", "v3.0")
        checked[form] = next(rule.value for rule in check.rules if rule.name == "AU of every run")
        shutil.copytree(tmp_path / f"{form}.exported" / "results", tree / "results", dirs_exist_ok=True)
        (run,) = find_runs(tmp_path / f"{form}.exported")
        before[run.name] = form, read_result(out)
    assert len(before) == len(FORMATS)
    reportgen(tmp_path, tree / "results")
    (report,) = tmp_path.rglob("results.json")
    assert len(json.loads(report.read_text())) == len(FORMATS)
    back = {run.run.name.rpartition("/")[2]: run for run in import_folder(tree).runs}
    for name, (form, result) in before.items():
        (point,), imported = result.points, back[name]
        ((again, _),) = results_of(import_folder(tmp_path / f"{form}.exported"), ()).values()
        (other,) = again.points
        assert imported.published.samples == result.dataset["samples"], form
        for key in ("ranks", "steps", "samples", "epochs"):
            assert getattr(other, key) == getattr(point, key), (form, key)
        assert other.bytes == pytest.approx(point.bytes, rel=1e-4), form
        # MLPerf's AU is the mean of the epochs', which the self-check takes, too.
        assert checked[form] == f"lowest {100 * imported.published.mean_au:.2f} %", form
        for key in ("format", "files", "samples_per_file"):
            assert again.dataset[key] == result.dataset[key], (form, key)
