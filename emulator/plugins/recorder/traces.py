"""Import of existing traces as recordings: PyTorch's profiler (Chrome JSON) and Darshan with DXT.

A profiler's trace has steps but no files; Darshan has files but no steps. The workload of `--workload`
supplies the rest. A trace is untrusted: it is read in pieces, and its size, depth and number of events are
bounded.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import re
import subprocess
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO

import ijson
import numpy as np
import typer
from numpy.typing import NDArray

from emulator.config.workload import Workload, load_workload
from emulator.errors import MissingError, SpecError, storage_errors
from emulator.files import write_whole
from emulator.plugins.recorder.describe import accelerator_of, recipe_of, step_words
from emulator.plugins.recorder.job import (
    PROFILE,
    RECIPE,
    RECORD,
    WORKLOAD,
    json_text,
    prepare,
    toml,
    write_steps,
)
from emulator.plugins.recorder.observation import Loader, Observation, Settings
from emulator.plugins.recorder.pattern import pattern_of
from emulator.plugins.recorder.reads import Reads, Reduction
from emulator.plugins.recorder.steps import SEEN, StepTime, Table, step_time
from emulator.record.machine import utc_now
from emulator.units import show_bytes, show_seconds

Floats = NDArray[np.float64]

MOST_BYTES = 8 * 2**30
"""Most bytes of a trace, uncompressed."""
MOST_EVENTS = 2_000_000
"""Most batches and kernels of a trace."""
MOST_RECORDS = 5_000_000
"""Most reads in a Darshan log."""
_MOST_EVENT = 16 << 20
_DEPTH = 100
_CHUNK = 1 << 20
_FEW = 3
_NEXT = re.compile(r"enumerate\(DataLoader\)#(_\w+DataLoaderIter)\.__next__")
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_STEP = re.compile(r"ProfilerStep#?\d*")


def import_trace(path: Path, out: Path, workload: str, force: bool) -> None:
    """Write the folder `out` from a trace. Raises SpecError, StorageError, MissingError."""
    if path.name.endswith(".darshan"):
        _import_darshan(path, out, workload, force)
    else:
        _import_chrome(path, out, workload, force)


# ---- Chrome JSON.


def events(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the events of a trace, each with its scalar fields. Raises SpecError, StorageError."""
    with storage_errors("cannot read the trace"), path.open("rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        opened: BinaryIO = gzip.GzipFile(fileobj=raw) if packed else raw  # type: ignore[assignment]
        file = _Bounded(opened, path)
        try:
            for event in _events(ijson.basic_parse(file, use_float=True, buf_size=_CHUNK), path):
                file.since = 0
                yield event
        except ijson.JSONError as error:
            said = str(error).splitlines()[0]
            raise SpecError(
                f"{path} is no trace of PyTorch's profiler, or is cut off ({said})", "export it again"
            ) from None
        except (zlib.error, gzip.BadGzipFile, EOFError) as error:
            raise SpecError(f"{path} is no whole gzip file ({error})", "export the trace again") from None


class _Bounded:
    """A file that raises SpecError if a trace, or one of its events, is too large."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file = file
        self._path = path
        self._bytes = 0
        self.since = 0
        """Bytes since the last event."""

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        self._bytes += len(data)
        self.since += len(data)
        if self._bytes > MOST_BYTES:
            raise SpecError(f"{self._path} has more than {show_bytes(MOST_BYTES)}", "record fewer steps")
        if self.since > _MOST_EVENT:
            raise SpecError(
                f"{self._path}: an event has more than {show_bytes(_MOST_EVENT)}", "export the trace again"
            )
        return data


def _events(tokens: Iterable[tuple[str, Any]], path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects in the root's array, or in the array `traceEvents` of the root's object."""
    within, key = -1, ""  # within: the depth of events, once their array has begun
    event: dict[str, Any] = {}
    for depth, kind, value in _levels(tokens, path):
        if kind == "map_key":
            key = value
        elif within < 0:
            if kind == "start_array" and (not depth or (depth == 1 and key == "traceEvents")):
                within = depth + 1
        elif depth < within:
            return
        elif depth == within and kind == "start_map":
            event = {}
        elif depth == within and kind == "end_map":
            yield event
        elif depth == within + 1 and value is not None:
            event[key] = value
    raise SpecError(f"{path} is no trace of PyTorch's profiler", "export_chrome_trace writes one")


def _levels(tokens: Iterable[tuple[str, Any]], path: Path) -> Iterator[tuple[int, str, Any]]:
    """Yield tokens with the number of arrays and objects around them. Raises SpecError for too many."""
    # Not ijson.items: its path to a value grows with the depth, without a bound.
    depth = 0
    for kind, value in tokens:
        depth -= kind.startswith("end")
        yield depth, kind, value
        depth += kind.startswith("start")
        if depth > _DEPTH:
            raise SpecError(f"{path}: an event is nested too deep", "it is no profiler's trace")


def _number(event: Mapping[str, Any], name: str) -> float:
    with suppress(TypeError, ValueError, OverflowError):
        value = float(event.get(name, "nan"))
        return value if abs(value) < 1e18 else math.nan
    return math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A job in a profiler's trace."""

    steps: Table
    in_turn: bool
    """True if the job reads and computes in turn."""
    busy: float | None
    """Share of the time from the first batch to the last in which the GPU ran a kernel or copied, on any
    stream; None if it did neither."""
    profiled: int
    """Number of the profiler's own steps."""


def chrome_steps(path: Path) -> Trace:
    """Return the steps of a trace. Raises SpecError.

    Of several threads that use DataLoaders, the one with most batches counts.
    """
    asked: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    device: list[tuple[float, float]] = []
    profiled, kept = 0, 0
    for event in events(path):
        if event.get("ph") != "X":
            continue
        name = str(event.get("name", ""))[:200]
        profiled += bool(_STEP.fullmatch(name))
        found, on_device = _NEXT.fullmatch(name), event.get("cat") in _ON_DEVICE
        if not (found or on_device):
            continue
        begin, length = _number(event, "ts"), _number(event, "dur")
        if math.isnan(begin) or math.isnan(length) or length < 0:
            raise SpecError(f"{path}: a span has no time", "the trace is damaged")
        kept += 1
        if kept > MOST_EVENTS:
            raise SpecError(f"{path} has more than {MOST_EVENTS} batches and kernels", "record fewer steps")
        if not found:
            device.append((begin / 1e6, (begin + length) / 1e6))
            continue
        key = (str(event.get("pid"))[:40], str(event.get("tid"))[:40], found[1])
        asked.setdefault(key, []).append((begin / 1e6, length / 1e6))
    if not asked:
        raise SpecError(
            f"{path} has no spans of a DataLoader", "profile the loop over the DataLoader, not only the model"
        )
    key = max(asked, key=lambda one: len(asked[one]))
    spans = np.array(sorted(set(asked[key])))
    table = np.zeros(len(spans), SEEN)
    table["step"], table["ready"] = np.arange(len(spans)), 2
    table["asked"], table["wait"] = spans[:, 0] - spans[0, 0], spans[:, 1]
    table["cpu"] = np.nan
    table["between"] = np.append(np.maximum(spans[1:, 0] - spans[:-1].sum(axis=1), 0), np.nan)
    table["computed"] = np.nan
    in_turn, busy = key[2].startswith("_Single"), None
    if device:
        ran = np.array(sorted(device))
        got = spans.sum(axis=1)
        table["computed"] = _computed(got, ran, table["between"])
        busy = _busy(ran, got[0], got[-1])
    return Trace(steps=table, in_turn=in_turn and not device, busy=busy, profiled=profiled)


def _computed(got: Floats, ran: Floats, between: Floats) -> Floats:
    """Return the seconds from each batch to the end of its step, on the GPU and the host; NaN for the last.

    `got`: when each batch was delivered; `ran`: begin and end of what ran on the GPU, sorted. Kernels that
    begin before the next batch belong to the step, and kernels that run beyond that to the next one.
    """
    ends = np.append(-np.inf, np.maximum.accumulate(ran[:, 1]))
    last = ends[np.searchsorted(ran[:, 0], got[1:])]
    return np.append(np.maximum(np.minimum(last, got[1:]) - got[:-1], between[:-1]), np.nan)


def _busy(ran: Floats, begin: float, end: float) -> float | None:
    """Return the share of the time from `begin` to `end` in which anything of `ran` ran."""
    ends = np.maximum.accumulate(ran[:, 1])
    free = np.append(begin, ends)  # when all earlier ones had ended
    idle = np.clip(np.append(ran[:, 0], end), begin, end) - np.clip(free, begin, end)
    return float(1 - np.maximum(idle, 0).sum() / (end - begin)) if end > begin else None


def _import_chrome(path: Path, out: Path, workload: str, force: bool) -> None:
    trace = chrome_steps(path)
    table = trace.steps
    step = step_time([table], 1 if len(table) > 2 * _FEW else 0, trace.in_turn, few=_FEW)
    base = load_workload(workload) if workload else None
    notes = ["a profiler's trace has no files, and so no reads"]
    if trace.profiled:
        notes.append(f"{trace.profiled} steps of the profiler")
    if trace.busy is not None:
        waited = float(table["wait"][1:].sum() / np.ptp(table["asked"] + table["wait"]))
        notes.append(
            f"the GPU was busy for {trace.busy:.0%} of the time, with kernels or copies; the job waited for "
            f"a batch for {waited:.0%}"
        )
    seen = Observation(
        created=utc_now(),
        how="chrome-trace",
        notes=tuple(notes),
        loaders=(
            Loader(rank=0, host="", process=0, settings=Settings(), epochs=1, steps=len(table), samples=0,
                   reads=Reads(sizes_only=True)),
        ),
        step=step,
    )  # fmt: skip
    prepare(out, force)
    write_whole(out / RECORD, json_text(seen))
    write_steps(out / PROFILE, [table])
    typer.echo(f"{out}: {len(table)} batches")
    for note in notes[1:]:
        typer.echo(f"  {note}")
    if step is None:
        typer.echo(f"  {len(table)} batches are too few for a step time")
        return
    most = "at most " if step.bound else ""
    typer.echo(f"  step: {most}{show_seconds(step.seconds)}, {step_words(step)}")
    if base is None:
        typer.echo("  no workload: a trace has no files; --workload NAME supplies them")
        return
    made = with_step(base, step, out.name, f"imported from a trace of PyTorch's profiler, {seen.created}")
    write_whole(out / WORKLOAD, toml(made))
    typer.echo(f"  {out / WORKLOAD}: {base.name}, with this step time")


def with_step(base: Workload, step: StepTime, name: str, source: str) -> Workload:
    """Return `base` with this step time."""
    accelerator = accelerator_of(step, base.accelerator.name, base.loader.batch_size)
    sources = {**base.sources, "accelerator.step_seconds": f"{source}: {step_words(step)}"}
    return replace(base, name=name, accelerator=accelerator, sources=sources)


# ---- Darshan.


def _import_darshan(path: Path, out: Path, workload: str, force: bool) -> None:
    if find_spec("darshan") is None:
        raise MissingError("reading Darshan's logs needs PyDarshan", "pip install 'feedrate[darshan]'")
    base = load_workload(workload) if workload else None
    loader = darshan_reads(path)
    seen = Observation(
        created=utc_now(), how="darshan", loaders=(loader,),
        notes=("Darshan has no steps and no samples: a file counts as a sample",),
    )  # fmt: skip
    pattern = pattern_of(loader, [loader])
    recipe = recipe_of(pattern, out.name, f"imported from a log of Darshan, {seen.created}")
    prepare(out, force)
    write_whole(out / RECORD, json_text(seen))
    write_whole(out / RECIPE, toml(recipe))
    reads = loader.reads
    typer.echo(
        f"{out}: {reads.files} files of {show_bytes(reads.files_bytes)}, {show_bytes(reads.bytes)} read"
    )
    for line in pattern.told:
        typer.echo(f"  {line}")
    typer.echo(f"  feedrate generate DIR --recipe {out / RECIPE}")
    if base is None:
        typer.echo("  no workload: Darshan has no steps; --workload NAME supplies them")
        return
    made = replace(
        base,
        name=out.name,
        sample=pattern.sample(),
        access=pattern.access,
        loader=replace(base.loader, block_bytes=pattern.block_bytes, crop=()),
    )
    write_whole(out / WORKLOAD, toml(made))
    typer.echo(f"  {out / WORKLOAD}: files as in the log, steps and batches of {base.name}")


def darshan_reads(path: Path) -> Loader:
    """Return the reads of the log's ranks, as those of one loader. Raises SpecError, StorageError."""
    with storage_errors("cannot read the log"), path.open("rb") as file:
        file.read(1)
    reduction, count = Reduction(), 0
    visits = size_of_visits = 0
    for record in _records(path):
        try:
            number, rank, size = (int(record[name]) for name in ("file", "rank", "size"))
            opens, reads = max(1, int(record["opens"])), [tuple(map(float, one)) for one in record["reads"]]
            count += len(reads)
            if count > MOST_RECORDS:
                raise SpecError(f"{path} has more than {MOST_RECORDS} reads", "record fewer steps")
            name = str(number).encode()
            reduction.known(name, size)
            reduction.opened("", rank, number, name)
            for begin, offset, length, end in reads:
                took = max(0.0, end - begin)
                reduction.read("", rank, number, name, int(offset), int(length), took)
        except (ValueError, TypeError, KeyError, OverflowError):
            raise _unreadable(path) from None
        visits, size_of_visits = visits + opens, size_of_visits + opens * size
    found = reduction.seen("", {}, False)
    if not found.bytes:
        raise SpecError(f"{path}: nothing was read", "the log is of a job that only wrote, or it is damaged")
    found = replace(found, visits=visits, visit_size=max(size_of_visits, found.visit_bytes))
    return Loader(
        rank=0, host="", process=0, settings=Settings(), epochs=1, steps=found.files, samples=found.files,
        reads=found,
    )  # fmt: skip


def _records(path: Path) -> Iterator[Any]:
    """Yield the lines of `darshan_log`, run as a separate process. Raises SpecError."""
    words = [sys.executable, "-m", f"{__package__}.darshan_log", os.fspath(path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as reader:
        assert reader.stdout is not None
        try:
            for line in reader.stdout:
                try:
                    yield json.loads(line)
                except (ValueError, RecursionError):
                    raise _unreadable(path) from None
        except BaseException:
            reader.kill()
            raise
        status = reader.wait()
    if status == 3:
        raise SpecError(f"{path} has no DXT, and so no single reads", "record it with DARSHAN_ENABLE_DXT=1")
    if status:
        raise _unreadable(path)


def _unreadable(path: Path) -> SpecError:
    return SpecError(f"{path} is not a readable log of Darshan", "check it with darshan-parser")
