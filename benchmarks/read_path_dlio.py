"""DLIO 2.0 as a contestant: its PyTorch loader over the same files, without compute."""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

from read_path_turn import Done, Files, Turn, watched

_EPOCHS = 3
_CONFIG = """defaults:
  - _self_
  - workload: default
  - override hydra/job_logging: disabled
  - override hydra/hydra_logging: disabled
"""
_WORKLOAD = """model: unet3d
framework: pytorch
workflow: {{generate_data: False, train: True, checkpoint: False}}
dataset:
  data_folder: {folder}
  format: npz
  num_files_train: {files}
  num_samples_per_file: 1
  record_length: {mean}
  record_length_resize: 2097152
reader: {{data_loader: pytorch, batch_size: {batch}, read_threads: {workers}}}
train: {{epochs: {epochs}, computation_time: 0.0}}
"""


def dlio_turn(files: Files, options: argparse.Namespace, cache: str) -> Turn:
    """Read the files in every epoch; start-up subtracted: a run of three epochs less a run of one.

    Cold, DLIO itself finds its files in the page cache from the second epoch on, so that only one
    epoch counts, less a run over the first batch alone; the seconds of that one stand for those to the
    first batch, though they hold DLIO's end, too.
    """
    if cache == "cold":
        long = _run(files, options, len(files.paths), 1)
        files.evict()
        short = _run(files, options, options.batch, 1)
        size = sum(files.sizes[options.batch :])
    else:
        long = _run(files, options, len(files.paths), _EPOCHS)
        short = _run(files, options, len(files.paths), 1)
        size = files.total * (_EPOCHS - 1)
    (long_seconds, long_done), (short_seconds, short_done) = long, short
    return Turn(
        size, long_seconds - short_seconds, long_done.cpu_seconds - short_done.cpu_seconds,
        long_done.peak_pss, short_seconds if cache == "cold" else None,
    )  # fmt: skip


def _run(files: Files, options: argparse.Namespace, count: int, epochs: int) -> tuple[float, Done]:
    """(seconds, what it took) of DLIO over the first `count` files."""
    with tempfile.TemporaryDirectory(dir=files.folder) as name:
        folder = Path(name)
        (folder / "conf/workload").mkdir(parents=True)
        (folder / "data/train").mkdir(parents=True)
        (folder / "data/valid").mkdir()
        for path in files.paths[:count]:
            os.link(path, folder / "data/train" / path.name)
        (folder / "conf/config.yaml").write_text(_CONFIG)
        (folder / "conf/workload/readpath.yaml").write_text(
            _WORKLOAD.format(
                folder=folder / "data", files=count, mean=files.total // len(files.paths),
                batch=options.batch, workers=options.depth, epochs=epochs,
            )
        )  # fmt: skip
        command = [
            os.environ["DLIO_PYTHON"],
            "-m",
            "dlio_benchmark.main",
            "--config-dir",
            str(folder / "conf"),
        ]
        begin = time.monotonic()
        done = watched(
            [*command, "workload=readpath"], env={**os.environ, "DFTRACER_ENABLE": "0"}, cwd=folder
        )
        return time.monotonic() - begin, done
