"""The documents of a run that feedrate measured, as MLPerf Storage and DLIO write them.

Fields, units and formulas are DLIO's of v3.0, errors included: its MB is 2^20 bytes, its GB 2^30, and its
throughput counts (n - 1) steps over the time without the first one. The configuration has the epochs,
files and bytes of a sample of the run itself. Compute is nominal. Times of day are counted back from the
time at which the result was written.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from emulator.analysis.throughput import durations
from emulator.config.catalog import names
from emulator.config.workload import Workload, load_workload, stored_workload
from emulator.errors import SpecError
from emulator.plugins.mlperf.config import Config
from emulator.plugins.mlperf.published import GIB, MIB
from emulator.plugins.mlperf.rule import declared_accelerator, model_and_accelerator
from emulator.plugins.mlperf.tree import RunFolder
from emulator.record.result import Checkpoint, Point, RunResult
from emulator.record.steps import Steps, read_steps

STAMP = "%Y%m%d_%H%M%S"
"""Format of a run's name."""
LEAST_STEPS = 3
"""Steps of an epoch below which it is left out: the first does not count, and one alone says little."""

Kind = Literal["training", "checkpointing"]
_ALWAYS = ("dataset.num_files_train", "dataset.data_folder", "reader.read_threads")
"""Parameters of a training that are always listed as overrides."""
_CLOSED = {*_ALWAYS, "checkpoint.mode"}
"""Overrides that CLOSED allows."""


# ---- What every run has.


def _run_folder(
    kind: Kind,
    result: RunResult,
    config: Mapping[str, Any],
    overrides: Mapping[str, Any],
    start: datetime,
    summary: Mapping[str, Any],
) -> RunFolder:
    """Return the documents of a run without those of its ranks."""
    name, workload = start.strftime(STAMP), str(result.workload["name"])
    return RunFolder(
        name=name,
        summary=summary,
        metadata={
            **metadata(kind, name, result, summary["num_accelerators"], config, overrides),
            "invocation_start_time": result.environment.get("invocation_start") or summary["start"],
            "invocation_end_time": summary["end"],
        },
        configs={
            "config.yaml": {"workload": config},
            "hydra.yaml": {"hydra": {}},
            "overrides.yaml": [
                f"workload={workload.replace('-', '_')}",
                *(f"++workload.{key}={value}" for key, value in overrides.items()),
            ],
        },
    )


def metadata(
    kind: Kind,
    name: str,
    result: RunResult,
    ranks: int,
    config: Mapping[str, Any],
    overrides: Mapping[str, Any],
) -> dict[str, Any]:
    """Return KIND_NAME_metadata.json with the fields that v2.0's and v3.0's tools read."""
    workload, place = str(result.workload["name"]), str(result.dataset.get("path", ""))
    arguments: dict[str, Any] = {"num_processes": ranks, "results_dir": "results"}
    if kind == "training":
        model, accelerator = model_and_accelerator(workload)
        arguments["data_dir"] = place
    else:
        model, accelerator = workload, declared_accelerator(result)
        counts = config.get("checkpoint", {})
        arguments |= {"checkpoint_folder": place, "checkpoint_subset": bool(result.workload["subset"])}
        arguments |= {key: counts[key] for key in counts if key.startswith("num_checkpoints_")}
    return {
        "benchmark_type": kind,
        "model": model,
        "command": "run",
        "run_datetime": name,
        "num_processes": ranks,
        "accelerator": accelerator or None,
        "args": {"model": model, **arguments},
        "parameters": config,
        "override_parameters": overrides,
        "verification": "closed" if set(overrides) <= _CLOSED else "open",
        "provenance_file": "provenance.json",
        "made_by": "feedrate: not an official MLPerf Storage submission",
    }


def _summary(
    result: RunResult, start: datetime, seconds: float, ranks: int, hosts: Sequence[str], cores: Sequence[int]
) -> dict[str, Any]:
    memory = result.environment.get("memory_of_hosts") or {}
    return {
        "feedrate": f"made by feedrate {result.version}; not an official MLPerf Storage submission",
        "start": _time(start, 0.0),
        "end": _time(start, seconds),
        "num_accelerators": ranks,
        "num_hosts": len(hosts) or 1,
        "hostname": hosts[0] if hosts else "",
        "host_cpu_count": cores,
        "host_processor_name": str(result.environment.get("cpu", "")),
        "host_cpuinfo": {},
        "host_meminfo": {},
        "host_memory_GB": [memory[host] / GIB for host in hosts if host in memory],
    }


def _begun(result: RunResult, seconds: float) -> datetime:
    """Return the start of a result that took `seconds`. It was written at its end."""
    return datetime.fromisoformat(result.created).replace(tzinfo=None) - timedelta(seconds=seconds)


def _time(start: datetime, seconds: float) -> str:
    return (start + timedelta(seconds=seconds)).isoformat(timespec="microseconds")


# ---- Trainings.


def training_runs(out: Path, result: RunResult) -> list[RunFolder]:
    """Return the documents of each point of a run or a sweep, in order.

    Raises SpecError if a point lacks steps of a rank or has only short epochs; StorageError.
    """
    workload = stored_workload(result.workload)
    if not workload.accelerator.step_seconds:
        raise SpecError(f"{out}: the workload does not compute", "MLPerf Storage's figures need a step time")
    start = _begun(result, math.ceil(sum(point.seconds for point in result.points)))
    runs: list[RunFolder] = []
    for number, point in enumerate(result.points):
        rows = _whole_steps(out, number, point.ranks)
        if runs:  # names of folders are whole seconds
            start = max(start, datetime.strptime(runs[-1].name, STAMP) + timedelta(seconds=1))
        runs.append(_training_run(result, workload, number, rows, start))
        start += timedelta(seconds=math.ceil(point.seconds))
    return runs


def _whole_steps(out: Path, number: int, ranks: int) -> Steps:
    """Return the rows of a point. Raises SpecError if they cannot be exported, StorageError."""
    rows = read_steps(out, number)
    counts = np.unique(rows["rank"], return_counts=True)[1]
    if len(counts) != ranks or len(set(counts.tolist())) != 1:
        raise SpecError(f"{out} does not have the same steps for all {ranks} ranks", "run it again")
    first = rows[rows["rank"] == rows["rank"][0]]
    longest = int(np.unique(first["epoch"], return_counts=True)[1].max())
    if longest < LEAST_STEPS:
        what = f"{out} has epochs of {longest} steps"
        raise SpecError(what, f"MLPerf's formulas need at least {LEAST_STEPS}")
    return rows


def _training_run(
    result: RunResult, workload: Workload, number: int, rows: Steps, start: datetime
) -> RunFolder:
    """Return the documents of point `number`, begun at `start`, from its steps.

    Epochs that are too short for the formulas are left out.
    """
    batch = workload.loader.batch_size
    logs: dict[str, dict[str, Any]] = {}
    stats: dict[str, dict[str, Any]] = {}
    for rank in np.unique(rows["rank"]).tolist():
        of_rank = rows[rows["rank"] == rank]
        epochs = [of_rank[of_rank["epoch"] == epoch] for epoch in np.unique(of_rank["epoch"])]
        epochs = [epoch for epoch in epochs if len(epoch) >= LEAST_STEPS]
        logs[str(rank)] = {str(n): _epoch_log(epoch, batch) for n, epoch in enumerate(epochs, 1)}
        stats[str(rank)] = {str(n): _epoch_span(epoch, start) for n, epoch in enumerate(epochs, 1)}
    summary = _training_summary(result, workload, result.points[number], logs.values(), start)
    config = _training_config(result, workload, number, summary["epochs"])
    run = _run_folder("training", result, config, _overrides(config, workload), start, summary)
    host_of = [host.host for host in result.points[number].hosts for _ in range(host.ranks)]
    for rank, log in logs.items():
        log["hostname"] = host_of[int(rank)]
    return replace(run, epochs=stats, logs=logs)


def _epoch_log(epoch: Steps, batch: int) -> dict[str, Any]:
    """Return DLIO's log of one rank's epoch, whose throughput leaves out the first step."""
    proc = epoch["wait"] + epoch["compute"] + epoch["overshoot"]
    rest = float(durations(epoch).sum()) - float(proc[0])
    return {
        "load": {"block1": epoch["wait"].tolist()},
        "proc": {"block1": proc.tolist()},
        "compute": {"block1": epoch["compute"].tolist()},
        "au": {"block1": 100 * float(epoch["compute"][1:].sum()) / rest},
        "throughput": {"block1": (len(epoch) - 1) * batch / rest},
    }


def _epoch_span(epoch: Steps, start: datetime) -> dict[str, Any]:
    begin, end = float(epoch["begin"][0]), float(epoch["begin"][-1] + durations(epoch)[-1])
    span = {"start": _time(start, begin), "end": _time(start, end), "duration": f"{end - begin:.2f}"}
    return {**span, "block1": dict(span)}


def _training_summary(
    result: RunResult, workload: Workload, point: Point, logs: Collection[Mapping[str, Any]], start: datetime
) -> dict[str, Any]:
    # AU is the mean over the ranks, throughput their sum, both by epoch.
    au = _by_rank_and_epoch(logs, "au").mean(axis=0)
    rate = _by_rank_and_epoch(logs, "throughput").sum(axis=0)
    sample_mib = point.bytes / point.samples / MIB
    met = float(au.mean()) >= 100 * workload.training.au_threshold
    hosts, cores = [host.host for host in point.hosts], [host.cores for host in point.hosts]
    host_data = int(result.dataset["bytes"]) / GIB / (len(hosts) or 1)
    host_memory = int(result.environment.get("memory_bytes", 0)) / GIB
    return {
        **_summary(result, start, point.seconds, point.ranks, hosts, cores),
        "metric": {
            "train_au_percentage": au.tolist(),
            "train_au_mean_percentage": float(au.mean()),
            "train_au_meet_expectation": "success" if met else "fail",
            "train_au_stdev_percentage": float(au.std()),
            "train_throughput_samples_per_second": rate.tolist(),
            "train_throughput_mean_samples_per_second": float(rate.mean()),
            "train_throughput_stdev_samples_per_second": float(rate.std()),
            "train_io_mean_MB_per_second": float(rate.mean()) * sample_mib,
            "train_io_stdev_MB_per_second": float(rate.std()) * sample_mib,
        },
        "num_files_train": int(result.dataset["files"]),
        "num_files_eval": 0,
        "num_samples_per_file": int(result.dataset["samples_per_file"]),
        "potential_caching": [int(host_data < host_memory)] * (len(hosts) or 1),
        "data_size_per_host_GB": host_data,
        "epochs": len(au),
    }


def _by_rank_and_epoch(logs: Collection[Mapping[str, Any]], figure: str) -> npt.NDArray[np.float64]:
    return np.array([[epoch[figure]["block1"] for epoch in log.values()] for log in logs])


def _training_config(result: RunResult, workload: Workload, number: int, epochs: int) -> dict[str, Any]:
    point, loader = result.points[number], workload.loader
    record, nominal = round(point.bytes / point.samples), workload.sample_read.bytes_mean
    if abs(record - nominal) <= nominal / 100:
        record = nominal  # else the drawn sizes would move the number of files that the rules ask for
    return {
        "model": {"name": model_and_accelerator(workload.name)[0], "type": "cnn"},
        "framework": "pytorch",
        "workflow": {"generate_data": False, "train": True, "checkpoint": False},
        "dataset": {
            "data_folder": str(result.dataset.get("path", "")),
            "format": str(result.dataset["format"]),
            "num_files_train": int(result.dataset["files"]),
            "num_samples_per_file": int(result.dataset["samples_per_file"]),
            "record_length_bytes": record,
        },
        "reader": {
            "data_loader": "pytorch" if result.loader == "torch" else f"feedrate's {result.loader}",
            "batch_size": loader.batch_size,
            "read_threads": loader.workers,
            "prefetch_size": loader.prefetch,
            "transfer_size": loader.block_bytes,
            "file_shuffle": "seed",
            "sample_shuffle": "seed",
        },
        "train": {
            "epochs": epochs,
            "computation_time": workload.accelerator.step_seconds,
            "seed": workload.training.shuffle_seed + number,
        },
        "metric": {"au": workload.training.au_threshold},
    }


def _overrides(config: Mapping[str, Any], workload: Workload) -> dict[str, Any]:
    """Return, by dotted key, the parameters `_ALWAYS` and those that differ from the published workload.

    Of the other parameters, those that MLPerf's own checkers examine are as published.
    """
    flat = dict(Config("", config).leaves())
    published: dict[str, Any] = {"reader.data_loader": "pytorch"}
    if workload.name in names("workloads"):
        known = load_workload(workload.name)
        published |= {
            "dataset.format": known.sample.format,
            "dataset.num_samples_per_file": known.sample.samples_per_file,
            "dataset.record_length_bytes": known.sample_read.bytes_mean,
            "reader.batch_size": known.loader.batch_size,
            "train.epochs": known.training.epochs,
            "train.computation_time": known.accelerator.step_seconds,
            "metric.au": known.training.au_threshold,
        }
    differ = [key for key, value in published.items() if flat[key] != value]
    return {key: flat[key] for key in (*_ALWAYS, *differ) if "=" not in str(flat[key])}


# ---- Checkpoints.


def checkpoint_run(result: RunResult) -> RunFolder:
    """Return the documents of a checkpoint result as one run."""
    first, last = result.checkpoints[0], result.checkpoints[-1]
    seconds = last.began + last.seconds + last.commit_seconds
    start = _begun(result, seconds)
    hosts = list(result.environment.get("hosts", ()))
    cores = [int(result.environment.get("cores", 0))] * first.hosts
    summary = {
        **_summary(result, start, seconds, first.ranks, hosts, cores),
        "num_hosts": first.hosts,
        "metric": _checkpoint_metric(result),
    }
    overrides = {"checkpoint.mode": "subset"} if result.workload["subset"] else {}
    if str(result.workload["scale"]) != "1":  # a scaled model is not of the division CLOSED
        overrides["model.scale"] = str(result.workload["scale"])
    run = _run_folder("checkpointing", result, _checkpoint_config(result), overrides, start, summary)
    spans = _checkpoint_spans(result, start)
    epoch = {"start": _time(start, 0.0), **spans, "end": _time(start, seconds)}
    return replace(run, epochs={"0": {"1": epoch}})


def _by_verb(result: RunResult) -> dict[str, list[Checkpoint]]:
    """Return the checkpoints by DLIO's verb, without verbs that have none."""
    by_verb: dict[str, list[Checkpoint]] = {}
    for verb, direction in (("save", "write"), ("load", "read")):
        if of_direction := [made for made in result.checkpoints if made.direction == direction]:
            by_verb[verb] = of_direction
    return by_verb


def _checkpoint_metric(result: RunResult) -> dict[str, float]:
    """Return means and deviations over checkpoints. Throughput is all bytes / the slowest rank's seconds."""
    metric: dict[str, float] = {}
    for verb, checkpoints in _by_verb(result).items():
        rates = [checkpoint.bytes_per_second / GIB for checkpoint in checkpoints]
        seconds = [checkpoint.seconds for checkpoint in checkpoints]
        metric |= {
            f"{verb}_checkpoint_io_mean_GB_per_second": fmean(rates),
            f"{verb}_checkpoint_io_stdev_GB_per_second": pstdev(rates),
            f"{verb}_checkpoint_duration_mean_seconds": fmean(seconds),
            f"{verb}_checkpoint_duration_stdev_seconds": pstdev(seconds),
        }
    return {**metric, "checkpoint_size_GB": result.checkpoints[0].bytes / GIB}


def _checkpoint_spans(result: RunResult, start: datetime) -> dict[str, Any]:
    """Return save_ckptN and load_ckptN: the times and the throughput of each checkpoint."""
    return {
        f"{verb}_ckpt{number}": {
            "start": _time(start, checkpoint.began),
            "end": _time(start, checkpoint.began + checkpoint.seconds),
            "duration": checkpoint.seconds,
            "throughput": checkpoint.bytes_per_second / GIB,
        }
        for verb, checkpoints in _by_verb(result).items()
        for number, checkpoint in enumerate(checkpoints, start=1)
    }


def _checkpoint_config(result: RunResult) -> dict[str, Any]:
    workload, by_verb = result.workload, _by_verb(result)
    shape, parallelism = workload["shape"], workload["parallelism"]
    return {
        "model": {
            "name": str(workload["name"]).replace("llama3-", "llama_"),
            "type": "transformer",
            "num_layers": shape["layers"],
            "model_datatype": "fp16",
            "optimizer_datatype": "fp32",
            "parallelism": {
                "tensor": parallelism["tensor"],
                "pipeline": parallelism["pipeline"],
                "zero_stage": parallelism["zero"],
            },
            "transformer": {
                "vocab_size": shape["vocabulary"],
                "hidden_size": shape["hidden"],
                "ffn_hidden_size": shape["ffn"],
                "num_attention_heads": shape["heads"],
                "num_kv_heads": shape["kv_heads"],
            },
        },
        "framework": "pytorch",
        "workflow": {"generate_data": False, "train": False, "checkpoint": True},
        "checkpoint": {
            "checkpoint_folder": str(result.dataset.get("path", "")),
            "time_between_checkpoints": workload["io"]["pause"],
            "num_checkpoints_write": len(by_verb.get("save", ())),
            "num_checkpoints_read": len(by_verb.get("load", ())),
            "fsync": True,
            "mode": "subset" if workload["subset"] else "default",
        },
    }
