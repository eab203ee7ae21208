"""A checkpoint run as MLPerf Storage v2.0's documents, and held against its rules.

Units are DLIO's: its GB is 2^30 bytes. Means and deviations are over checkpoints; throughput is the whole
size / the slowest rank's seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from statistics import fmean, pstdev
from typing import Any

from emulator.mlperf.folder import RunFolder
from emulator.mlperf.rules import BOTH, Check, Rule
from emulator.record.result import Checkpoint, RunResult

GIB = 2**30
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
    return RunFolder(name=name, layout="v2.0", summary=_summary(result, start, ends), configs=configs)


def _summary(result: RunResult, start: datetime, ends: datetime) -> dict[str, Any]:
    first, hosts = result.checkpoints[0], list(result.environment.get("hosts", ()))
    metric: dict[str, float] = {}
    for direction, word in _WORDS.items():
        found = [one for one in result.checkpoints if one.direction == direction]
        if found:
            metric |= _figures(f"{word}_checkpoint", found)
    metric["checkpoint_size_GB"] = first.bytes / GIB
    memory = int(result.environment.get("memory_bytes", 0)) / GIB
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
    rates = [one.bytes_per_second / GIB for one in found]
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
