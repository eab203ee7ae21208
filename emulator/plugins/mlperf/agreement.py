"""Compare what the documents of one run say of the same thing: a sentence for everything that does not agree.

A published tree says most things twice. What a document says that is damaged, of another run, or missing is
caught by the other ones; what only one says is believed. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

import numpy as np

from emulator.config.catalog import names
from emulator.config.checkpoint import checkpoint_models, data_parallel, load_checkpoint_model, total
from emulator.config.workload import Workload, load_workload
from emulator.errors import SpecError
from emulator.plugins.mlperf.config import Config, parse_overrides, workload_table
from emulator.plugins.mlperf.figures import Block, Figures, PublishedTraining, epoch_seconds
from emulator.plugins.mlperf.summary import GIB, MIB, Machines
from emulator.plugins.mlperf.tree import RunFolder
from emulator.plugins.mlperf.workload import USED
from emulator.record.result import Checkpoint, Flag

RATE = 0.05
"""Share by which a rate may differ from what accelerators, batch, step time and AU give."""
_EXACT = 0.002
"""Share by which two documents may differ in what is one number, rounded."""
_MEMORY = 0.05
_WINDOW = 60.0
"""Seconds by which an epoch may lie outside its run, and a folder's name beside its run's start."""
_STEP = 0.05
"""Share of a step by which the parts of a logged step may miss its whole."""
_EXPECTED = ("start", "num_hosts", "hostname", "num_samples_per_file", "host_memory_GB", "host_cpu_count")
_PUBLISHED = {
    "sample": ("format", "bytes_mean", "bytes_sd", "samples_per_file"),
    "loader": ("batch_size", "workers"),
    "accelerator": ("step_seconds",),
    "training": ("epochs", "au_threshold"),
}
"""Section of a workload -> keys that MLPerf's YAML file gives."""
_NAMED = re.compile(r"(\d{8})_(\d{6})")


def stated_config(run: RunFolder) -> Config | None:
    """Return config.yaml, or the parameters in v3.0's metadata; None without. Raises SpecError."""
    table = run.configs.get("config.yaml") or _parameters(run)
    if not table:
        return None
    where = f"{run.name}/config.yaml"
    return Config(where, workload_table(table, where), next(iter(choices(run).values()), ""))


def _parameters(run: RunFolder) -> Mapping[str, Any]:
    stated = (value.get("parameters") for value in run.metadata.values() if isinstance(value, Mapping))
    return next((value for value in stated if isinstance(value, Mapping) and value), {})


def _overrides(run: RunFolder) -> list[str]:
    texts = run.configs.get("overrides.yaml")
    return [text for text in texts if isinstance(text, str)] if isinstance(texts, list) else []


def choices(run: RunFolder) -> dict[str, str]:
    """Return document -> the workload that it says was chosen, MODEL or MODEL-ACCELERATOR; surest first."""
    groups = [text for text in _overrides(run) if "workload=" in text[:12]]
    found = {"overrides.yaml": parse_overrides(groups).workload}
    hydra = Config("hydra.yaml", {"hydra": _table(run.configs.get("hydra.yaml")).get("hydra")})
    found["hydra.yaml"] = str(hydra.at("hydra.runtime.choices.workload") or "")
    for name, value in run.metadata.items():
        args = _table(_table(value).get("args"))
        model = _table(value).get("model") or args.get("model") or ""
        accelerator = _table(value).get("accelerator") or args.get("accelerator_type") or ""
        found[name] = f"{model}-{accelerator}".rstrip("-") if isinstance(model, str) else ""
    known = [*names("workloads"), *checkpoint_models()]
    models = {name.partition("-")[0] for name in names("workloads")}
    parts = [_dashed(part) for part in reversed(run.name.split("/")[:-1])]
    named = [*(part for part in parts if part in known), *(part for part in parts if part in models)]
    found["the folder"] = next(iter(named), "")
    return {document: _dashed(name) for document, name in found.items() if name}


def _dashed(name: str) -> str:
    dashed = re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-").lower()
    return re.sub(r"^llama-?3?-", "llama3-", dashed)[:80]


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def of_configuration(run: RunFolder) -> Iterator[str]:
    """Say where the documents differ in what was chosen, overridden and set. Raises SpecError."""
    texts, chosen = _overrides(run), choices(run)
    longest = max(chosen.values(), key=len, default="")
    if any(name != longest and not longest.startswith(f"{name}-") for name in chosen.values()):
        yield "the workload is " + ", ".join(f"{name} by {document}" for document, name in chosen.items())
    tasks = Config("", _table(run.configs.get("hydra.yaml"))).at("hydra.overrides.task")
    if "overrides.yaml" in run.configs and isinstance(tasks, list):
        differ = [text for text in (*texts, *tasks) if (text in texts) != (text in tasks)]
        if differ:
            yield f"overrides.yaml and hydra.yaml differ in {', '.join(map(str, differ[:3]))}"
    if "config.yaml" not in run.configs:
        return
    config = Config("config.yaml", workload_table(run.configs["config.yaml"], f"{run.name}/config.yaml"))
    changes = [change for change in parse_overrides(texts).changes if not change.deletes]
    told = [("overrides.yaml", ".".join(change.path), change.value) for change in changes]
    if parameters := _parameters(run):
        other = Config("", workload_table(parameters, f"{run.name}: metadata"))
        same = {key for key, _ in other.leaves()} & {key for key, _ in config.leaves()}
        told += [("the metadata", key, other.at(key)) for key in sorted({*USED, *same})]
    for document, key, value in told:
        own = config.at(key)
        if not isinstance(own, Mapping) and not _same(own, value):
            yield f"{key} is {_short(own)} in config.yaml, {_short(value)} in {document}"


def _same(one: Any, other: Any) -> bool:
    try:
        return abs(float(one) - float(other)) <= 1e-9 * abs(float(one))
    except (TypeError, ValueError):
        return str(one).lower() == str(other).lower()


def _short(value: Any) -> str:
    return "not there" if value is None else str(value)[:40]


def _of_catalogue(run: RunFolder, spec: Workload) -> Iterator[str]:
    """Say which published parameters differ, although no override says so."""
    if spec.name not in names("workloads"):
        return
    overridden = {USED.get(".".join(change.path)) for change in parse_overrides(_overrides(run)).changes}
    own, known = asdict(spec), asdict(load_workload(spec.name))
    for section, keys in _PUBLISHED.items():
        for key in keys:
            value, published = own[section][key], known[section][key]
            if f"{section}.{key}" not in overridden and not _close(value, published, _EXACT):
                yield (
                    f"{section}.{key} is {value}, in MLPerf's {spec.name} {published}: no override says so"
                )


def _close(one: Any, other: Any, share: float) -> bool:
    if isinstance(one, str) or isinstance(other, str):
        return bool(one == other)
    return bool(abs(one - other) <= share * max(abs(one), abs(other)))


def documents(said: Sequence[str]) -> Flag:
    """Say what of a run's documents was left out, is missing, or does not agree."""
    return Flag(name="documents", value=len(said), threshold=0.0, sentence=f"{'; '.join(said)}.")


def of_training(
    run: RunFolder, published: PublishedTraining, spec: Workload, figures: Figures, blocks: Sequence[Block]
) -> list[str]:
    """Say where the documents of a training do not agree, or one is missing. Raises SpecError."""
    return [
        *_missing(run, published.accelerators),
        *of_configuration(run),
        *_of_catalogue(run, spec),
        *_of_summary(run, published, spec),
        *_of_times(run, published.machines),
        *of_rate(published, spec, figures),
        *_of_logs(run, published, spec, blocks),
    ]


def of_rate(published: PublishedTraining, spec: Workload, figures: Figures) -> Iterator[str]:
    """Compare the published rate with accelerators x batch / step time x AU. Both numbers are said."""
    ideal = published.accelerators * spec.ideal_samples_per_second
    rate = sum(published.samples_per_second) / len(published.samples_per_second)
    steps = published.steps_per_epoch(spec.loader.batch_size)
    skips = figures.skips or 0
    counted = rate * (steps - 1) / (steps - skips) if skips and steps > skips else rate
    slow_start = figures.skips == 0 and counted < ideal * figures.au_published  # a figure of its own
    if np.isfinite(ideal) and not slow_start and not _close(counted, ideal * figures.au_published, RATE):
        yield (
            f"{rate:,.6g} samples/s were published, {ideal * figures.au_published:,.6g} are "
            f"{published.accelerators} accelerators x batch {spec.loader.batch_size} / "
            f"{spec.accelerator.step_seconds:g} s x AU {figures.au_published * 100:.2f} %"
        )


def _missing(run: RunFolder, ranks: int, logs: bool = True) -> Iterator[str]:
    """Say which documents are not there. v1.0's logs were rarely published."""
    missing = [name for name in ("config.yaml", "hydra.yaml", "overrides.yaml") if name not in run.configs]
    if run.layout == "v1.0":
        expected = {"per_epoch_stats.json"} - ({"per_epoch_stats.json"} if "" in run.epochs else set())
    else:
        expected = {f"{rank}_per_epoch_stats.json" for rank in range(ranks) if str(rank) not in run.epochs}
        missing += ["*_metadata.json"] * (not run.metadata)
    if logs and (run.logs or run.layout == "v2.0"):
        expected |= {f"{rank}_output.json" for rank in range(ranks) if str(rank) not in run.logs}
    missing += sorted(expected)
    if run.metadata and run.version is None:
        yield f"{next(iter(run.metadata))} is of no version that is known"
    counts = {len(own) for own in (run.logs, run.epochs) if own and "" not in own} | {
        value["num_processes"]
        for value in run.metadata.values()
        if isinstance(value, Mapping) and isinstance(value.get("num_processes"), int)
    }
    if other := counts - {ranks}:
        yield f"summary.json: num_accelerators is {ranks}, its other documents are of {max(other)}"
    if len({len(epochs) for epochs in run.epochs.values()}) > 1:
        yield "not every per_epoch_stats.json has the same epochs"
    if missing:
        more = f" and {len(missing) - 4} more" if len(missing) > 4 else ""
        yield f"not there: {', '.join(missing[:4])}{more}"
    for key in _EXPECTED:
        if key not in run.summary and (key != "num_samples_per_file" or "num_files_train" in run.summary):
            yield f"summary.json has no {key}"


def _of_summary(run: RunFolder, published: PublishedTraining, spec: Workload) -> Iterator[str]:
    """Compare numbers of the summary with each other and with the configuration."""
    metric, machines = _table(run.summary.get("metric")), published.machines
    rate = sum(published.samples_per_second) / len(published.samples_per_second)
    au = 100 * sum(published.au) / len(published.au)
    told = {
        "train_au_mean_percentage": au,
        "train_throughput_mean_samples_per_second": rate,
        "train_io_mean_MB_per_second": rate * spec.sample.bytes_mean / MIB,
    }
    for key, value in told.items():
        stated = metric.get(key)
        if isinstance(stated, int | float) and stated and not _close(stated, value, _EXACT):
            yield f"summary.json: {key} is {stated:g}, {value:g} by its other numbers"
    if run.summary.get("epochs", len(published.au)) != len(published.au):
        yield f"summary.json: epochs is {_short(run.summary['epochs'])}, and it has {len(published.au)}"
    if published.met is not None and published.met != (au >= 100 * spec.training.au_threshold):
        met = "met" if published.met else "not met"
        yield f"AU {au:.2f} % is {met} by the summary, {spec.training.au_threshold:.0%} were asked for"
    config = stated_config(run)
    counts = {
        "dataset.num_files_train": published.files,
        "dataset.num_samples_per_file": published.samples_per_file,
    }
    for key, count in counts.items():
        asked = config.at(key) if config else None
        if asked is not None and not _same(asked, count):
            yield f"{key} is {_short(asked)} in config.yaml, {count} in summary.json"
    if any(epoch_seconds(run, epoch) is None for epoch in range(len(published.au))):
        yield "per_epoch_stats.json does not time every epoch"
    yield from _of_machines(run, machines)


def _of_machines(run: RunFolder, machines: Machines) -> Iterator[str]:
    hosts = {len(machines.host_memory_GB), len(machines.host_cpu_count)} - {0, 1}
    if hosts - {machines.num_hosts} or machines.num_hosts > machines.num_accelerators:
        each = " and ".join(map(str, sorted(hosts))) or str(machines.num_accelerators)
        yield f"summary.json: num_hosts is {machines.num_hosts}, and its lists have {each}"
    stated = str(_table(run.summary.get("host_meminfo")).get("MemTotal", "")).partition(" ")[0]
    memory = sum(machines.host_memory_GB[:1])
    if stated.isdecimal() and memory and len(set(machines.host_memory_GB)) == 1:
        total_gib = int(stated) / MIB
        if not _close(memory, total_gib, _MEMORY):
            yield f"host_memory_GB is {memory:.4g} in summary.json, and MemTotal {total_gib:.4g}"
    siblings = str(_table(run.summary.get("host_cpuinfo")).get("siblings", ""))
    cores = set(machines.host_cpu_count)
    if siblings.isdecimal() and int(siblings) and len(cores) == 1 and (odd := cores.pop()) % int(siblings):
        yield f"summary.json: host_cpu_count is {odd:g}, and a socket has {siblings}"


def _of_times(run: RunFolder, machines: Machines) -> Iterator[str]:
    """Compare when the run began with its epochs and with the name of its folder."""
    start, end = _moment(machines.start), _moment(run.summary.get("end"))
    if start is None:
        yield f"summary.json: start is {_short(machines.start)}"
        return
    folder = run.name.rpartition("/")[2]
    if match := _NAMED.fullmatch(folder):
        named = _moment(f"{match[1]}T{match[2]}")
        # mlpstorage names the folder before it collects facts about the cluster and starts ranks.
        if named and not -_WINDOW <= (start - named).total_seconds() <= 60 * _WINDOW:
            yield f"the folder is called {folder}, and summary.json says {machines.start}"
        if off := next((name for name in run.metadata if _NAMED.search(name) and folder not in name), ""):
            yield f"{off} is of another run than {folder}"
    for rank, epochs in run.epochs.items():
        for epoch, span in epochs.items():
            spans = [(key, value) for key, value in span.items() if isinstance(value, Mapping)]
            for key, value in [("", span)] * ("start" in span) + spans:
                if why := _span_is_odd(value, start, end):
                    where = f"{rank}{'_' if rank else ''}per_epoch_stats.json"
                    yield f"{where}: epoch {epoch}{f', {key}' if key else ''}: {why}"
                    return  # the first one of as many as there may be


def _span_is_odd(span: Mapping[str, Any], start: datetime, end: datetime | None) -> str:
    begin, finish = _moment(span.get("start")), _moment(span.get("end"))
    try:
        seconds = float(span.get("duration", "nan"))
    except (TypeError, ValueError):
        return f"its duration is {_short(span.get('duration'))}"
    if begin is None or (finish is None and "end" in span):
        return "its times are not there"
    if (begin - start).total_seconds() < -_WINDOW or (end and (begin - end).total_seconds() > _WINDOW):
        return "it is not within its run"
    apart = (finish - begin).total_seconds() if finish else seconds
    if abs(apart - seconds) > 0.02 + 0.001 * seconds:  # False where no duration is stated
        return f"it took {seconds:g} s, and from start to end it is {apart:g}"
    return ""


def _moment(value: Any) -> datetime | None:
    try:
        return datetime.fromisoformat(str(value)).replace(tzinfo=None)
    except ValueError:
        return None


def _of_logs(
    run: RunFolder, published: PublishedTraining, spec: Workload, blocks: Sequence[Block]
) -> Iterator[str]:
    """Compare the logs with the summary, and the parts of their steps with the whole."""
    if not blocks:
        return
    hostname = run.logs.get("0", {}).get("hostname")
    if hostname and published.machines.hostname and hostname != published.machines.hostname:
        yield f"0_output.json is of {_short(hostname)}, summary.json of {published.machines.hostname[:40]}"
    step = spec.accelerator.step_seconds
    for block in blocks:
        rest = block.proc - block.load - block.compute
        # v1.0 logs nominal compute, so that a stalled sleep is in the rest; the others log it as it was.
        nominal = run.layout == "v1.0"
        room = _STEP * step + (1.0 if nominal else 0.05)
        where = f"{block.rank}_output.json, epoch {block.epoch + 1}"
        if (rest < -0.01 * step - 0.001).any() or (rest > room).any():
            worst = int(np.argmax(np.abs(rest)))
            yield f"{where}: load and compute of step {worst + 1} are {-rest[worst]:+.3g} s beside its proc"
            return
        if nominal and not np.allclose(block.compute, step, rtol=_EXACT):
            yield f"{where}: compute is {block.compute.min():g} to {block.compute.max():g} s, not {step:g}"
            return
    rates: dict[int, float] = {}
    steps: dict[int, int] = {}
    for block in blocks:
        rates[block.epoch] = rates.get(block.epoch, 0.0) + block.throughput * block.steps
        steps[block.epoch] = steps.get(block.epoch, 0) + block.steps
    logged = [published.accelerators * rates[epoch] / steps[epoch] for epoch in sorted(rates)]
    if not np.allclose(logged, published.samples_per_second, rtol=0.02):
        yield (
            f"the logs have {np.mean(logged):,.6g} samples/s, summary.json "
            f"{np.mean(published.samples_per_second):,.6g}"
        )


def of_checkpoints(
    run: RunFolder,
    workload: Mapping[str, Any],
    machines: Machines,
    subset: bool,
    checkpoints: Sequence[Checkpoint],
) -> list[str]:
    """Say where the documents of a run of checkpoints do not agree, or one is missing. Raises SpecError."""
    return [
        *_missing(run, machines.num_accelerators, logs=False),
        *of_configuration(run),
        *_of_model(workload, machines.num_accelerators, subset, checkpoints),
        *_of_machines(run, machines),
        *_of_times(run, machines),
        *_of_checkpoint_metric(run, checkpoints),
        *_of_spans(run),
    ]


def _of_model(
    workload: Mapping[str, Any], ranks: int, subset: bool, checkpoints: Sequence[Checkpoint]
) -> Iterator[str]:
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
        made, asked = directions.count(direction), workload["io"][f"{direction}s"]
        if made != asked:
            yield f"{made} checkpoints were timed to {direction}, config.yaml asks for {asked}"
    try:
        expected = total(model, data_parallel(model, ranks, subset), ranks)
    except SpecError as error:
        yield error.what
        return
    size = checkpoints[0].bytes
    if not _close(size, expected, 0.02):
        yield f"a checkpoint has {size / GIB:.4g} GiB, {expected / GIB:.4g} by its model and ranks"


def _of_spans(run: RunFolder) -> Iterator[str]:
    if len({repr([sorted(epoch) for epoch in epochs.values()]) for epochs in run.epochs.values()}) > 1:
        yield "not every per_epoch_stats.json times the same checkpoints"


def _of_checkpoint_metric(run: RunFolder, checkpoints: Sequence[Checkpoint]) -> Iterator[str]:
    metric = _table(run.summary.get("metric"))
    for verb, direction in (("save", "write"), ("load", "read")):
        made = [one for one in checkpoints if one.direction == direction]
        if not made:
            continue
        ranks = [(one.fastest_seconds, one.seconds) for one in made]
        rates = [tuple(one.bytes / GIB / s for s in of) for one, of in zip(made, ranks, strict=True)]
        for name, found in (("duration_mean_seconds", ranks), ("io_mean_GB_per_second", rates)):
            key = f"{verb}_checkpoint_{name}"
            low, high = sorted(sum(column) / len(made) for column in zip(*found, strict=True))
            stated = metric.get(key)
            if not isinstance(stated, int | float) or not low * 0.98 <= stated <= high * 1.02:
                yield f"summary.json: {key} is {_short(stated)}, {low:.4g} to {high:.4g} by its ranks"
