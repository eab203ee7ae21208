"""Collect the events of a job's processes and tracer, and assign processes to DataLoaders."""

from __future__ import annotations

import json
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emulator.calls import MAP, READ
from emulator.config.reader import build
from emulator.errors import FeedrateError
from emulator.plugins.recorder.batches import Made, made_by
from emulator.plugins.recorder.hook.feedrate_probe import usage
from emulator.plugins.recorder.log import BEGIN, END, CallLog, Event
from emulator.plugins.recorder.observation import Loader, Reads, Settings
from emulator.plugins.recorder.steps import FEW, Table, Track, batches_taken, joined, step_cpu
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
    torch: str = ""
    workers: list[list[int]] = field(default_factory=list)
    """The workers of each epoch, in their order."""
    base: dict[str, int] = field(default_factory=dict)
    """Counters of the process of a loader without workers, at the first sight of the loader."""
    untraced: int = 0
    """Batches delivered without tracing."""
    worked: int = 0
    """CPU nanoseconds of the process itself for these batches."""
    thread: int = 0
    """ID of the thread that marks steps, in a job that does."""

    @property
    def all_workers(self) -> set[int]:
        return {worker for workers in self.workers for worker in workers}


class Watch:
    """The state of one recording. Not thread-safe."""

    def __init__(self, *, traced: bool, keep_names: bool = False) -> None:
        self.log = CallLog()
        self.tracer = Tracer(self.log)
        self.traced = traced
        self.keep_names = keep_names
        self.traced_until = 0
        """End of the tracing of calls, in nanoseconds of the monotonic clock; 0: it has not ended."""
        self.loaders: dict[Key, _Seen] = {}
        self.asking: list[int] = []
        """Processes that wait until they are traced."""
        self.processes = 0
        """Number of Python processes in which the probe reported."""
        self.lost = 0
        self.accelerators: dict[int, str] = {}
        self.request_bytes: float | None = None
        """Observation.request_bytes, after `end_reads`."""
        self.in_flight: float | None = None
        self.maps_random = False
        """True if the kernel was told that most of what workers map is read at random (MADV_RANDOM)."""
        self._device: tuple[Counters, DeviceReads, int] | None = None
        """Counters of the data's device, their values at first, and the job's bytes from storage then."""
        self._owner: dict[int, Key] = {}  # worker process -> its loader
        self._used: dict[int, dict[str, int]] = {}  # process -> its last counters
        self._seen: dict[int, dict[str, int]] = {}  # `_used` when reads were seen for the last time
        self._begun: dict[int, dict[str, int]] = {}  # worker process -> its counters before its first batch
        self._alive: set[int] = set()  # processes whose counters are polled
        self._handlers: dict[str, Callable[[Mapping[str, Any]], None]] = {
            "p": self._began,
            "w": self._began,
            "f": self._first_fetch,
            "u": self._worker_ended,
            "l": self._settings,
            "s": self._delivered,
            "x": self._epoch_ended,
            "o": self._file_opened,
            "b": self._border,
            "d": self._accelerator,
            "t": self._computed,
            "a": lambda event: self.asking.append(_number(event, "p")),
            "lost": self._events_lost,
        }
        self._rest = b""

    def _root(self, process: int) -> int:
        """Return the worker, or the process with a loader, that `process` is or descends from."""
        at, seen = process, 0
        while at not in self._owner and at in self.tracer.parents and seen < 64:
            at, seen = self.tracer.parents[at], seen + 1
        return at if at in self._owner else process

    # ---- Events of the job's processes.

    def events(self, data: bytes) -> None:
        """Parse the next bytes of events. Bad lines count as lost, because the job can write to the pipe."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()[-65536:]
        for line in lines:
            try:
                event = json.loads(line)
                if handle := self._handlers.get(event["k"]):
                    handle(event)
            except (ValueError, KeyError, TypeError, RecursionError, FeedrateError):
                self.lost += 1

    def _delivered(self, event: Mapping[str, Any]) -> None:
        seen = self._loader(_key(event))
        if seen is not None:
            numbers = (_number(event, name) for name in ("e", "i", "n", "r", "a", "g", "s", "c"))
            seen.track.add(*numbers, made=not seen.settings.auto_collation)
            if self.traced_until or not self.traced:  # exclude the cost of tracing
                seen.untraced += 1
                seen.worked += _number(event, "d") if "d" in event else 0

    def _epoch_ended(self, event: Mapping[str, Any]) -> None:
        seen = self._loader(_key(event))
        if seen is not None:
            seen.track.ends[_number(event, "e")] = _number(event, "a")

    def _began(self, event: Mapping[str, Any]) -> None:
        process = _number(event, "p")
        self.processes += event["k"] == "p"
        self.tracer.parents.setdefault(process, _number(event, "pp"))
        if event["k"] == "w":
            self._add_maps(process)
        self._watch_counters(process)

    def _first_fetch(self, event: Mapping[str, Any]) -> None:
        self._begun[_number(event, "p")] = _counters_in(event)

    def _worker_ended(self, event: Mapping[str, Any]) -> None:
        process = _number(event, "p")
        self._used[process] = _counters_in(event)
        self._alive.discard(process)

    def _file_opened(self, event: Mapping[str, Any]) -> None:
        if not self.traced:
            path = str(event["f"]).encode(errors="surrogateescape")
            self.log.named(_number(event, "p"), path, _number(event, "t") / 1e9)

    def _border(self, event: Mapping[str, Any]) -> None:
        process, at = _number(event, "p"), _number(event, "t") / 1e9
        self.log.border(process, process, END if event["d"] else BEGIN, _number(event, "l"), at)

    def _accelerator(self, event: Mapping[str, Any]) -> None:
        self.accelerators[_number(event, "p")] = str(event["name"])[:100]

    def _computed(self, event: Mapping[str, Any]) -> None:
        if (seen := self._loader(_key(event))) is not None:
            seen.track.add_computed(*(_number(event, name) for name in ("e", "i", "t")))

    def _events_lost(self, event: Mapping[str, Any]) -> None:
        self.lost += _number(event, "n")

    def _watch_counters(self, process: int) -> None:
        if len(self._alive) < _MOST_POLLED:
            self._alive.add(process)

    def _loader(self, key: Key) -> _Seen | None:
        if key not in self.loaders and len(self.loaders) < MOST_LOADERS:
            self.loaders[key] = _Seen()
        return self.loaders.get(key)

    def _settings(self, event: Mapping[str, Any]) -> None:
        key = _key(event)
        seen = self._loader(key)
        if seen is None:
            return
        if "f" in event:
            seen.settings = build(Settings, event["f"])
            seen.track.rank = _number(event, "rank")
            seen.torch = str(event["torch"])[:40]
            seen.workers.append([])
            if not seen.settings.workers:
                seen.base = seen.base or usage(f"/proc/{key[0]}")
                seen.thread = _number(event, "t") if seen.settings.marked else 0
                self._owner.setdefault(key[0], key)  # its child processes also read for its steps
                self._add_maps(key[0])
        for worker in event["w"]:
            seen.workers[-1].append(int(worker))
            self._owner[int(worker)] = key
            self._watch_counters(int(worker))

    def _add_maps(self, process: int) -> None:
        """Add the files that `process` has mapped before it is traced: no call shows those of its parent."""
        if self.traced:
            for path, size, random in _mapped_files(process):
                self.log.mapped(process, process, path, size, (0.0, 0.0))
                self.maps_random |= random and self.log.file(path) is not None

    def poll(self) -> None:
        """Read the counters of the job's processes before they exit."""
        for process in list(self._alive):
            counters = usage(f"/proc/{process}")
            if counters:
                self._used[process] = counters
            elif not Path(f"/proc/{process}").exists():
                self._alive.discard(process)
        if self.traced and self._device is None:
            self._find_device()

    def _find_device(self) -> None:
        """Begin to count the requests that the device of the first data file gets."""
        if self.loaders and self.log.files:
            counters = counters_of(Path(os.fsdecode(self.log.files[0].path)).parent)
            if (first := counters()) is not None:
                self._device = counters, first, self._storage_bytes()

    def _storage_bytes(self) -> int:
        return sum(used.get("storage", 0) for used in self._used.values())

    def end_reads(self) -> None:
        """Keep the present counters and batches, because reads are not recorded after this."""
        self.poll()
        self._seen = dict(self._used)
        if self._device is not None:
            counters, first, own = self._device
            if (now := counters()) is not None:
                read = now.since(first)
                self.request_bytes = read.request_bytes(self._storage_bytes() - own)
                self.in_flight = read.in_flight if self.request_bytes else None
        self.traced_until = time.monotonic_ns() if self.traced else 0
        for key, seen in self.loaders.items():
            seen.track.read = seen.track.batches
            for process in sorted(seen.all_workers or {key[0]})[-1:]:
                told = [random for path, _, random in _mapped_files(process) if self.log.file(path)]
                self.maps_random |= any(told)

    @property
    def steps(self) -> int:
        """Number of steps of the loader that has most."""
        return max((len(seen.track.rows) for seen in self.loaders.values()), default=0)

    # ---- Results.

    def asynchronous(self) -> bool:
        """Return True if a loader set up io_uring or libaio, whose reads are not traced."""
        return any(self._root(process) in self._owner for process in self.tracer.asynchronous)

    def _processes(self, keys: Iterable[Key]) -> set[int]:
        """Return the processes that read for these loaders."""
        roots = {root for key in keys for root in self.loaders[key].all_workers or {key[0]}}
        return {process for process in self.log.events if self._root(process) in roots}

    def batches(self, settings: Settings) -> list[list[list[Made]]]:
        """Return the traced batches of the loaders with these settings: of each rank, of each worker."""
        events: dict[int, list[Event]] = defaultdict(list)
        for process, its in self.log.events.items():
            root = self._root(process)
            if process != root or settings.marked:  # a worker waits for its decoder: that is no other thread
                its = [event._replace(thread=root) for event in its]
            events[root] += its
        ranks: dict[int, list[list[Made]]] = {}
        for key, seen in self.loaders.items():
            if seen.settings == settings:
                lanes = ranks.setdefault(key[0], [[] for _ in range(max(1, settings.workers))])
                alone = settings.marked or not settings.workers
                # Persistent workers are told in each epoch.
                started = dict.fromkeys(map(tuple, seen.workers))
                for workers in [(key[0],)] if alone else started:
                    for lane, worker in zip(lanes, workers, strict=False):
                        lane += made_by(events[worker], key[1] if alone else 0)
                if settings.marked:
                    ranks[key[0]] = [lanes[0]]
        return list(ranks.values())

    def found(self, host: str) -> list[tuple[Loader, Table]]:
        """Return the loaders that delivered batches, each with its steps.

        Loaders of a process that have the same settings count as one.
        """
        alike: dict[tuple[int, Settings], list[Key]] = {}
        tracks: dict[int, list[Track]] = {}
        for key, seen in self.loaders.items():
            if seen.settings.marked:
                seen.settings = self._read_ahead(key, seen)
            if seen.track.rows:
                alike.setdefault((key[0], seen.settings), []).append(key)
                tracks.setdefault(key[0], []).append(seen.track)
        taken = {process: batches_taken(of_process) for process, of_process in tracks.items()}
        return [self._found(host, keys, taken[process]) for (process, _), keys in alike.items()]

    def _found(self, host: str, keys: Sequence[Key], taken: NDArray[np.int64]) -> tuple[Loader, Table]:
        """Return the loaders `keys`, which count as one, and their steps; `taken`: of `batches_taken`."""
        first = keys[0]
        process, settings = first[0], self.loaders[first].settings
        tracks = [self.loaders[key].track for key in keys]
        table = joined([track.table(self.traced_until, taken) for track in tracks])
        steps, batches = np.sum([track.batches for track in tracks], 0).tolist()
        got, requested = np.sum([track.read for track in tracks], 0).tolist()
        traced, used = self._counters(keys, self._seen), self._counters(keys, self._used)
        early = traced["storage"] / requested if requested and "storage" in traced else None
        call_bytes = None
        if batches > requested:  # exclude the cost of tracing
            used, batches = _since(traced, used), batches - requested
            call_bytes = used["calls"] / batches if "calls" in used and batches >= FEW else None
        elif not self.traced and "calls" in used:
            call_bytes = used["calls"] / batches
        if settings.workers and not settings.marked:
            batch_cpu = used.get("ticks", 0) / os.sysconf("SC_CLK_TCK") / batches
        else:
            made = sum(self.loaders[key].untraced for key in keys)
            batch_cpu = sum(self.loaders[key].worked for key in keys) / 1e9 / max(1, made)
        loader = Loader(
            rank=tracks[0].rank,
            host=host,
            process=process,
            settings=settings,
            torch=self.loaders[first].torch,
            accelerator=self.accelerators.get(process, ""),
            epochs=sum(len(track.delivered) for track in tracks),
            steps=steps,
            batch_samples=float(table["samples"].mean()),
            read_steps=got,
            others=float(np.median(table["others"])),
            step_cpu_seconds=step_cpu(table),
            batch_cpu_seconds=batch_cpu,
            batch_call_bytes=call_bytes,
            batch_storage_bytes=used["storage"] / batches if "storage" in used else None,
            first_storage_bytes=early,
            reads=self.log.summary(self._processes(keys)),
        )
        return loader, table

    def _read_ahead(self, key: Key, seen: _Seen) -> Settings:
        """Return the settings of a job that marks its steps, with its reader threads as workers."""
        readers: Counter[int] = Counter()
        for process in self._processes([key]):
            for event in self.log.events[process]:
                readers[event.thread] += event.bytes if event.op == READ else 0
        total, by_steps = sum(readers.values()), readers[seen.thread]
        if not total or by_steps > total / 2:
            return seen.settings
        most = max(readers.values())
        others = sum(size > most / 4 for thread, size in readers.items() if thread != seen.thread)
        return replace(seen.settings, workers=others, prefetch_factor=1)

    def _counters(self, keys: Sequence[Key], used: Mapping[int, Mapping[str, int]]) -> dict[str, int]:
        """Return the counters `used` of the workers of the loaders `keys`, since the start of each worker.

        Without workers, return those of their process since the first of them was seen; empty if the process
        has other loaders without workers.
        """
        process, first = keys[0][0], self.loaders[keys[0]]
        total: Counter[str] = Counter()
        if first.settings.workers and not first.settings.marked:
            for worker in {worker for key in keys for worker in self.loaders[key].all_workers}:
                total.update(_since(self._begun.get(worker, {}), used.get(worker, {})))
            return total
        inside = sum(key[0] == process and not seen.settings.workers for key, seen in self.loaders.items())
        return {} if inside > len(keys) else _since(first.base, used.get(process, {}))

    def paths(self, settings: Settings) -> list[bytes]:
        """Return the sorted paths of the data files that the loaders with these settings read."""
        keys = [key for key, seen in self.loaders.items() if seen.settings == settings]
        events = (event for process in self._processes(keys) for event in self.log.events[process])
        return sorted({self.log.files[event.file].path for event in events if event.op in (READ, MAP)})

    def rest(self) -> Reads:
        """Return the reads for no DataLoader."""
        mine = self._processes(self.loaders)
        return self.log.summary(process for process in self.log.events if process not in mine)


def _mapped_files(process: int) -> list[tuple[bytes, int, bool]]:
    """Return the readable maps of a process, without programs: path, bytes, and True for MADV_RANDOM."""
    try:
        lines = Path(f"/proc/{process}/smaps").read_bytes().splitlines()
    except OSError:
        return []
    found: list[tuple[bytes, int, bool]] = []
    programs, mapped = set[bytes](), False
    for line in lines:
        name, *rest = line.split(maxsplit=5)
        if not name.endswith(b":"):  # BEGIN-END PERMISSIONS OFFSET DEVICE INODE PATH
            begin, end = (int(number, 16) for number in name.split(b"-"))
            path = b"".join(rest[4:])
            mapped = path.startswith(b"/") and b"r" in rest[0]
            programs |= {path} if b"x" in rest[0] else set()
            found += [(path, end - begin, False)] if mapped else []
        elif name == b"VmFlags:" and mapped:
            found[-1] = (*found[-1][:2], b" rr" in line)
    return [one for one in found if one[0] not in programs]


def _key(event: Mapping[str, Any]) -> Key:
    return _number(event, "p"), _number(event, "l")


def _number(event: Mapping[str, Any], name: str) -> int:
    """Return an integer field of an event. Raises ValueError if it is none or out of range."""
    value = event[name]
    if not isinstance(value, int) or not 0 <= value < 2**62:
        raise ValueError(f"{name} is not a valid number")
    return value


def _counters_in(event: Mapping[str, Any]) -> dict[str, int]:
    """Return the counters of a process from an event."""
    return {name: _number(event, name) for name in ("calls", "storage", "faults", "ticks") if name in event}


def _since(before: Mapping[str, int], now: Mapping[str, int]) -> dict[str, int]:
    return {name: max(0, value - before.get(name, 0)) for name, value in now.items()}
