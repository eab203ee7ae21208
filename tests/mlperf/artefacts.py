"""Files as DLIO writes them, small."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import yaml

UNET3D = """\
model: unet3d
framework: pytorch
workflow:
  generate_data: False
  train: True
dataset:
  data_folder: data/unet3d/
  format: npz
  num_files_train: 168
  num_samples_per_file: 1
  record_length: 146600628
  record_length_stdev: 68341808
  record_length_resize: 2097152
reader:
  data_loader: pytorch
  batch_size: 7
  read_threads: 4
  file_shuffle: seed
  sample_shuffle: seed
  colour: blue
train:
  epochs: 5
  computation_time: 0.323
metric:
  au: 0.90
"""
"""A workload file of DLIO, with one key that nobody knows."""

LLAMA = "model: {name: llama_8b}\nworkflow: {train: False, checkpoint: True}\n"
"""A file of DLIO for the checkpoints of Llama 3 8B."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run whose truth is known. Seconds; every rank and epoch is the same."""

    ranks: int = 2
    hosts: int = 1
    epochs: int = 2
    steps: int = 20
    batch: int = 4
    step: float = 0.1
    first: float = 1.5
    """Wait for the first batch of an epoch."""
    wait: float = 0.005
    """Wait for each other."""
    barrier: float = 0.002
    oversleep: float = 0.0
    """What a sleep takes beyond its step."""
    record: int = 1_000_000
    """Bytes of a sample."""
    workload: str = "unet3d_h100"
    start: datetime = datetime(2026, 1, 1)

    @property
    def seconds(self) -> float:
        """Of an epoch."""
        return (
            self.first
            + self.wait * (self.steps - 1)
            + self.steps * (self.step + self.oversleep + self.barrier)
        )

    @property
    def rest(self) -> float:
        """Of an epoch without its first step; a barrier is no part of a step, as DLIO counts."""
        return self.seconds - self.first - self.step - self.oversleep

    @property
    def x_ideal(self) -> float:
        """Over the steps of AU."""
        return (self.steps - 1) * self.step / self.rest

    @property
    def x_ideal_first(self) -> float:
        """Over all steps."""
        return self.steps * self.step / self.seconds

    def write(self, folder: Path, layout: str, *, seed: int | None = None, metadata: bool = True) -> Path:
        """As MLPerf Storage `layout` would have published it: v2.0 and v3.0 count the measured sleep."""
        newer = layout in ("v2.0", "v3.0")
        slept = self.step + (self.oversleep if newer else 0.0)
        au = 100 * (self.steps - 1) * slept / self.rest
        counted = self.steps - (1 if layout == "v3.0" else 2)
        rate = self.batch * (counted / self.rest if newer else self.steps / self.seconds)
        place = folder / ("dlio_config" if newer else "configs")
        place.mkdir(parents=True)
        host = "host0"
        for rank in range(self.ranks) if newer else ():
            _dump(folder / f"{rank}_per_epoch_stats.json", self._stats())
        if not newer:
            _dump(folder / "per_epoch_stats.json", self._stats())
        _dump(folder / "summary.json", self._summary(au, rate * self.ranks, host))
        if newer and metadata:
            when = f"{self.start:%Y%m%d_%H%M%S}"
            _dump(folder / f"training_{when}_metadata.json", self._metadata(layout, seed))
        config = self._config(seed)
        (place / "config.yaml").write_text(config)
        overrides = [f"workload={self.workload}", f"++workload.reader.batch_size={self.batch}"]
        overrides.append(f"++workload.dataset.num_files_train={self.steps * self.batch * self.ranks}")
        overrides += [f"++workload.train.seed={seed}"] if seed is not None else []
        (place / "overrides.yaml").write_text(yaml.safe_dump(overrides))
        choices = {"overrides": {"task": overrides}, "runtime": {"choices": {"workload": self.workload}}}
        (place / "hydra.yaml").write_text(yaml.safe_dump({"hydra": choices}))
        return folder

    def _metadata(self, layout: str, seed: int | None) -> dict[str, object]:
        """v2.0 writes what its program held, v3.0 a document with fixed keys."""
        if layout == "v2.0":
            return {"args": {"model": "unet3d"}, "params_dict": {}, "benchmark_type": "training"}
        model, accelerator = self.workload.split("_")
        known = {"benchmark_type": "training", "model": model, "command": "run", "accelerator": accelerator}
        config = yaml.safe_load(self._config(seed))["workload"]
        when = f"{self.start:%Y%m%d_%H%M%S}"
        return {**known, "run_datetime": when, "num_processes": self.ranks, "parameters": config}

    def _stats(self) -> dict[str, object]:
        start = self.start
        stats: dict[str, object] = {}
        for epoch in range(1, self.epochs + 1):
            end = start + timedelta(seconds=self.seconds)
            span = {"start": start.isoformat(), "end": end.isoformat(), "duration": f"{self.seconds:.2f}"}
            start = end
            stats[str(epoch)] = {**span, "block1": span}
        return stats

    def _summary(self, au: float, rate: float, host: str) -> dict[str, object]:
        size = self.record / 2**20
        metric = {
            "train_au_percentage": [au] * self.epochs,
            "train_au_mean_percentage": au,
            "train_au_meet_expectation": "success" if au >= 90 else "fail",
            "train_au_stdev_percentage": 0.0,
            "train_throughput_samples_per_second": [rate] * self.epochs,
            "train_throughput_mean_samples_per_second": rate,
            "train_throughput_stdev_samples_per_second": 0.0,
            "train_io_mean_MB_per_second": rate * size,
            "train_io_stdev_MB_per_second": 0.0,
        }
        return {
            "start": self.start.isoformat(),
            "num_accelerators": self.ranks,
            "num_hosts": self.hosts,
            "hostname": host,
            "metric": metric,
            "num_files_train": self.steps * self.batch * self.ranks,
            "num_files_eval": 0,
            "num_samples_per_file": 1,
            "host_cpu_count": [8] * self.hosts,
            "host_processor_name": "",
            "potential_caching": [1] * self.hosts,
            "host_cpuinfo": {"model name": "AMD EPYC", "physical id": "0", "siblings": "8"},
            "host_meminfo": {"MemTotal": "16777216 kB"},
            "host_memory_GB": [16.0] * self.hosts,
            "data_size_per_host_GB": 0.1,
            "epochs": self.epochs,
            "end": (self.start + timedelta(seconds=self.seconds * self.epochs)).isoformat(),
        }

    def _config(self, seed: int | None) -> str:
        files = f"num_files_train: {self.steps * self.batch * self.ranks}"
        text = UNET3D.replace("num_files_train: 168", files).replace("epochs: 5", f"epochs: {self.epochs}")
        if self.record != 146_600_628:
            text = text.replace("146600628", str(self.record)).replace("68341808", "0")
        text = text.replace("batch_size: 7", f"batch_size: {self.batch}").replace("0.323", str(self.step))
        text = text.replace("\ntrain:\n", f"\ntrain:\n  seed: {seed}\n") if seed is not None else text
        return "workload:\n" + "\n".join("  " + line for line in text.splitlines()) + "\n"


def _dump(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=4))
