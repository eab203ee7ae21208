"""A point that feedrate measured as the documents that MLPerf Storage v2.0 writes.

Fields, units and formulas are DLIO's, slips included, so that who knows them reads the figures right: its MB
is 2^20 bytes, its GB 2^30, and its throughput counts (n - 2) steps over the time without the first one.
Compute is nominal. Times of day follow from when the result was written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import numpy as np

from emulator.analysis.throughput import durations
from emulator.mlperf.folder import RunFolder
from emulator.mlperf.published import GIB, MIB
from emulator.record.result import Point, RunResult
from emulator.record.step import Steps
from emulator.spec.workload import Workload

LEAST = 3
"""Steps of an epoch, below which v2.0's throughput is none."""


@dataclass(frozen=True, slots=True)
class _Epoch:
    """One epoch of one rank. Seconds."""

    load: list[float]
    proc: list[float]
    compute: list[float]
    begin: float
    """Since the start of the point."""
    end: float
    au: float
    """Per cent."""
    throughput: float
    """Samples/s, of (n - 2) steps."""


def _epoch(rows: Steps, batch: int) -> _Epoch:
    proc = rows["wait"] + rows["compute"] + rows["overshoot"]
    seconds = durations(rows)
    rest = float(seconds.sum()) - float(proc[0])
    return _Epoch(
        load=rows["wait"].tolist(), proc=proc.tolist(), compute=rows["compute"].tolist(),
        begin=float(rows["begin"][0]), end=float(rows["begin"][-1] + seconds[-1]),
        au=100 * float(rows["compute"][1:].sum()) / rest,
        throughput=(len(rows) - 2) * batch / rest,
    )  # fmt: skip


def run_of(result: RunResult, workload: Workload, number: int, rows: Steps, start: datetime) -> RunFolder:
    """Point `number` of `result`, whose steps are `rows`, begun at `start`. Epochs too short are left out."""
    point = result.points[number]
    batch = workload.loader.batch_size
    ranks: dict[int, list[_Epoch]] = {}
    for rank in range(point.ranks):
        mine = rows[rows["rank"] == rank]
        parts = [mine[mine["epoch"] == epoch] for epoch in np.unique(mine["epoch"])]
        ranks[rank] = [_epoch(part, batch) for part in parts if len(part) >= LEAST]
    hosts = [host.host for host in point.hosts for _ in range(host.ranks)]
    return RunFolder(
        name=start.strftime("%Y%m%d_%H%M%S"),
        layout="v2.0",
        summary=_summary(result, point, workload, ranks, start),
        epochs={str(rank): _stats(epochs, start) for rank, epochs in ranks.items()},
        logs={rank: _log(epochs, hosts[rank]) for rank, epochs in ranks.items()},
        configs={
            "config.yaml": {"workload": config(result, number, workload)},
            "hydra.yaml": {"hydra": {}},
            "overrides.yaml": [f"workload={workload.name.replace('-', '_')}"],
        },
    )


def _log(epochs: list[_Epoch], host: str) -> dict[str, Any]:
    log: dict[str, Any] = {
        str(number): {
            "load": {"block1": one.load}, "proc": {"block1": one.proc}, "compute": {"block1": one.compute},
            "au": {"block1": one.au}, "throughput": {"block1": one.throughput},
        }
        for number, one in enumerate(epochs, 1)
    }  # fmt: skip
    return {**log, "hostname": host}


def _stats(epochs: list[_Epoch], start: datetime) -> dict[str, Any]:
    stats = {}
    for number, one in enumerate(epochs, 1):
        span = {
            "start": _time(start, one.begin), "end": _time(start, one.end),
            "duration": f"{one.end - one.begin:.2f}",
        }  # fmt: skip
        stats[str(number)] = {**span, "block1": dict(span)}
    return stats


def _time(start: datetime, seconds: float) -> str:
    return (start + timedelta(seconds=seconds)).isoformat(timespec="microseconds")


def _summary(
    result: RunResult, point: Point, workload: Workload, ranks: Mapping[int, list[_Epoch]], start: datetime
) -> dict[str, Any]:
    au = np.array([[one.au for one in epochs] for epochs in ranks.values()]).mean(axis=0)
    rate = np.array([[one.throughput for one in epochs] for epochs in ranks.values()]).sum(axis=0)
    size = point.bytes / point.samples / MIB
    met = float(au.mean()) >= 100 * workload.training.au_threshold
    hosts, memory = len(point.hosts) or 1, int(result.environment.get("memory_bytes", 0)) / GIB
    data = int(result.dataset["bytes"]) / GIB / hosts
    return {
        "feedrate": f"made by feedrate {result.version}; not an official MLPerf Storage submission",
        "start": _time(start, 0.0),
        "end": _time(start, point.seconds),
        "num_accelerators": point.ranks,
        "num_hosts": hosts,
        "hostname": point.hosts[0].host if point.hosts else "",
        "metric": {
            "train_au_percentage": au.tolist(),
            "train_au_mean_percentage": float(au.mean()),
            "train_au_meet_expectation": "success" if met else "fail",
            "train_au_stdev_percentage": float(au.std()),
            "train_throughput_samples_per_second": rate.tolist(),
            "train_throughput_mean_samples_per_second": float(rate.mean()),
            "train_throughput_stdev_samples_per_second": float(rate.std()),
            "train_io_mean_MB_per_second": float(rate.mean()) * size,
            "train_io_stdev_MB_per_second": float(rate.std()) * size,
        },
        "num_files_train": int(result.dataset["files"]),
        "num_files_eval": 0,
        "num_samples_per_file": int(result.dataset.get("samples_per_file", 1)),
        "host_cpu_count": [host.cores for host in point.hosts],
        "host_processor_name": str(result.environment.get("cpu", "")),
        "potential_caching": [int(data < memory) for _ in range(hosts)],
        "host_cpuinfo": {},
        "host_meminfo": {},
        "host_memory_GB": [memory for _ in range(hosts)],
        "data_size_per_host_GB": data,
        "epochs": len(au),
    }


def config(result: RunResult, number: int, workload: Workload) -> dict[str, Any]:
    """The workload of point `number` with DLIO's keys; record_length is the mean of what was read."""
    point = result.points[number]
    loader, training = workload.loader, workload.training
    return {
        "model": workload.name.partition("-")[0],
        "framework": "pytorch",
        "workflow": {"generate_data": False, "train": True, "checkpoint": False},
        "dataset": {
            "data_folder": str(result.dataset.get("path", "")),
            "format": workload.sample.format,
            "num_files_train": int(result.dataset["files"]),
            "num_samples_per_file": int(result.dataset.get("samples_per_file", 1)),
            "record_length": round(point.bytes / point.samples),
            "record_length_stdev": workload.sample.bytes_sd,
        },
        "reader": {
            "data_loader": "pytorch",
            "batch_size": loader.batch_size,
            "read_threads": loader.workers,
            "prefetch_size": loader.prefetch,
            "transfer_size": loader.block_bytes,
            "file_shuffle": "seed",
            "sample_shuffle": "seed",
        },
        "train": {
            "epochs": training.epochs,
            "computation_time": workload.accelerator.step_seconds,
            "seed": training.shuffle_seed + number,
        },
        "metric": {"au": training.au_threshold},
    }
