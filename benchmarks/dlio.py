"""Run DLIO 2.0 (`make test-dlio` installs it) over .npz files, with its PyTorch loader."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_WORKLOAD = """\
model: unet3d
framework: pytorch
workflow: {{generate_data: False, train: True, checkpoint: False}}
dataset: {{data_folder: {folder}, format: npz, num_files_train: {files}, num_samples_per_file: 1,
  record_length: 1000000, record_length_stdev: 0, record_length_resize: 163840}}
reader: {{data_loader: pytorch, batch_size: {batch}, read_threads: {workers}, prefetch_size: {prefetch},
  file_shuffle: seed, sample_shuffle: seed}}
train: {{epochs: {epochs}, computation_time: {step}}}
metric: {{au: 0.90}}
"""


def run_dlio(
    python: Path, folder: Path, paths: Sequence[Path], *, ranks: int = 1, batch: int, workers: int,
    step: float = 0.0, epochs: int = 1,
) -> Path:  # fmt: skip
    """Run DLIO over `paths`; a path may be given again. Returns the folder of its results."""
    shutil.rmtree(folder / "dlio", ignore_errors=True)
    data, conf, out = (folder / "dlio" / name for name in ("data", "conf", "out"))
    for place in (data / "train", data / "valid", conf / "workload"):  # it lists valid, and evaluates nothing
        place.mkdir(parents=True)
    for number, path in enumerate(paths):
        (data / f"train/img_{number:06d}.npz").symlink_to(path)
    text = _WORKLOAD.format(
        folder=data, files=len(paths), batch=batch, workers=workers, prefetch=2 * workers, epochs=epochs,
        step=step,
    )  # fmt: skip
    (conf / "workload/job.yaml").write_text(text)
    (conf / "config.yaml").write_text("defaults:\n - _self_\n - workload: job\n")
    command = [
        Path(sys.executable).parent / "mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none",
        "-n", ranks, python, "-m", "dlio_benchmark.main", "--config-dir", conf, "workload=job",
        f"hydra.run.dir={out}", f"++workload.output.folder={out}",
    ]  # fmt: skip
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "DFTRACER_ENABLE": "0"}
    done = subprocess.run(
        [*map(str, command)], env={**os.environ, **quiet}, cwd=folder, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if done.returncode:
        sys.exit(done.stdout[-1500:] + done.stderr[-1500:])
    return out
