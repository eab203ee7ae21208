"""Export a result in MLPerf Storage's layout (v2.0 and v3.0), marked as no submission, with a self-check.

FOLDER/NOT_A_SUBMISSION.txt, FOLDER/self-check.json
FOLDER/results/training/MODEL/run/YYYYMMDD_HHmmss/    a folder for each run; imported ones in their layout
FOLDER/results/checkpointing/MODEL/YYYYMMDD_HHmmss/   of a checkpoint run

Fields, units and formulas are DLIO's, slips included: its MB is 2^20 bytes, its GB 2^30, and its throughput
counts (n - 2) steps over the time without the first one, in v3.0 (n - 1). The configuration states what was
run: epochs, files, bytes of a sample. Compute is nominal. Times of day are counted back from when the result
was written.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import numpy as np

from emulator.analysis.here import here
from emulator.analysis.throughput import durations
from emulator.config.catalog import names
from emulator.config.workload import Workload, load_workload, stored_workload
from emulator.errors import SpecError, storage_errors
from emulator.files import write_whole
from emulator.plugins.mlperf.results import read_originals
from emulator.plugins.mlperf.rules import Check, self_check
from emulator.plugins.mlperf.summary import GIB, MIB
from emulator.plugins.mlperf.tree import RunFolder, write_json, write_run
from emulator.record.out import check_out, read_result
from emulator.record.result import RunResult
from emulator.record.steps import Steps, read_steps

NOTICE = "NOT_A_SUBMISSION.txt"
CHECK = "self-check.json"
MARK = "made_by_feedrate.json"
"""File beside the documents of every exported run that says who made it."""
LEAST_STEPS = 3
"""Steps of an epoch below which v2.0's throughput is undefined."""


def export_result(out: Path, folder: Path, rules: str = "") -> list[Check]:
    """Write the result in `out` to the new folder `folder`, and check it against the rules of a version.

    Raises SpecError, StorageError.
    """
    result = read_result(out)
    if result.status != "complete" or not (result.points or result.checkpoints):
        raise SpecError(f"{out} is incomplete", "only whole results are exported")
    check_out(folder, force=False, hint="choose another --out")
    checks = self_check(result, rules)
    version = checks[0].version
    name = str(result.workload.get("name") or result.kind)
    runs_folder = folder / "results" / "training" / _file_name(_model(name)) / "run"
    if result.kind == "checkpoint":
        runs_folder = folder / "results" / "checkpointing" / _file_name(name)
    imported = result.environment.get("imported")
    if result.kind == "imported" or imported is not None:
        if not isinstance(imported, list) or (result.points and len(imported) != len(result.points)):
            raise SpecError(f"{out} does not say what it was imported from", "import it again")
        runs = read_originals(out, [str(run.get("run", number)) for number, run in enumerate(imported)])
    elif result.kind == "checkpoint":
        runs = [checkpoint_run(result)]
    elif result.kind in ("run", "sweep"):
        runs = training_runs(out, result, version)
    else:
        kinds = "only runs, sweeps, checkpoints and imports are exported"
        raise SpecError(f"{out} is of the kind {result.kind}", kinds)
    mark = {
        "made_by": f"feedrate {result.version}",
        "official_submission": False,
        "kind": result.kind,
        "emulated_storage": result.storage.get("shaped_rate") is not None,
        "units": "as DLIO writes them: MB is 2^20 bytes, GB is 2^30 bytes",
    }
    notice = [
        f"Made by feedrate {result.version}, from a result of the kind {result.kind}.",
        "This is not an official MLPerf Storage submission: that needs MLPerf's own code, rules and review.",
        "Fields and units are those of MLPerf Storage: its MB is 2^20 bytes, its GB 2^30.",
        "",
    ]
    for check in checks:
        notice += [*check.lines, ""]
    with storage_errors("cannot make the folder"):
        folder.mkdir(parents=True, exist_ok=True)
    taken: set[str] = set()
    for number, run in enumerate(runs):
        name = _file_name(run.name.rpartition("/")[2])
        while name in taken:
            name = f"{name}_{number}"
        taken.add(name)
        write_run(run, runs_folder / name)
        write_json(runs_folder / name / MARK, mark)
    write_json(
        folder / CHECK, [{**asdict(check), "open": check.open, "closed": check.closed} for check in checks]
    )
    write_whole(folder / NOTICE, "\n".join(notice))
    return checks


def _file_name(name: str) -> str:
    """Return `name` as one part of a path: results may hold any text."""
    return re.sub(r"[^\w-]", "_", name)[:80] or "run"


def _model(name: str) -> str:
    """Return the model of a workload's name: unet3d of unet3d-h100."""
    return name.replace("_", "-").partition("-")[0]


def training_runs(out: Path, result: RunResult, version: str) -> list[RunFolder]:
    """Make the documents of each point of a run or a sweep, in order.

    Raises SpecError when a point lacks steps of a rank, or has no epoch that is long enough; StorageError.
    """
    workload = stored_workload(result.workload)
    if not workload.accelerator.step_seconds:
        raise SpecError(f"{out}: the workload does not compute", "MLPerf Storage's figures need a step time")
    sync = workload.training.sync
    start = _ended(result) - timedelta(seconds=math.ceil(sum(point.seconds for point in result.points)))
    runs = []
    for number, point in enumerate(result.points):
        rows = read_steps(out, number)
        counts = np.unique(rows["rank"], return_counts=True)[1]
        if len(counts) != point.ranks or len(set(counts.tolist())) != 1:
            raise SpecError(f"{out} has not the same steps of all {point.ranks} ranks", "run it again")
        # In the processes' time, as DLIO's own processes would have measured it, where the log has that.
        trained = here(rows, sync)
        rows = rows if trained is None else trained
        first = rows[rows["rank"] == rows["rank"][0]]
        longest = int(np.unique(first["epoch"], return_counts=True)[1].max())
        if longest < LEAST_STEPS:
            what = f"{out} has epochs of {longest} steps"
            raise SpecError(what, f"MLPerf's formulas need {LEAST_STEPS} at least")
        runs.append(training_run(result, workload, number, rows, start, version))
        start += timedelta(seconds=math.ceil(point.seconds))
    return runs


def training_run(
    result: RunResult, workload: Workload, number: int, rows: Steps, start: datetime, version: str
) -> RunFolder:
    """Make the documents of point `number`, begun at `start`, from its steps by the formulas of `version`.

    Epochs too short for them are left out.
    """
    counted = 1 if version == "v3.0" else 2
    point = result.points[number]
    batch = workload.loader.batch_size
    files, each = (int(_recorded(result.dataset, key)) for key in ("files", "samples_per_file"))
    hostnames = [host.host for host in point.hosts for _ in range(host.ranks)]
    logs: dict[int, dict[str, Any]] = {}
    stats: dict[str, dict[str, Any]] = {}
    for rank in range(point.ranks):
        log, spans = logs.setdefault(rank, {}), stats.setdefault(str(rank), {})
        mine = rows[rows["rank"] == rank]
        for epoch in np.unique(mine["epoch"]):
            part = mine[mine["epoch"] == epoch]
            if len(part) < LEAST_STEPS:
                continue
            proc = part["wait"] + part["compute"] + part["overshoot"]
            seconds = durations(part)
            rest = float(seconds.sum()) - float(proc[0])
            begin, end = float(part["begin"][0]), float(part["begin"][-1] + seconds[-1])
            span = {"start": _time(start, begin), "end": _time(start, end), "duration": f"{end - begin:.2f}"}
            key = str(len(log) + 1)
            spans[key] = {**span, "block1": dict(span)}
            log[key] = {
                "load": {"block1": part["wait"].tolist()},
                "proc": {"block1": proc.tolist()},
                "compute": {"block1": part["compute"].tolist()},
                "au": {"block1": 100 * float(part["compute"][1:].sum()) / rest},
                "throughput": {"block1": (len(part) - counted) * batch / rest},
            }
    epochs = [list(log.values()) for log in logs.values()]
    au = np.array([[epoch["au"]["block1"] for epoch in log] for log in epochs]).mean(axis=0)
    rate = np.array([[epoch["throughput"]["block1"] for epoch in log] for log in epochs]).sum(axis=0)
    for rank, log in logs.items():
        log["hostname"] = hostnames[rank]
    sample_bytes = point.bytes / point.samples
    met = float(au.mean()) >= 100 * workload.training.au_threshold
    summary = _summary(
        result,
        start,
        point.seconds,
        point.ranks,
        [host.host for host in point.hosts],
        [host.cores for host in point.hosts],
    )
    memory = int(result.environment.get("memory_bytes", 0)) / GIB
    hosts = len(point.hosts) or 1
    data = int(result.dataset["bytes"]) / GIB / hosts
    summary |= {
        "metric": {
            "train_au_percentage": au.tolist(),
            "train_au_mean_percentage": float(au.mean()),
            "train_au_meet_expectation": "success" if met else "fail",
            "train_au_stdev_percentage": float(au.std()),
            "train_throughput_samples_per_second": rate.tolist(),
            "train_throughput_mean_samples_per_second": float(rate.mean()),
            "train_throughput_stdev_samples_per_second": float(rate.std()),
            "train_io_mean_MB_per_second": float(rate.mean()) * sample_bytes / MIB,
            "train_io_stdev_MB_per_second": float(rate.std()) * sample_bytes / MIB,
        },
        "num_files_train": files,
        "num_files_eval": 0,
        "num_samples_per_file": each,
        "potential_caching": [int(data < memory)] * hosts,
        "data_size_per_host_GB": data,
        "epochs": len(au),
    }
    loader, training = workload.loader, workload.training
    place = str(result.dataset.get("path", ""))
    model, _, accelerator = workload.name.replace("_", "-").partition("-")
    config: dict[str, Any] = {
        "model": {"name": model, "type": "cnn"},
        "framework": "pytorch",
        "workflow": {"generate_data": False, "train": True, "checkpoint": False},
        "dataset": {
            "data_folder": place,
            "format": workload.sample.format,
            "num_files_train": files,
            "num_samples_per_file": each,
            "record_length_bytes": round(sample_bytes),  # the mean of what was read
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
            "epochs": len(au),
            "computation_time": workload.accelerator.step_seconds,
            "seed": training.shuffle_seed + number,
        },
        "metric": {"au": training.au_threshold},
    }
    name = start.strftime("%Y%m%d_%H%M%S")
    overrides = _overrides(config, workload)
    return RunFolder(
        name=name,
        layout="v2.0",
        summary=summary,
        metadata=_metadata("training", name, model, point.ranks, config, overrides, place, accelerator),
        epochs=stats,
        logs=logs,
        configs={
            "config.yaml": {"workload": config},
            "hydra.yaml": {"hydra": {}},
            "overrides.yaml": [
                f"workload={workload.name.replace('-', '_')}",
                *(f"++workload.{key}={value}" for key, value in overrides.items()),
            ],
        },
    )


def _recorded(dataset: Mapping[str, Any], key: str) -> Any:
    """Return a fact about the dataset. Raises SpecError where the result does not record it."""
    if key not in dataset:
        raise SpecError(f"the result does not record {key} of its dataset", "run it again")
    return dataset[key]


def _overrides(config: Mapping[str, Any], workload: Workload) -> dict[str, Any]:
    """Dotted key -> value of what differs from the published workload of this name, or may always differ.

    What is not there is as published, as far as MLPerf's own checkers look.
    """
    always = ("dataset.num_files_train", "dataset.data_folder", "reader.read_threads")
    known = load_workload(workload.name) if workload.name in names("workloads") else None
    published: dict[str, Any] = {}
    if known is not None:
        published = {
            "dataset.format": known.sample.format,
            "dataset.num_samples_per_file": known.sample.samples_per_file,
            "dataset.record_length_bytes": known.sample_read.bytes_mean,
            "reader.batch_size": known.loader.batch_size,
            "train.epochs": known.training.epochs,
            "train.computation_time": known.accelerator.step_seconds,
            "metric.au": known.training.au_threshold,
        }
    flat = {
        f"{section}.{key}": value
        for section, table in config.items()
        if isinstance(table, dict)
        for key, value in table.items()
    }
    differ = [key for key, value in published.items() if not _alike(flat[key], value)]
    return {key: flat[key] for key in (*always, *differ) if "=" not in str(flat[key])}


def _alike(value: Any, published: Any) -> bool:
    """Compare with the published value. Sizes may differ by 1 %: a dataset draws its own."""
    if isinstance(value, int) and isinstance(published, int):
        return abs(value - published) <= published / 100
    return bool(value == published)


_PLACES = {"training": "data_dir", "checkpointing": "checkpoint_folder"}
"""mlpstorage's argument for the folder that was read or written."""


def _metadata(
    kind: str,
    name: str,
    model: str,
    ranks: int,
    config: Mapping[str, Any],
    overrides: Mapping[str, Any],
    place: str,
    accelerator: str = "",
) -> dict[str, Any]:
    """KIND_NAME_metadata.json, in the fields that v3.0's tools read and v2.0's look for.

    `place` is the folder that was read or written.
    """
    return {
        f"{kind}_{name}_metadata.json": {
            "benchmark_type": kind,
            "model": model,
            "command": "run",
            "run_datetime": name,
            "num_processes": ranks,
            "accelerator": accelerator or None,
            "args": {"model": model, "num_processes": ranks, _PLACES[kind]: place, "results_dir": "results"},
            "parameters": config,
            "override_parameters": overrides,
            "made_by": "feedrate: not an official MLPerf Storage submission",
        }
    }


def checkpoint_run(result: RunResult) -> RunFolder:
    """Make the documents of a checkpoint run.

    Means and deviations are over checkpoints; throughput is the whole size / the slowest rank's seconds.
    """
    first, last = result.checkpoints[0], result.checkpoints[-1]
    seconds = last.began + last.seconds + last.commit_seconds
    start = _ended(result) - timedelta(seconds=seconds)
    metric: dict[str, float] = {}
    counts: dict[str, int] = {}
    for direction, word in (("write", "save"), ("read", "load")):
        chosen = [checkpoint for checkpoint in result.checkpoints if checkpoint.direction == direction]
        counts[direction] = len(chosen)
        if chosen:
            rates = [checkpoint.bytes_per_second / GIB for checkpoint in chosen]
            seconds_each = [checkpoint.seconds for checkpoint in chosen]
            metric |= {
                f"{word}_checkpoint_io_mean_GB_per_second": fmean(rates),
                f"{word}_checkpoint_io_stdev_GB_per_second": pstdev(rates),
                f"{word}_checkpoint_duration_mean_seconds": fmean(seconds_each),
                f"{word}_checkpoint_duration_stdev_seconds": pstdev(seconds_each),
            }
    metric["checkpoint_size_GB"] = first.bytes / GIB
    workload = result.workload
    place = str(result.dataset.get("path", ""))
    shape, parallelism = workload["shape"], workload["parallelism"]
    config = {
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
            "checkpoint_folder": place,
            "time_between_checkpoints": workload["io"]["pause"],
            "num_checkpoints_write": counts["write"],
            "num_checkpoints_read": counts["read"],
            "fsync": True,
            "mode": "subset" if workload["subset"] else "default",
        },
    }
    overrides = {"checkpoint.mode": "subset"} if workload["subset"] else {}
    cores = [int(result.environment.get("cores", 0))] * first.hosts
    summary = _summary(result, start, seconds, first.ranks, list(result.environment.get("hosts", ())), cores)
    name = start.strftime("%Y%m%d_%H%M%S")
    spans: dict[str, Any] = {}
    for direction, word in (("write", "save"), ("read", "load")):
        chosen = [checkpoint for checkpoint in result.checkpoints if checkpoint.direction == direction]
        for number, made in enumerate(chosen, start=1):
            spans[f"{word}_ckpt{number}"] = {
                "start": _time(start, made.began),
                "end": _time(start, made.began + made.seconds),
                "duration": made.seconds,
                "throughput": made.bytes_per_second / GIB,
            }
    epoch = {"start": _time(start, 0.0), **spans, "end": _time(start, seconds)}
    return RunFolder(
        name=name,
        layout="v2.0",
        summary={**summary, "num_hosts": first.hosts, "metric": metric},
        epochs={"0": {"1": epoch}},
        metadata=_metadata(
            "checkpointing", name, str(workload["name"]), first.ranks, config, overrides, place
        ),
        configs={
            "config.yaml": {"workload": config},
            "hydra.yaml": {"hydra": {}},
            "overrides.yaml": [f"workload={str(workload['name']).replace('-', '_')}"],
        },
    )


def _summary(
    result: RunResult, start: datetime, seconds: float, ranks: int, hosts: Sequence[str], cores: Sequence[int]
) -> dict[str, Any]:
    """Return the fields of a summary that describe the run and its hosts."""
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
        "host_memory_GB": [int(result.environment.get("memory_bytes", 0)) / GIB] * (len(cores) or 1),
    }


def _ended(result: RunResult) -> datetime:
    return datetime.fromisoformat(result.created).replace(tzinfo=None)


def _time(start: datetime, seconds: float) -> str:
    return (start + timedelta(seconds=seconds)).isoformat(timespec="microseconds")
