"""Collect the events of a job's processes and tracers, and assign them to DataLoaders."""

from __future__ import annotations

import json
import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from emulator.calls import MAP, READ
from emulator.config.reader import build
from emulator.errors import FeedrateError
from emulator.plugins.recorder.batches import Made, made_by
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
class _Seen:
    """One DataLoader."""

    settings: Settings = field(default_factory=Settings)
    track: Track = field(default_factory=lambda: Track(0))
    workers: list[tuple[int, ...]] = field(default_factory=list)
    """The workers of each epoch, in their order."""
    base: dict[str, int] = field(default_factory=dict)
    """Counters of the process of a loader without workers, at the first sight of the loader."""
    untraced: int = 0
    """Batches delivered without tracing."""
    worked: int = 0
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
        self.loaders: dict[Key, _Seen] = {}
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
        seen = self.loaders.setdefault(key, _Seen())
        match event["k"]:
            case "l":
                self._settings(event, key, seen)
            case "s":
                numbers = (_number(event, name) for name in ("e", "i", "n", "r", "a", "g", "s", "c"))
                seen.track.add(*numbers)
                if self.traced_until:  # exclude the cost of tracing
                    seen.untraced += 1
                    seen.worked += _number(event, "d")
            case "x":
                seen.track.ends[_number(event, "e")] = _number(event, "a")
            case "t":
                seen.track.add_computed(*(_number(event, name) for name in ("e", "i", "t")))

    def _watch_counters(self, process: int) -> None:
        if len(self._alive) < _MOST_POLLED:
            self._alive.add(process)

    def _settings(self, event: Mapping[str, Any], key: Key, seen: _Seen) -> None:
        if "f" in event:
            seen.settings = build(Settings, event["f"])
            seen.track.rank = _number(event, "rank")
            seen.workers.append(())
            if not seen.settings.workers:
                seen.base = seen.base or usage(f"/proc/{key[0]}")
        workers = tuple(map(int, event["w"]))
        seen.workers[-1] += workers
        for worker in workers:
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
            elif not Path(f"/proc/{process}").exists():
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
            counters, first, own = self._device
            if (now := counters()) is not None:
                reads = now.since(first)
                self.request_bytes = reads.request_bytes(self._storage_bytes() - own)
                self.in_flight = reads.in_flight if self.request_bytes else None
        self.traced_until = time.monotonic_ns()
        for seen in self.loaders.values():
            seen.track.read = seen.track.batches

    @property
    def steps(self) -> int:
        """Number of steps of the loader that has most."""
        return max((len(seen.track.rows) for seen in self.loaders.values()), default=0)

    # ---- Results, once tracing has ended.

    def _readers(self, key: Key) -> set[int]:
        """Return the processes that read for a loader."""
        return self.loaders[key].all_workers or {key[0]}

    @cached_property
    def _calls(self) -> dict[int, list[Event]]:
        """The traced calls by reader, with those of its child processes as its own: it waits for them."""
        readers = {reader for key in self.loaders for reader in self._readers(key)}
        calls: dict[int, list[Event]] = defaultdict(list)
        places: dict[tuple[int, int], tuple[int, int]] = {}
        for process, events in self.log.events.items():
            for event in events:
                name = process, event.thread
                if name not in places:
                    chain = self.tracer.ancestors(event.thread)
                    reader = next((thread for thread in chain if thread in readers), process)
                    places[name] = reader, self.tracer.caller(event.thread)
                reader, thread = places[name]
                calls[reader].append(event._replace(thread=thread))
        return calls

    def batches(self, settings: Settings) -> list[list[list[Made]]]:
        """Return the traced batches of the loaders with these settings: of each rank, of each worker."""
        ranks: dict[int, list[list[Made]]] = {}
        for key, seen in self.loaders.items():
            if seen.settings != settings:
                continue
            lanes = ranks.setdefault(key[0], [[] for _ in range(max(1, settings.workers))])
            # Persistent workers are reported in each epoch.
            epochs = dict.fromkeys(seen.workers) if settings.workers else [(key[0],)]
            number = 0 if settings.workers else key[1]
            for workers in epochs:
                for lane, worker in zip(lanes, workers, strict=False):
                    lane += made_by(self._calls[worker], number)
        return list(ranks.values())

    def paths(self, settings: Settings) -> list[bytes]:
        """Return the sorted paths of the data files that the loaders with these settings read."""
        keys = [key for key, seen in self.loaders.items() if seen.settings == settings]
        reads = [event for event in self._events_of(keys) if event.op in (READ, MAP)]
        return sorted({self.log.files[event.file].path for event in reads})

    def _events_of(self, keys: Iterable[Key]) -> list[Event]:
        readers = {reader for key in keys for reader in self._readers(key)}
        return [event for reader in readers for event in self._calls[reader]]

    def found(self) -> list[tuple[Loader, list[Table]]]:
        """Return the loaders that delivered batches, each with the steps of its ranks.

        Loaders with the same settings count as one, whether they are of several ranks or made in turn.
        """
        groups: dict[Settings, list[Key]] = defaultdict(list)
        for key, seen in self.loaders.items():
            if seen.track.rows:
                groups[seen.settings].append(key)
        return [self._found(settings, keys) for settings, keys in groups.items()]

    def _found(self, settings: Settings, keys: Sequence[Key]) -> tuple[Loader, list[Table]]:
        """Return the loaders `keys`, which have these settings, as one, and the steps of its ranks."""
        tracks: dict[int, list[Track]] = defaultdict(list)  # by process
        for key in keys:
            tracks[key[0]].append(self.loaders[key].track)
        tables = [
            joined([track.table(self.traced_until) for track in of_rank]) for of_rank in tracks.values()
        ]
        steps, batches = np.sum([self.loaders[key].track.batches for key in keys], 0).tolist()
        traced_steps, traced_batches = np.sum([self.loaders[key].track.read for key in keys], 0).tolist()
        traced, used = self._counters(keys, self._used_traced), self._counters(keys, self._used)
        first_storage = traced["storage"] / traced_batches if "storage" in traced and traced_batches else None
        call_bytes = None
        if batches > traced_batches:  # exclude the cost of tracing
            used, batches = _since(traced, used), batches - traced_batches
            call_bytes = used["calls"] / batches if "calls" in used and batches >= FEW else None
        loader = Loader(
            settings=settings,
            ranks=len(tables),
            accelerator=next((self.accelerators[key[0]] for key in keys if key[0] in self.accelerators), ""),
            epochs=max(sum(len(track.delivered) for track in of_rank) for of_rank in tracks.values()),
            steps=steps,
            batch_samples=float(np.mean([table["samples"].mean() for table in tables])),
            read_steps=traced_steps,
            step_cpu_seconds=float(np.mean([step_cpu(table) for table in tables])),
            batch_cpu_seconds=self._batch_cpu(settings, keys, used.get("ticks", 0), batches),
            batch_call_bytes=call_bytes,
            batch_storage_bytes=used["storage"] / batches if "storage" in used else None,
            first_storage_bytes=first_storage,
            reads=self.log.summary(self._events_of(keys)),
        )
        return loader, tables

    def _batch_cpu(self, settings: Settings, keys: Sequence[Key], ticks: int, batches: int) -> float:
        """Return the CPU seconds of a batch; `ticks` are those of the workers for `batches`."""
        if settings.workers:
            return ticks / os.sysconf("SC_CLK_TCK") / batches
        loaders = [self.loaders[key] for key in keys]
        return sum(seen.worked for seen in loaders) / 1e9 / max(1, sum(seen.untraced for seen in loaders))

    def _counters(self, keys: Sequence[Key], used: Mapping[int, Mapping[str, int]]) -> dict[str, int]:
        """Return the sum of the counters `used` of the readers of `keys`, since each began to read.

        Without workers that is each process itself; empty if one has other loaders without workers.
        """
        total: Counter[str] = Counter()
        if self.loaders[keys[0]].settings.workers:
            for worker in {worker for key in keys for worker in self.loaders[key].all_workers}:
                total.update(_since(self._begun.get(worker, {}), used.get(worker, {})))
            return total
        bases = {process: self.loaders[process, number].base for process, number in reversed(keys)}
        others = [key for key, seen in self.loaders.items() if not seen.settings.workers and key not in keys]
        if any(process in bases for process, _ in others):
            return {}
        for process, base in bases.items():
            total.update(_since(base, used.get(process, {})))
        return total


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
