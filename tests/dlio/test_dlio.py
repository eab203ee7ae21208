"""DLIO 2.0 and feedrate on each other's datasets, and on the same one with the same YAML.

`make test-dlio` installs DLIO in an environment of its own; FEEDRATE_DLIO names another environment's python.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from command import ROOT_AND_OVERSUBSCRIBED, feedrate

from emulator.record.out import read_result
from emulator.record.result import Point

pytestmark = [pytest.mark.dlio, pytest.mark.timeout(600)]

DLIO = Path(os.environ.get("FEEDRATE_DLIO", Path(__file__).resolve().parents[2] / ".venv-dlio/bin/python"))
RANKS = 2
STEPS = 20
"""Steps of an epoch of each rank."""
CONFIG = """\
model: unet3d
framework: pytorch
workflow: {{generate_data: {generate}, train: {train}, checkpoint: False}}
dataset:
  data_folder: {folder}
  format: npz
  num_files_train: {files}
  num_samples_per_file: 1
  record_length: 1000000
  record_length_stdev: 100000
  record_length_resize: 14305   # as MLPerf's 2 MiB are to its 146.6 MB
reader:
  data_loader: pytorch
  batch_size: 4
  read_threads: 2
  file_shuffle: seed
  sample_shuffle: seed
train:
  epochs: 2
  computation_time: {step}
metric:
  au: 0.90
"""
FILES = RANKS * 4 * STEPS


def mpirun() -> Path:
    """The one beside DLIO's python, else the one beside ours."""
    return next(
        path for path in (DLIO.parent / "mpirun", Path(sys.executable).parent / "mpirun") if path.exists()
    )


def dlio(
    place: Path, folder: Path, *, generate: bool = False, step: float = 0.05, files: int = FILES
) -> Path:
    """Run DLIO with CONFIG on `folder`; the folder of its results. `place` has the YAML: job.yaml."""
    if not DLIO.exists():
        pytest.skip(f"there is no {DLIO}: make test-dlio makes it")
    conf = place / "conf"
    (conf / "workload").mkdir(parents=True)
    text = CONFIG.format(folder=folder, generate=generate, train=not generate, step=step, files=files)
    (conf / "workload" / "job.yaml").write_text(text)
    (conf / "config.yaml").write_text("defaults:\n - _self_\n - workload: job\n")
    command = [
        mpirun(), "--bind-to", "none", "-n", RANKS, DLIO, "-m", "dlio_benchmark.main", "--config-dir", conf,
        "workload=job", f"hydra.run.dir={place / 'out'}", f"++workload.output.folder={place / 'out'}",
    ]  # fmt: skip
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "DFTRACER_ENABLE": "0"}
    done = subprocess.run(
        [str(word) for word in command], cwd=place, env={**os.environ, **ROOT_AND_OVERSUBSCRIBED, **quiet},
        capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def imported(place: Path) -> Point:
    """Import DLIO's results in `place` as a result of ours."""
    done = feedrate("import", place / "out", "--out", place / "imported")
    assert done.status == 0, done.err
    print(done.out)
    (point,) = read_result(place / "imported").points
    return point


def test_dlio_trains_on_what_feedrate_generated(tmp_path):
    files = 48
    made = feedrate("generate", tmp_path / "data", "--recipe", "tiny", "--files", files, "--layout", "dlio")
    assert made.status == 0, made.err
    dlio(tmp_path / "dlio", tmp_path / "data", files=files)
    point = imported(tmp_path / "dlio")
    assert (point.ranks, point.epochs, point.samples) == (RANKS, 2, 2 * files) and point.au > 0.5


def test_feedrate_trains_on_what_dlio_generated(tmp_path):
    dlio(tmp_path / "dlio", tmp_path / "data", generate=True, files=16)
    yaml = tmp_path / "dlio" / "conf" / "workload" / "job.yaml"
    assert feedrate("import", yaml, "--out", tmp_path / "job.toml").status == 0
    adopted = feedrate("adopt", tmp_path / "data")
    assert adopted.status == 0 and "adopted 16 npz files" in adopted.out, adopted.err
    done = feedrate(
        "run", tmp_path / "data", "-w", tmp_path / "job.toml", "--loader", "direct", "-n", RANKS,
        "--out", tmp_path / "out",
    )  # fmt: skip
    assert done.status == 0, done.err
    (point,) = read_result(tmp_path / "out").points
    assert (point.epochs, point.samples) == (2, 32)
    assert feedrate("verify", tmp_path / "data").status == 0


def test_both_measure_the_same(tmp_path):
    """One unsaturated configuration, one dataset, one YAML: samples/s within 3 %, AU within 1 point."""
    made = feedrate("generate", tmp_path / "data", "--recipe", "tiny", "--files", FILES, "--layout", "dlio")
    assert made.status == 0, made.err
    dlio(tmp_path / "dlio", tmp_path / "data", step=1.0)
    yaml = tmp_path / "dlio" / "conf" / "workload" / "job.yaml"
    assert feedrate("import", yaml, "--out", tmp_path / "job.toml").status == 0
    done = feedrate(
        "run", tmp_path / "data", "-w", tmp_path / "job.toml", "--loader", "direct", "--cache", "warm",
        "-n", RANKS, "--out", tmp_path / "out", timeout=200,
    )  # fmt: skip
    assert done.status == 0, done.err
    theirs = imported(tmp_path / "dlio")
    (ours,) = read_result(tmp_path / "out").points
    for name, one in (("DLIO", theirs), ("feedrate", ours)):
        print(
            f"{name:8} {one.samples_per_second:.3f} samples/s, AU {one.au:.2%}, first step included "
            f"{one.x_ideal_first:.2%}; waits {one.wait_share:.2%}, barriers {one.barrier_share:.2%}"
        )
    assert (ours.steps, ours.samples) == (theirs.steps, theirs.samples)
    assert ours.samples_per_second == pytest.approx(theirs.samples_per_second, rel=0.03)
    assert ours.au == pytest.approx(theirs.au, abs=0.01)
