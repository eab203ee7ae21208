"""Collect the events of a job's processes and tracers, and assign them to DataLoaders."""

from __future__ import annotations

import json
import os
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from emulator.calls import MAP, READ
from emulator.config.reader import build
from emulator.errors import FeedrateError
from emulator.plugins.recorder.batches import TracedBatch, batches_in
from emulator.plugins.recorder.hook.feedrate_probe import usage
from emulator.plugins.recorder.log import CallLog, Event
from emulator.plugins.recorder.observation import Loader, Settings
from emulator.plugins.recorder.steps import FEW, Table, Track, joined, step_cpu
from emulator.plugins.recorder.strace import Tracer
from emulator.record.device import Counters, DeviceReads, counters_of

MOST_LOADERS = 1000
_MOST_POLLED = 256
"""Most processes whose counters are polled."""

Key = tuple[int, int]
"""Key of a DataLoader: the process that made it, and its number there."""


@dataclass(slots=True)
class _DataLoader:
    """One DataLoader."""

    settings: Settings = field(default_factory=Settings)
    track: Track = field(default_factory=lambda: Track(0))
    workers: list[tuple[int, ...]] = field(default_factory=list)
    """The workers of each epoch, in their order."""
    untraced: int = 0
    """Batches delivered without tracing."""
    made_ns: int = 0
    """CPU nanoseconds of the process itself for these batches."""

    @property
    def all_workers(self) -> set[int]:
        return {worker for workers in self.workers for worker in workers}


class Watch:
    """The state of one recording. Not thread-safe."""

    def __init__(self) -> None:
        self.log = CallLog()
        self.tracer = Tracer(self.log)
        self.traced_until = 0
        """End of the tracing of calls, in nanoseconds of the monotonic clock; 0: it has not ended."""
        self.loaders: dict[Key, _DataLoader] = {}
        self.asking: list[int] = []
        """Processes that wait until they are traced."""
        self.processes = 0
        """Number of Python processes in which the probe reported."""
        self.lost = 0
        """Number of events that are missing."""
        self.accelerators: dict[int, str] = {}
        """Name of the accelerator of each process that uses one."""
        self.request_bytes: float | None = None
        """Observation.request_bytes, after `end_reads`."""
        self.in_flight: float | None = None
        """Observation.in_flight, after `end_reads`."""
        self._device: tuple[Counters, DeviceReads, int] | None = None
        """Counters of the data's device, their values at first, and the job's bytes from storage then."""
        self._used: dict[int, dict[str, int]] = {}  # process -> its last counters
        self._used_traced: dict[int, dict[str, int]] = {}  # `_used` when tracing ended
        self._begun: dict[int, dict[str, int]] = {}  # worker process -> its counters before its first batch
        self._alive: set[int] = set()  # processes whose counters are polled
        self._rest = b""

    # ---- Events of the job's processes.

    def events(self, data: bytes) -> None:
        """Parse the next bytes of events. Bad lines count as lost, because the job can write to the pipe."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()[-65536:]
        for line in lines:
            try:
                event = json.loads(line)
                if isinstance(event, dict):
                    self._take(event)
            except (ValueError, KeyError, TypeError, RecursionError, FeedrateError):
                self.lost += 1

    def _take(self, event: Mapping[str, Any]) -> None:
        """Take one event of the probe, which lists their kinds."""
        kind = event["k"]
        if kind == "lost":
            self.lost += _number(event, "n")
            return
        process = _number(event, "p")
        match kind:
            case "p":
                self.processes += 1
                self._watch_counters(process)
            case "a":
                self.asking.append(process)
            case "f":
                self._begun[process] = _counters_in(event)
                self._add_maps(process)
                self._watch_counters(process)
            case "u":
                self._used[process] = _counters_in(event)
                self._alive.discard(process)
            case "d":
                self.accelerators[process] = str(event["name"])[:100]
            case "l" | "s" | "x" | "t":
                self._take_of_loader(event, (process, _number(event, "l")))

    def _take_of_loader(self, event: Mapping[str, Any], key: Key) -> None:
        if key not in self.loaders and len(self.loaders) >= MOST_LOADERS:
            return
        loader = self.loaders.setdefault(key, _DataLoader())
        match event["k"]:
            case "l":
                self._settings(event, key, loader)
            case "s":
                numbers = (_number(event, name) for name in ("e", "i", "n", "r", "a", "g", "s", "c"))
                loader.track.add(*numbers)
                if self.traced_until:  # exclude the cost of tracing
                    loader.untraced += 1
                    loader.made_ns += _number(event, "d")
            case "x":
                loader.track.ends[_number(event, "e")] = _number(event, "a")
            case "t":
                loader.track.add_computed(*(_number(event, name) for name in ("e", "i", "t")))

    def _watch_counters(self, process: int) -> None:
        if len(self._alive) < _MOST_POLLED:
            self._alive.add(process)

    def _settings(self, event: Mapping[str, Any], key: Key, loader: _DataLoader) -> None:
        loader.settings = build(Settings, event["f"])
        loader.track.rank = _number(event, "rank")
        loader.workers.append(tuple(map(int, event["w"])))
        for worker in loader.workers[-1]:
            self._watch_counters(worker)

    def _add_maps(self, process: int) -> None:
        """Add the files that `process` has mapped before it is traced: no call shows those of its parent."""
        self.log.when = (0.0, 0.0)
        for path, size in _mapped_files(process):
            self.log.mapped(process, process, path, size)

    def poll(self) -> None:
        """Read the counters of the job's processes before they exit."""
        for process in list(self._alive):
            counters = usage(f"/proc/{process}")
            if counters:
                self._used[process] = counters
            else:
                self._alive.discard(process)
        if self._device is None and self.loaders and self.log.files:
            counters_now = counters_of(Path(os.fsdecode(self.log.files[0].path)).parent)
            if (first := counters_now()) is not None:
                self._device = counters_now, first, self._storage_bytes()

    def _storage_bytes(self) -> int:
        return sum(used.get("storage", 0) for used in self._used.values())

    def end_reads(self) -> None:
        """Keep the present counters and batches, because calls are not traced after this."""
        self.poll()
        self._used_traced = dict(self._used)
        if self._device is not None:
            counters, first, own_at_first = self._device
            if (now := counters()) is not None:
                own = self._storage_bytes() - own_at_first
                self.request_bytes, self.in_flight = now.since(first).requests_of(own)
        self.traced_until = time.monotonic_ns()

    @property
    def steps(self) -> int:
        """Number of steps of the loader that has most."""
        return max((len(loader.track.rows) for loader in self.loaders.values()), default=0)

    # ---- Results, once tracing has ended.

    def _readers(self, key: Key) -> set[int]:
        """Return the processes that read for a loader."""
        return self.loaders[key].all_workers or {key[0]}

    @cached_property
    def _calls(self) -> dict[int, list[Event]]:
        """The traced calls by reader, with those of its child processes as its own: it waits for them."""
        readers = {reader for key in self.loaders for reader in self._readers(key)}
        calls: dict[int, list[Event]] = defaultdict(list)
        for process, events in self.log.events.items():
            callers: dict[int, tuple[int, int]] = {}  # thread -> its reader, and the thread it reads for
            for event in events:
                if event.thread not in callers:
                    chain = self.tracer.ancestors(event.thread)
                    reader = next((thread for thread in chain if thread in readers), process)
                    callers[event.thread] = reader, self.tracer.caller(event.thread)
                reader, thread = callers[event.thread]
                calls[reader].append(event._replace(thread=thread))
        return calls

    def batches(self, settings: Settings) -> list[list[list[TracedBatch]]]:
        """Return the traced batches of the loaders with these settings: of each rank, of each worker."""
        ranks: dict[int, list[list[TracedBatch]]] = {}
        for key, loader in self.loaders.items():
            if loader.settings != settings:
                continue
            process, number = key
            batches = ranks.setdefault(process, [[] for _ in range(max(1, settings.workers))])
            # Persistent workers are reported in each epoch.
            epochs = dict.fromkeys(loader.workers) if settings.workers else [(process,)]
            for workers in epochs:
                for of_worker, worker in zip(batches, workers, strict=False):
                    of_worker += batches_in(self._calls[worker], 0 if settings.workers else number)
        return list(ranks.values())

    def paths(self, settings: Settings) -> list[bytes]:
        """Return the sorted paths of the data files that the loaders with these settings read."""
        events = [event for batch in self._batches_of_all(settings) for event in batch.events]
        return sorted({self.log.files[event.file].path for event in events if event.op in (READ, MAP)})

    def _batches_of_all(self, settings: Settings) -> list[TracedBatch]:
        return [batch for workers in self.batches(settings) for made in workers for batch in made]

    def loaders_and_steps(self) -> list[tuple[Loader, list[Table]]]:
        """Return the loaders that delivered batches, each with the steps of its ranks.

        Loaders with the same settings count as one, whether they are of several ranks or made in turn. Those
        that a process uses at the same time do not: two in a step, or for training and validation.
        """
        groups: dict[Settings, list[Key]] = defaultdict(list)
        # The last request of each loader with these settings that a process uses at the same time.
        latest: dict[tuple[int, Settings], list[int]] = defaultdict(list)
        lengths: dict[tuple[int, Settings], int] = {}
        used = [(loader.track.rows[0][4], key) for key, loader in self.loaders.items() if loader.track.rows]
        for first, key in sorted(used):
            loader = self.loaders[key]
            ends = latest[key[0], replace(loader.settings, beside=0)]
            beside = next((number for number, end in enumerate(ends) if end < first), len(ends))
            ends[beside : beside + 1] = [loader.track.rows[-1][4]]
            # Ranks that have files of their own may have a few more or less.
            length = loader.settings.dataset_length
            others = lengths.setdefault((key[1], replace(loader.settings, dataset_length=0)), length)
            length = others if abs(length - others) <= 1 + others // 20 else length
            loader.settings = replace(loader.settings, dataset_length=length, beside=beside)
            groups[loader.settings].append(key)
        return [self._loader(settings, keys) for settings, keys in groups.items()]

    def _loader(self, settings: Settings, keys: Sequence[Key]) -> tuple[Loader, list[Table]]:
        """Return the loaders `keys`, which have these settings, as one, and the steps of its ranks."""
        ranks: dict[int, list[Track]] = defaultdict(list)  # by process
        for process, number in keys:
            ranks[process].append(self.loaders[process, number].track)
        tables = [joined([track.table(self.traced_until) for track in tracks]) for tracks in ranks.values()]
        tracks = [self.loaders[key].track for key in keys]
        steps, batches = np.sum([track.batches for track in tracks], 0).tolist()
        traced = self._batches_of_all(settings)
        accelerators = [self.accelerators[process] for process in ranks if process in self.accelerators]
        loader = Loader(
            settings=settings,
            ranks=len(tables),
            accelerator=accelerators[0] if accelerators else "",
            epochs=max(sum(len(track.delivered) for track in tracks) for tracks in ranks.values()),
            steps=steps,
            batch_samples=float(np.mean([table["samples"].mean() for table in tables])),
            read_steps=len(traced),
            step_cpu_seconds=float(np.mean([step_cpu(table) for table in tables])),
            reads=self.log.summary([event for batch in traced for event in batch.events]),
            **self._costs(keys, batches, len(traced)),
        )
        return loader, tables

    def _costs(self, keys: Sequence[Key], batches: int, traced_batches: int) -> dict[str, Any]:
        """Return the fields of a Loader that tell what a batch costs, from the counters of its readers."""
        used, used_traced = self._counters(keys, self._used), self._counters(keys, self._used_traced)
        untraced = batches - traced_batches
        if untraced >= FEW:  # exclude the cost of tracing
            used, batches = _since(used_traced, used), untraced
        return {
            "first_storage_bytes": _per_batch(used_traced, "storage", traced_batches),
            "batch_storage_bytes": _per_batch(used, "storage", batches),
            "batch_call_bytes": _per_batch(used, "calls", batches) if untraced >= FEW else None,
            "batch_cpu_seconds": self._batch_cpu(keys, used.get("ticks", 0), batches),
        }

    def _batch_cpu(self, keys: Sequence[Key], ticks: int, batches: int) -> float:
        """Return the CPU seconds of a batch; `ticks` are those of the workers for `batches`."""
        loaders = [self.loaders[key] for key in keys]
        if loaders[0].settings.workers:
            return ticks / os.sysconf("SC_CLK_TCK") / batches
        untraced = sum(loader.untraced for loader in loaders)
        return sum(loader.made_ns for loader in loaders) / 1e9 / max(1, untraced)

    def _counters(self, keys: Sequence[Key], used: Mapping[int, Mapping[str, int]]) -> dict[str, int]:
        """Return the sum of the counters `used` of the readers of `keys`, since each began to read.

        Without workers that is each process itself; empty if one has other loaders without workers.
        """
        readers = {reader for key in keys for reader in self._readers(key)}
        in_turn = {key for key, loader in self.loaders.items() if not loader.settings.workers}
        if keys[0] in in_turn and readers & {process for process, _ in in_turn.difference(keys)}:
            return {}
        total: Counter[str] = Counter()
        for reader in readers:
            total.update(_since(self._begun.get(reader, {}), used.get(reader, {})))
        return total


def _per_batch(counters: Mapping[str, int], name: str, batches: int) -> float | None:
    """Return a counter for each batch; None: it is not known."""
    return counters[name] / batches if batches and name in counters else None


def _mapped_files(process: int) -> list[tuple[bytes, int]]:
    """Return path and bytes of the readable maps of a process, without programs."""
    try:
        lines = Path(f"/proc/{process}/maps").read_bytes().splitlines()
    except OSError:
        return []
    maps: list[tuple[bytes, int]] = []
    programs = set[bytes]()
    for line in lines:  # BEGIN-END PERMISSIONS OFFSET DEVICE INODE PATH
        addresses, permissions, *rest = line.split(maxsplit=5)
        path = b"".join(rest[3:])
        if b"x" in permissions:
            programs.add(path)
        if path.startswith(b"/") and b"r" in permissions:
            begin, end = (int(number, 16) for number in addresses.split(b"-"))
            maps.append((path, end - begin))
    return [(path, size) for path, size in maps if path not in programs]


def _number(event: Mapping[str, Any], name: str) -> int:
    """Return an integer field of an event. Raises ValueError if it is none or out of range."""
    value = event[name]
    if not isinstance(value, int) or not 0 <= value < 2**62:
        raise ValueError(f"{name} is not a valid number")
    return value


def _counters_in(event: Mapping[str, Any]) -> dict[str, int]:
    """Return the counters of a process from an event."""
    return {name: _number(event, name) for name in ("calls", "storage", "ticks") if name in event}


def _since(before: Mapping[str, int], now: Mapping[str, int]) -> dict[str, int]:
    return {name: max(0, value - before.get(name, 0)) for name, value in now.items()}
