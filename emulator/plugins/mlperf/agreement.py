"""Compare facts that several documents of one run state, and yield a sentence on each contradiction.

A published tree states most facts twice, so other documents reveal one that is damaged, missing or from
another run. A fact that only one document states is trusted. Pure.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from statistics import fmean
from typing import Any

import numpy as np

from emulator.config.catalog import names
from emulator.config.checkpoint import checkpoint_models, data_parallel, load_checkpoint_model, total
from emulator.config.workload import Workload, load_workload
from emulator.errors import SpecError
from emulator.plugins.mlperf.config import Config, parse_overrides, workload_table
from emulator.plugins.mlperf.figures import Figures
from emulator.plugins.mlperf.logs import Block, block_seconds, epoch_seconds, over_ranks
from emulator.plugins.mlperf.rules import VERSIONS
from emulator.plugins.mlperf.summary import GIB, MIB, Machines, PublishedTraining
from emulator.plugins.mlperf.tree import RunFolder, as_table, stats_file
from emulator.plugins.mlperf.workload import USED
from emulator.record.result import Checkpoint, Flag

_RATE = 0.05
"""Relative difference allowed between a rate and accelerators x batch / step time x AU."""
_EXACT = 0.002
"""Relative difference allowed between two documents that state one number, for rounding."""
_SIZE = 0.02
"""Relative difference allowed for a checkpoint's size and for logged rates."""
_BLOCK = 0.01
"""Largest difference in seconds between a block's log and its start and end. In published runs: 0.002."""
_WINDOW = 60.0
"""Seconds by which an epoch may be outside its run, and a folder's name later than its run's start."""
_STEP = 0.05
"""Share of a step by which load and compute in a log may fall short of proc."""
_EXPECTED = ("start", "num_hosts", "hostname", "num_samples_per_file", "host_memory_GB", "host_cpu_count")
_PUBLISHED = {
    "sample": ("format", "bytes_mean", "bytes_sd", "samples_per_file"),
    "loader": ("batch_size", "workers"),
    "accelerator": ("step_seconds",),
    "training": ("epochs", "au_threshold"),
}
"""Keys that MLPerf's YAML files have, by section of a workload."""
_NAMED = re.compile(r"(\d{8})_(\d{6})")


def documents(reasons: Sequence[str]) -> Flag:
    """Return the flag on documents of a run that are left out, missing or contradictory."""
    return Flag(name="documents", value=len(reasons), threshold=0.0, sentence=f"{'; '.join(reasons)}.")


# ---- One fact in two documents.


def _differ(fact: str, by_place: Mapping[str, Any], share: float = 1e-9) -> Iterator[str]:
    """Yield a sentence if the values of `fact` differ by more than `share`.

    `by_place` has the value by the place that states it (`in config.yaml`), None for unknown.
    """
    stated = {place: value for place, value in by_place.items() if value is not None}
    values = list(stated.values())
    if any(not _same(values[0], value, share) for value in values[1:]):
        yield f"{fact} is " + ", ".join(f"{_short(value)} {place}" for place, value in stated.items())


def _same(one: Any, other: Any, share: float) -> bool:
    try:
        return abs(float(one) - float(other)) <= share * max(abs(float(one)), abs(float(other)))
    except (TypeError, ValueError):
        return str(one).lower() == str(other).lower()


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) and not value.is_integer() else str(value)[:40]


def _number(value: Any) -> float | None:
    """Return a number other than 0, which DLIO writes for an unknown one; else None."""
    return float(value) if isinstance(value, int | float) and value else None


def moment(value: Any) -> datetime | None:
    """Return the ISO 8601 time in `value` without its time zone; None if it is not one."""
    try:
        return datetime.fromisoformat(str(value)).replace(tzinfo=None)
    except ValueError:
        return None


# ---- The configuration.


def stated_config(run: RunFolder) -> Config | None:
    """Return config.yaml, or the parameters in v3.0's metadata; None without either. Raises SpecError."""
    table = run.configs.get("config.yaml") or _parameters(run)
    if not table:
        return None
    where = f"{run.name}/config.yaml"
    return Config(where, workload_table(table, where), next(iter(choices(run).values()), ""))


def _parameters(run: RunFolder) -> Mapping[str, Any]:
    stated = (as_table(as_table(value).get("parameters")) for value in run.metadata.values())
    return next(filter(None, stated), {})


def _overrides(run: RunFolder) -> list[str]:
    texts = run.configs.get("overrides.yaml")
    return [text for text in texts if isinstance(text, str)] if isinstance(texts, list) else []


def choices(run: RunFolder) -> dict[str, str]:
    """Return the chosen workload (MODEL or MODEL-ACCELERATOR) by document, the most reliable first."""
    groups = [text for text in _overrides(run) if "workload=" in text[:12]]
    chosen = {"overrides.yaml": parse_overrides(groups).workload}
    hydra = Config("hydra.yaml", {"hydra": as_table(run.configs.get("hydra.yaml")).get("hydra")})
    chosen["hydra.yaml"] = str(hydra.at("hydra.runtime.choices.workload") or "")
    for name, value in run.metadata.items():
        args = as_table(as_table(value).get("args"))
        model = as_table(value).get("model") or args.get("model") or ""
        accelerator = as_table(value).get("accelerator") or args.get("accelerator_type") or ""
        chosen[name] = f"{model}-{accelerator}".rstrip("-") if isinstance(model, str) else ""
    known = [*names("workloads"), *checkpoint_models()]
    models = {name.partition("-")[0] for name in names("workloads")}
    parts = [_dashed(part) for part in reversed(run.name.split("/")[:-1])]
    named = [*(part for part in parts if part in known), *(part for part in parts if part in models)]
    chosen["the folder"] = next(iter(named), "")
    return {document: _dashed(name) for document, name in chosen.items() if name}


def _chosen(run: RunFolder) -> str | None:
    """Return the workload's most detailed name in any document; None if another contradicts it."""
    names = choices(run).values()
    longest = max(names, key=len, default="")
    agree = all(name == longest or longest.startswith(f"{name}-") for name in names)
    return longest if agree else None


def version_of(run: RunFolder) -> str | None:
    """Return the version whose formulas a training follows; None if unknown.

    Without metadata it is the only version that has the accelerator, if the documents agree on that.
    """
    model, _, accelerator = (_chosen(run) or "").partition("-")
    having = [name for name, version in VERSIONS.items() if accelerator in version.workloads.get(model, ())]
    return run.version or (having[0] if len(having) == 1 else None)


def _dashed(name: str) -> str:
    dashed = re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-").lower()
    return re.sub(r"^llama-?3?-", "llama3-", dashed)[:80]


def of_configuration(run: RunFolder) -> Iterator[str]:
    """Yield a sentence on each difference in the workload, overrides and parameters. Raises SpecError."""
    texts, chosen = _overrides(run), choices(run)
    if _chosen(run) is None:
        yield "the workload is " + ", ".join(f"{name} by {document}" for document, name in chosen.items())
    tasks = Config("", as_table(run.configs.get("hydra.yaml"))).at("hydra.overrides.task")
    if "overrides.yaml" in run.configs and isinstance(tasks, list):
        differ = [text for text in (*texts, *tasks) if (text in texts) != (text in tasks)]
        if differ:
            yield f"overrides.yaml and hydra.yaml differ in {', '.join(map(str, differ[:3]))}"
    if "config.yaml" not in run.configs:
        return
    config = Config("config.yaml", workload_table(run.configs["config.yaml"], f"{run.name}/config.yaml"))
    changes = [change for change in parse_overrides(texts).changes if not change.deletes]
    stated = [("in overrides.yaml", ".".join(change.path), change.value) for change in changes]
    if parameters := _parameters(run):
        other = Config("", workload_table(parameters, f"{run.name}: metadata"))
        same = {key for key, _ in other.leaves()} & {key for key, _ in config.leaves()}
        stated += [("in the metadata", key, other.at(key)) for key in sorted({*USED, *same})]
    for place, key, value in stated:
        configured = config.at(key)
        if not isinstance(configured, Mapping) and not configured is value is None:
            shown = {"in config.yaml": configured, place: value}
            yield from _differ(key, {at: "missing" if v is None else v for at, v in shown.items()})


def _of_catalogue(run: RunFolder, spec: Workload) -> Iterator[str]:
    """Yield a sentence for each published parameter that differs without an override."""
    if spec.name not in names("workloads"):
        return
    changed = {".".join(change.path) for change in parse_overrides(_overrides(run)).changes}
    changed |= {
        key for value in run.metadata.values() for key in as_table(as_table(value).get("override_parameters"))
    }
    overridden = {USED.get(key) for key in changed}
    used, known = asdict(spec), asdict(load_workload(spec.name))
    for section, keys in _PUBLISHED.items():
        for key in keys:
            if f"{section}.{key}" not in overridden:
                values = {"here": used[section][key], f"in MLPerf's {spec.name}": known[section][key]}
                for why in _differ(f"{section}.{key}", values):
                    yield f"{why}: no override says so"


# ---- What every run has.


def _missing(run: RunFolder, ranks: int, logs: bool = True) -> Iterator[str]:
    """Yield sentences on missing documents and keys. v1.0's logs were rarely published."""
    missing = [name for name in ("config.yaml", "hydra.yaml", "overrides.yaml") if name not in run.configs]
    of_ranks = [""] if run.layout == "v1.0" else [str(rank) for rank in range(ranks)]
    expected = {stats_file(rank) for rank in of_ranks if rank not in run.epochs}
    if run.layout != "v1.0" and not run.metadata:
        missing.append("*_metadata.json")
    if logs and (run.logs or run.layout == "v2.0"):
        expected |= {f"{rank}_output.json" for rank in range(ranks) if str(rank) not in run.logs}
    missing += sorted(expected)
    if run.metadata and run.version is None:
        yield f"{next(iter(run.metadata))} is of an unknown version"
    counts = {len(ranks_of) for ranks_of in (run.logs, run.epochs) if ranks_of and "" not in ranks_of}
    stated = [as_table(value).get("num_processes") for value in run.metadata.values()]
    counts |= {value for value in stated if isinstance(value, int)}
    if other := counts - {ranks}:
        yield f"summary.json: num_accelerators is {ranks}, but other documents are of {max(other)}"
    if len({len(epochs) for epochs in run.epochs.values()}) > 1:
        yield "not every per_epoch_stats.json has the same epochs"
    if missing:
        more = f" and {len(missing) - 4} more" if len(missing) > 4 else ""
        yield f"missing: {', '.join(missing[:4])}{more}"
    for key in _EXPECTED:
        if key not in run.summary and (key != "num_samples_per_file" or "num_files_train" in run.summary):
            yield f"summary.json has no {key}"


def _of_machines(run: RunFolder, machines: Machines) -> Iterator[str]:
    """Compare hosts, memory and cores with the copies of /proc."""
    hosts = {len(machines.host_memory_GB), len(machines.host_cpu_count)} - {0, 1}
    if hosts - {machines.num_hosts} or machines.num_hosts > machines.num_accelerators:
        each = " and ".join(map(str, sorted(hosts))) or str(machines.num_accelerators)
        yield f"summary.json: num_hosts is {machines.num_hosts}, but its lists have {each}"
    info = as_table(run.summary.get("host_cpuinfo"))
    kib = str(as_table(run.summary.get("host_meminfo")).get("MemTotal")).partition(" ")[0]
    # The last processor of /proc/cpuinfo is on the last socket.
    sockets, threads = _whole(info.get("physical id"), -1) + 1, _whole(info.get("siblings"))
    facts: dict[str, tuple[Sequence[float], float]] = {
        "host_memory_GB": ([size / GIB for size in machines.memory], _whole(kib) / MIB),
        "host_cpu_count": (machines.cores, sockets * threads),
    }
    for fact, (stated, by_proc) in facts.items():
        furthest = max(stated, key=lambda value: abs(value - by_proc), default=None)
        # Of hosts that DLIO added up only the mean is known, from which the first host may well differ.
        averaged = len(stated) > 1 and not all(getattr(machines, fact)[: len(stated)])
        if averaged and by_proc and sum(stated) > by_proc and not _same(stated[0], by_proc, _EXACT):
            yield f"hosts differ: {fact} is {stated[0]:g} on average, {by_proc:g} by /proc of the first"
            continue
        values = {"of a host in summary.json": furthest, "by its /proc": by_proc or None}
        yield from _differ(fact, values, _EXACT)


def _whole(value: Any, otherwise: int = 0) -> int:
    return int(value) if str(value).isdecimal() else otherwise


def _of_times(run: RunFolder, machines: Machines) -> Iterator[str]:
    """Compare the start of the run with its epochs and with its folder's name."""
    start, end = moment(machines.start), moment(run.summary.get("end"))
    if start is None:
        yield f"summary.json: start is {_short(machines.start)}"
        return
    folder = run.name.rpartition("/")[2]
    if match := _NAMED.fullmatch(folder):
        named = moment(f"{match[1]}T{match[2]}")
        # mlpstorage names the folder before it collects facts about the cluster and starts ranks.
        if named and not -_WINDOW <= (start - named).total_seconds() <= 60 * _WINDOW:
            yield f"the folder's name is {folder}, but summary.json has the start {machines.start}"
        if off := next((name for name in run.metadata if _NAMED.search(name) and folder not in name), ""):
            yield f"{off} is of another run than {folder}"
    parts = [
        part
        for epoch in run.first_epochs.values()
        for part in (epoch, *epoch.values())
        if isinstance(part, Mapping)
    ]
    first = min(filter(None, (moment(part.get("start")) for part in parts)), default=None)
    # Rank 0 writes the summary, so both times are from one clock.
    if first and not -1 <= (first - start).total_seconds() <= 60 * _WINDOW:
        yield f"summary.json: start is {machines.start}, but the first epoch began at {first.isoformat()}"
    for rank, epochs in run.epochs.items():
        for epoch, span in epochs.items():
            spans = [(key, value) for key, value in span.items() if isinstance(value, Mapping)]
            for key, value in [("", span)] * ("start" in span) + spans:
                if why := _why_odd(value, start, end):
                    yield f"{stats_file(rank)}: epoch {epoch}{f', {key}' if key else ''}: {why}"
                    return  # there may be thousands


def _why_odd(span: Mapping[str, Any], start: datetime, end: datetime | None) -> str:
    begin, finish = moment(span.get("start")), moment(span.get("end"))
    try:
        seconds = float(span.get("duration", "nan"))
    except (TypeError, ValueError):
        return f"its duration is {_short(span.get('duration'))}"
    if begin is None or (finish is None and "end" in span):
        return "its start or end is missing"
    if (begin - start).total_seconds() < -_WINDOW or (end and (begin - end).total_seconds() > _WINDOW):
        return "it is outside its run"
    apart = (finish - begin).total_seconds() if finish else seconds
    # An epoch ends when its loader is torn down; v3.0's duration ends with its last step, hundredths of a
    # second after its last block.
    blocks = [moment(part.get("end")) for part in span.values() if isinstance(part, Mapping)]
    stepped = max(((part - begin).total_seconds() for part in blocks if part), default=apart)
    room = 0.02 + 0.001 * seconds
    if not math.isnan(seconds) and not stepped - room <= seconds <= apart + room:
        return f"its duration is {seconds:g} s, but from start to end it took {apart:g} s"
    return ""


# ---- Trainings.


def of_training(
    run: RunFolder, published: PublishedTraining, spec: Workload, figures: Figures, blocks: Sequence[Block]
) -> list[str]:
    """Return a sentence on each missing or contradictory document of a training. Raises SpecError."""
    return [
        *_missing(run, published.num_accelerators),
        *of_configuration(run),
        *_of_catalogue(run, spec),
        *_of_summary(run, published, spec),
        *_of_machines(run, published),
        *_of_times(run, published),
        *_of_rate(published, spec, figures),
        *_of_logs(run, published, spec, blocks),
    ]


def _of_rate(published: PublishedTraining, spec: Workload, figures: Figures) -> Iterator[str]:
    """Compare the published rate with accelerators x batch / step time x AU."""
    ideal = published.num_accelerators * spec.ideal_samples_per_second
    rate = published.mean_rate
    steps = published.steps_per_epoch(spec.loader.batch_size)
    skips = figures.skips or 0
    counted = rate * (steps - 1) / (steps - skips) if skips and steps > skips else rate
    by_au = ideal * figures.au_published
    slow_start = figures.skips == 0 and counted < by_au  # this throughput includes the start-up
    if np.isfinite(ideal) and not slow_start and not _same(counted, by_au, _RATE):
        yield (
            f"{rate:,.6g} samples/s were published, {by_au:,.6g} are "
            f"{published.num_accelerators} accelerators x batch {spec.loader.batch_size} / "
            f"{spec.accelerator.step_seconds:g} s x AU {figures.au_published * 100:.2f} %"
        )


def _of_summary(run: RunFolder, published: PublishedTraining, spec: Workload) -> Iterator[str]:
    """Compare numbers in the summary with each other and with the configuration."""
    metric, config = as_table(run.summary.get("metric")), stated_config(run)
    au, epochs = 100 * published.mean_au, len(published.au)
    means = {
        "train_au_mean_percentage": au,
        "train_throughput_mean_samples_per_second": published.mean_rate,
        "train_io_mean_MB_per_second": published.mean_rate * spec.sample.bytes_mean / MIB,
    }
    for key, mean in means.items():
        numbers = {"in summary.json": _number(metric.get(key)), "by its other numbers": mean}
        yield from _differ(key, numbers, _EXACT)
    yield from _differ("epochs", {"in summary.json": run.summary.get("epochs"), "by its metric": epochs})
    met = {True: "met", False: "not met", None: None}
    limit = spec.training.au_threshold
    verdicts = {"by the summary": met[published.met], f"by the limit of {limit:.0%}": met[au >= 100 * limit]}
    yield from _differ(f"AU {au:.2f} %", verdicts)
    for key in ("num_files_train", "num_samples_per_file"):
        configured = config.at(f"dataset.{key}") if config else None
        values = {"in config.yaml": configured, "in summary.json": getattr(published, key)}
        yield from _differ(f"dataset.{key}", values)
    if any(epoch_seconds(run, epoch) is None for epoch in range(epochs)):
        yield "per_epoch_stats.json does not have the times of every epoch"


def _of_logs(
    run: RunFolder, published: PublishedTraining, spec: Workload, blocks: Sequence[Block]
) -> Iterator[str]:
    """Compare the logs with the summary, and parts of logged steps with the whole."""
    if not blocks:
        return
    logged_name = {"in 0_output.json": run.logs["0"].get("hostname") or None}
    yield from _differ("hostname", {**logged_name, "in summary.json": published.hostname or None})
    step = spec.accelerator.step_seconds
    for block in blocks:
        rest = block.proc - block.load - block.compute
        # v1.0 logs nominal compute, so that a stalled sleep is in the rest; the others log measured compute.
        nominal = run.layout == "v1.0"
        room = _STEP * step + (1.0 if nominal else 0.05)
        where = f"{block.rank}_output.json, epoch {block.epoch + 1}"
        if (rest < -0.01 * step - 0.001).any() or (rest > room).any():
            worst = int(np.argmax(np.abs(rest)))
            yield f"{where}: load + compute - proc of step {worst + 1} is {-rest[worst]:+.3g} s"
            return
        least, most = block.compute.min(), block.compute.max()
        if least < step * (1 - _EXACT) or (nominal and most > step * (1 + _EXACT)):
            yield f"{where}: compute is {least:g} to {most:g} s, not {step:g}{'' if nominal else ' at least'}"
            return
        # Steps that are too long in the log leave no time for the barriers.
        steps_took, by_au = block.proc[1:].sum(), block.compute[1:].sum() / block.au if block.au else np.inf
        if steps_took > by_au * (1 + _EXACT):
            yield f"{where}: steps after the first took {steps_took:.4g} s, by AU with barriers {by_au:.4g}"
            return
        whole, timed = by_au + block.proc[0], block_seconds(run, block)
        if timed and block.au and abs(whole - timed) > _BLOCK:
            yield f"{where}: by its first step and AU it took {whole:.6g} s, by its start and end {timed:.6g}"
            return
    each = np.array(over_ranks(blocks, [block.throughput for block in blocks]))
    logged = published.num_accelerators * each
    if not np.allclose(logged, published.metric.train_throughput_samples_per_second, rtol=_SIZE):
        yield f"the logs have {np.mean(logged):,.6g} samples/s, summary.json {published.mean_rate:,.6g}"


# ---- Checkpoints.


def of_checkpoints(
    run: RunFolder, workload: Mapping[str, Any], machines: Machines, checkpoints: Sequence[Checkpoint]
) -> list[str]:
    """Return a sentence on each missing or contradictory document of checkpoints. Raises SpecError."""
    return [
        *_missing(run, machines.num_accelerators, logs=False),
        *of_configuration(run),
        *_of_model(workload, machines.num_accelerators, checkpoints),
        *_of_machines(run, machines),
        *_of_times(run, machines),
        *_of_checkpoint_metric(run, checkpoints),
    ]


def _of_model(workload: Mapping[str, Any], ranks: int, checkpoints: Sequence[Checkpoint]) -> Iterator[str]:
    """Compare shape, counts and size with those of the model in the catalogue."""
    name = str(workload["name"])
    if name not in checkpoint_models():
        return
    model = load_checkpoint_model(name)
    known = asdict(model)
    parts = [(part, key) for part in ("shape", "parallelism", "state") for key in known[part]]
    differ = [f"{part}.{key}" for part, key in parts if workload[part][key] != known[part][key]]
    if differ:
        yield f"{', '.join(differ)} of the model differ from those of {name}"
    directions = [checkpoint.direction for checkpoint in checkpoints]
    for direction in ("write", "read"):
        made, configured = directions.count(direction), workload["io"][f"{direction}s"]
        if made != configured:
            yield f"{made} checkpoint {direction}s have times, but config.yaml asks for {configured}"
    try:
        expected = total(model, data_parallel(model, ranks, workload["subset"]), ranks)
    except SpecError as error:
        yield error.what
        return
    sizes = {"by the summary": checkpoints[0].bytes / GIB, "by its model and ranks": expected / GIB}
    yield from _differ("GiB of a checkpoint", sizes, _SIZE)


def _of_checkpoint_metric(run: RunFolder, checkpoints: Sequence[Checkpoint]) -> Iterator[str]:
    """Compare the means in the summary with those of rank 0, from which DLIO takes them."""
    if len({repr([sorted(epoch) for epoch in epochs.values()]) for epochs in run.epochs.values()}) > 1:
        yield "not every per_epoch_stats.json has the same checkpoints"
    metric, size = as_table(run.summary.get("metric")), checkpoints[0].bytes / GIB
    first = run.first_epochs.values()
    for verb in ("save", "load"):
        spans = [span for epoch in first for key, span in epoch.items() if key.startswith(f"{verb}_ckpt")]
        seconds = [float(span["duration"]) for span in spans]
        means = {"duration_mean_seconds": seconds, "io_mean_GB_per_second": [size / each for each in seconds]}
        for name, values in means.items() if seconds else ():
            key = f"{verb}_checkpoint_{name}"
            stated = {"in summary.json": metric.get(key, "missing"), "by its rank 0": fmean(values)}
            yield from _differ(key, stated, _EXACT)
