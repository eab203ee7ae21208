"""Import published checkpoint runs (MLPerf Storage v2.0 and v3.0) as results of the kind checkpoint.

DLIO logs the start and duration of each rank's checkpoints (`save_ckptN`, `load_ckptN`) and the size of all
ranks together. Its GB is 2^30 bytes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, Literal, Self

import numpy as np

from emulator.config.checkpoint import parameters
from emulator.errors import SpecError
from emulator.plugins.mlperf.agreement import documents, moment, of_checkpoints, stated_config
from emulator.plugins.mlperf.from_yaml import checkpoint_model
from emulator.plugins.mlperf.summary import GIB, CheckpointMetric, Machines, read_machines, read_metric
from emulator.plugins.mlperf.tree import Imported, RunFolder, as_table
from emulator.record.result import Checkpoint, RunResult, new_result
from emulator.record.steps import STEP, Steps

_SPAN = re.compile(r"(save|load)_ckpt(\d{1,6})")
_LONGEST = 1e9  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedCheckpoints(Imported):
    """A checkpoint run with its writes and reads."""

    workload: Mapping[str, Any]
    """The model and its parallelism, as in a result of the kind checkpoint."""
    machines: Machines
    start: datetime
    checkpoints: tuple[Checkpoint, ...]
    """`began` counts from the start of this run."""

    @property
    def group(self) -> object:
        # Writes and reads may be separate runs.
        return self.run.name.rpartition("/")[0], repr(self.workload["shape"]), self.machines.num_accelerators

    @property
    def order(self) -> str:
        return self.start.isoformat()  # a checkpoint is written before it is read

    @property
    def named(self) -> tuple[str, str]:
        return str(self.workload["name"]), f"{self.machines.num_accelerators}-ranks"

    @property
    def line(self) -> str:
        return f"{self.machines.num_accelerators} ranks, {self.run.name}: {len(self.checkpoints)} checkpoints"

    def result(self, runs: Sequence[Self], command: Sequence[str]) -> tuple[RunResult, Steps]:
        machines = self.machines
        memory = sum(machines.memory) // machines.num_hosts
        checkpoints = []
        for written in runs:
            later = (written.start - self.start).total_seconds()
            checkpoints += [replace(made, began=made.began + later) for made in written.checkpoints]
        named = [machines.hostname, *(f"host {number}" for number in range(2, machines.num_hosts + 1))]
        joined = new_result(
            "checkpoint",
            command=tuple(command),
            workload=self.workload,
            dataset={"path": "", "bytes": checkpoints[0].bytes},
            storage={"cache": "unknown", "direct": None},
            loader="DLIO's",
            label=self.run.system,
            flags=tuple(documents(written.said) for written in runs if written.said),
            environment={
                "memory_bytes": memory,
                "memory_of_hosts": dict.fromkeys(named, memory) if memory else {},
                "cores": next(iter(machines.cores), 0),
                "hosts": named,
                "imported": [_provenance(written) for written in runs],
            },
            checkpoints=tuple(checkpoints),
        )
        return joined, np.zeros(0, STEP)


def read_checkpoints(run: RunFolder) -> ImportedCheckpoints:
    """Read the checkpoints of `run`. Raises SpecError naming what is missing or wrong."""
    config = stated_config(run)
    if config is None:
        raise SpecError(f"{run.name}: a checkpoint run without its configuration")
    name = re.sub(r"^llama_", "llama3-", config.model("model"))
    model = checkpoint_model(config, re.sub(r"[^A-Za-z0-9.-]", "-", name))
    machines, metric = read_machines(run), read_metric(run, CheckpointMetric)
    size = round(metric.checkpoint_size_GB * GIB)
    ranks = machines.num_accelerators
    start = _moment(machines.start, f"{run.name}/summary.json: start")
    spread = model.parallelism
    group = spread.tensor * spread.pipeline
    subset = config.text("checkpoint.mode") == "subset" or ranks % group > 0
    workload = {
        **asdict(model),
        "title": f"Checkpoints: {model.title}",
        "parameters": parameters(model.shape),
        "subset": subset,
        "scale": "1",
        "data_parallel": spread.data if subset else ranks // group,
    }
    checkpoints = tuple(_checkpoints(run, machines, size, start))
    return ImportedCheckpoints(
        run=run,
        workload=workload,
        said=(*run.unread, *of_checkpoints(run, workload, machines, checkpoints)),
        machines=machines,
        start=start,
        checkpoints=checkpoints,
    )


def _checkpoints(run: RunFolder, machines: Machines, size: int, start: datetime) -> list[Checkpoint]:
    """Return all writes and reads in order of their start. Raises SpecError without the times of any."""
    spans: dict[tuple[str, int], dict[int, tuple[datetime, float]]] = {}
    for rank, epochs in run.epochs.items():
        for epoch in epochs.values():
            for key, span in epoch.items():
                match = _SPAN.fullmatch(key)
                if match is None:
                    continue
                where = f"{run.name}: {key} of rank {rank or 0}"
                values = as_table(span)
                seconds = _seconds(values.get("duration"), where)
                began = _moment(values.get("start"), f"{where}: start")
                spans.setdefault((match[1], int(match[2])), {})[int(rank or 0)] = (began, seconds)
    if not spans:
        raise SpecError(f"{run.name}: no per_epoch_stats.json has the times of its checkpoints")
    checkpoints = []
    for (verb, number), of_ranks in spans.items():
        slowest = max(of_ranks, key=lambda rank: of_ranks[rank][1])
        seconds = of_ranks[slowest][1]
        direction: Literal["write", "read"] = "write" if verb == "save" else "read"
        checkpoints.append(
            Checkpoint(
                direction=direction,
                number=number - 1,
                ranks=machines.num_accelerators,
                hosts=machines.num_hosts,
                bytes=size,
                began=(min(began for began, _ in of_ranks.values()) - start).total_seconds(),
                seconds=seconds,
                fastest_seconds=min(seconds for _, seconds in of_ranks.values()),
                bytes_per_second=size / seconds,
                slowest_rank=slowest,
                cpu_seconds=math.nan,  # not recorded
            )
        )
    return sorted(checkpoints, key=lambda made: made.began)


def _provenance(written: ImportedCheckpoints) -> dict[str, Any]:
    """Return the published figures of a run. DLIO's means are of rank 0 alone."""
    run, config = written.run, stated_config(written.run)
    end, synced = moment(run.summary.get("end")), config and config.at("checkpoint.fsync")
    metric = {key: value for key, value in run.summary["metric"].items() if isinstance(value, int | float)}
    return {
        "run": run.name,
        "layout": run.layout,
        "version": run.version,
        "start": written.start.isoformat(),
        "end": end and end.isoformat(),
        "fsync": synced if isinstance(synced, bool) else None,
        "same_filesystem": run.same_filesystem,
        "published": metric,
    }


def _seconds(value: Any, where: str) -> float:
    """Return a duration in seconds, which v2.0 writes as text. Raises SpecError."""
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = 0.0
    if not 0 < seconds < _LONGEST:
        raise SpecError(f"{where}: duration must be a number of seconds, not {str(value)[:40]!r}")
    return seconds


def _moment(value: Any, where: str) -> datetime:
    time = moment(value)
    if time is None:
        raise SpecError(f"{where} must be a time of day (ISO 8601), not {str(value)[:40]!r}")
    return time
