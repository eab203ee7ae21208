"""A point that feedrate measured as the documents that MLPerf Storage v2.0 writes.

Fields, units and formulas are DLIO's, slips included, so that who knows them reads the figures right: its MB
is 2^20 bytes, its GB 2^30, and its throughput counts (n - 2) steps over the time without the first one.
Compute is nominal. Times of day follow from when the result was written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import numpy as np

from emulator.analysis.throughput import durations
from emulator.config.reader import build
from emulator.config.workload import Workload
from emulator.errors import SpecError, storage_error
from emulator.record.folder import check_out, read_result
from emulator.record.result import Checkpoint, Point, RunResult
from emulator.record.steps import Steps, read_steps
from emulator.satellites.mlperf.folder import GIB, MARK, MIB, RunFolder, write_json, write_run, write_text
from emulator.satellites.mlperf.results import read_originals
from emulator.satellites.mlperf.rules import BOTH, Check, Rule, check_lines, self_check

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


# ---- A checkpoint run as MLPerf Storage v2.0's documents, and held against its rules.
#
# Units are DLIO's: its GB is 2^30 bytes. Means and deviations are over checkpoints; throughput is the whole
# size / the slowest rank's seconds.


_GIB = 2**30
COUNT = 10
"""Checkpoints that are written, and read."""
LEAST_PER_HOST = 5
"""Ranks of a host: more than four."""
_WORDS = {"write": "save", "read": "load"}


def checkpoint_run(result: RunResult) -> RunFolder:
    """The documents of a checkpoint run."""
    ends = datetime.fromisoformat(result.created.replace("Z", "+00:00")).replace(tzinfo=None)
    last = result.checkpoints[-1]
    start = ends - timedelta(seconds=last.began + last.seconds + last.commit_seconds)
    name = start.strftime("%Y%m%d_%H%M%S")
    configs = {"config.yaml": _config(result)}
    return RunFolder(
        name=name, layout="v2.0", summary=_summary_checkpoints(result, start, ends), configs=configs
    )


def _summary_checkpoints(result: RunResult, start: datetime, ends: datetime) -> dict[str, Any]:
    first, hosts = result.checkpoints[0], list(result.environment.get("hosts", ()))
    metric: dict[str, float] = {}
    for direction, word in _WORDS.items():
        found = [one for one in result.checkpoints if one.direction == direction]
        if found:
            metric |= _figures(f"{word}_checkpoint", found)
    metric["checkpoint_size_GB"] = first.bytes / _GIB
    memory = int(result.environment.get("memory_bytes", 0)) / _GIB
    return {
        "feedrate": f"made by feedrate {result.version}; not an official MLPerf Storage submission",
        "start": start.isoformat(timespec="microseconds"),
        "end": ends.isoformat(timespec="microseconds"),
        "num_accelerators": first.ranks,
        "num_hosts": first.hosts,
        "hostname": hosts[0] if hosts else "",
        "metric": metric,
        "host_cpu_count": [int(result.environment.get("cores", 0))] * first.hosts,
        "host_processor_name": str(result.environment.get("cpu", "")),
        "host_cpuinfo": {},
        "host_meminfo": {},
        "host_memory_GB": [memory] * first.hosts,
    }


def _figures(prefix: str, found: Sequence[Checkpoint]) -> dict[str, float]:
    rates = [one.bytes_per_second / _GIB for one in found]
    seconds = [one.seconds for one in found]
    return {
        f"{prefix}_io_mean_GB_per_second": fmean(rates),
        f"{prefix}_io_stdev_GB_per_second": pstdev(rates),
        f"{prefix}_duration_mean_seconds": fmean(seconds),
        f"{prefix}_duration_stdev_seconds": pstdev(seconds),
    }


def _config(result: RunResult) -> dict[str, Any]:
    """The model with DLIO's keys."""
    workload = result.workload
    shape, spread, io = (dict(workload[key]) for key in ("shape", "parallelism", "io"))
    counts = {
        direction: sum(one.direction == direction for one in result.checkpoints) for direction in _WORDS
    }
    return {
        "model": {
            "name": str(workload["name"]).replace("-", "_"),
            "type": "transformer",
            "num_layers": shape["layers"],
            "model_datatype": "fp16",
            "optimizer_datatype": "fp32",
            "parallelism": {
                "tensor": spread["tensor"],
                "pipeline": spread["pipeline"],
                "data": workload["data_parallel"],
                "zero_stage": spread["zero"],
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
            "time_between_checkpoints": io["pause"],
            "num_checkpoints_write": counts["write"],
            "num_checkpoints_read": counts["read"],
            "fsync": True,
            "mode": "subset" if workload["subset"] else "default",
        },
    }


def checkpoint_check(result: RunResult) -> Check:
    """The rules of v2.0 (2.2) for a checkpoint run."""
    workload, first = result.workload, result.checkpoints[0]
    spread: Mapping[str, int] = workload["parallelism"]
    group = spread["tensor"] * spread["pipeline"]
    wanted = 8 if workload["subset"] else group * spread["data"]
    written, read = (sum(one.direction == word for one in result.checkpoints) for word in _WORDS)
    each = first.ranks / first.hosts
    cold = result.storage.get("cache") == "cold"
    rules = (
        _rule("sizes", BOTH, str(workload["scale"]), "1, the whole sizes", workload["scale"] == "1"),
        _rule("checkpoints", BOTH, f"{written} written, {read} read", "10 and 10", written == read == COUNT),
        _rule("fsync", BOTH, "files and folder", "synced before a write ends", True),
        _rule("caches", BOTH, str(result.storage.get("cache")), "cold: nothing read from memory", cold),
        _rule(
            "ranks in groups", BOTH, str(first.ranks), f"a multiple of {group}, or 8 of a subset",
            first.ranks % group == 0 or bool(workload["subset"]),
        ),
        _rule("ranks", "closed", str(first.ranks), str(wanted), first.ranks == wanted),
        _rule("ranks of a host", "closed", f"{each:g}", f"at least {LEAST_PER_HOST}", each >= LEAST_PER_HOST),
    )  # fmt: skip
    return Check(accelerators=first.ranks, rules=rules)


def _rule(name: str, division: Any, value: str, threshold: str, met: bool) -> Rule:
    return Rule(name=name, division=division, value=value, threshold=threshold, met=met)


# ---- A result as a folder in MLPerf Storage's layout, marked as feedrate's, with the self-check beside it.
#
# FOLDER/NOT_A_SUBMISSION.txt, FOLDER/self-check.json
# FOLDER/results/training/NAME/run/YYYYMMDD_HHmmss/     one folder a run; imported ones in their layout
# FOLDER/results/checkpointing/MODEL/YYYYMMDD_HHmmss/   of a checkpoint run


NOTICE = "NOT_A_SUBMISSION.txt"
CHECK = "self-check.json"


def export(out: Path, folder: Path) -> list[Check]:
    """Write the result in `out` to the new folder `folder`. Raises SpecError, StorageError."""
    result = read_result(out)
    if result.status != "complete" or not (result.points or result.checkpoints):
        raise SpecError(f"{out} is incomplete", "only whole results are exported")
    check_out(folder, force=False)
    runs, checks = _documents(out, result)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise storage_error(error, "cannot make the folder") from None
    workload = str(result.workload["name"]).replace("-", "_")
    place = folder / "results" / "training" / _plain(workload) / "run"
    if result.kind == "checkpoint":
        place = folder / "results" / "checkpointing" / _plain(str(result.workload["name"]))
    taken: set[str] = set()
    for number, run in enumerate(runs):
        name = _plain(run.name.rpartition("/")[2])
        while name in taken:
            name = f"{name}_{number}"
        taken.add(name)
        write_run(run, place / name)
        write_json(place / name / MARK, mark(result))
    write_json(folder / CHECK, [_plain_check(check) for check in checks])
    write_text(folder / NOTICE, _notice(result, checks))
    return checks


def _documents(out: Path, result: RunResult) -> tuple[Sequence[RunFolder], list[Check]]:
    """The runs of a result, and what the rules say of them. Raises SpecError, StorageError."""
    if result.kind == "checkpoint":
        return [checkpoint_run(result)], [checkpoint_check(result)]
    runs = _imported(out, result) if result.kind == "imported" else _measured(out, result)
    return runs, self_check(result)


def _imported(out: Path, result: RunResult) -> list[RunFolder]:
    about = result.environment.get("imported")
    if not isinstance(about, list) or len(about) != len(result.points):
        raise SpecError(f"{out} does not say what it was imported from", "import it again")
    return read_originals(out, [str(one.get("run", number)) for number, one in enumerate(about)])


def _measured(out: Path, result: RunResult) -> list[RunFolder]:
    """Points of a run or a sweep as documents, in the order they were run."""
    if result.kind not in ("run", "sweep"):
        raise SpecError(
            f"{out} is of the kind {result.kind}", "only runs, sweeps, checkpoints and imports are exported"
        )
    workload = build(Workload, result.workload)
    if not workload.accelerator.step_seconds:
        raise SpecError(f"{out}: the workload does not compute", "MLPerf Storage's figures need a step time")
    steps = read_steps(out)
    ends = datetime.fromisoformat(result.created.replace("Z", "+00:00")).replace(tzinfo=None)
    start = ends - timedelta(seconds=math.ceil(sum(point.seconds for point in result.points)))
    runs = []
    for number, point in enumerate(result.points):
        rows = steps[steps["point"] == number]
        _require_whole(out, rows, point.ranks)
        runs.append(run_of(result, workload, number, rows, start))
        start += timedelta(seconds=math.ceil(point.seconds))
    return runs


def _require_whole(out: Path, rows: Steps, ranks: int) -> None:
    """Every rank has the same steps, and some epoch is long enough. Raises SpecError."""
    counts = np.unique(rows["rank"], return_counts=True)[1]
    if len(counts) != ranks or len(set(counts.tolist())) != 1:
        raise SpecError(f"{out} has not the same steps of all {ranks} ranks", "run it again")
    first = rows[rows["rank"] == rows["rank"][0]]
    longest = int(np.unique(first["epoch"], return_counts=True)[1].max())
    if longest < LEAST:
        raise SpecError(f"{out} has epochs of {longest} steps", f"MLPerf's formulas need {LEAST} at least")


def mark(result: RunResult) -> dict[str, Any]:
    """What every exported run carries beside its documents."""
    return {
        "made_by": f"feedrate {result.version}",
        "official_submission": False,
        "kind": result.kind,
        "emulated_storage": result.storage.get("shaped_rate") is not None,
        "units": "as DLIO writes them: MB is 2^20 bytes, GB is 2^30 bytes",
    }


def _plain_check(check: Check) -> dict[str, Any]:
    return {**asdict(check), "open": check.open, "closed": check.closed}


def _notice(result: RunResult, checks: Sequence[Check]) -> str:
    lines = [
        f"Made by feedrate {result.version}, from a result of the kind {result.kind}.",
        "This is not an official MLPerf Storage submission: that needs MLPerf's own code, rules and review.",
        "Fields and units are those of MLPerf Storage: its MB is 2^20 bytes, its GB 2^30.",
        "",
    ]
    for check in checks:
        lines += [*check_lines(check), ""]
    return "\n".join(lines)


def _plain(name: str) -> str:
    """A name that is one part of a path, whatever a result says."""
    kept = "".join(letter if letter.isalnum() or letter in "_-" else "_" for letter in name)[:80]
    return kept or "run"
