"""Collect the events of a job's processes and tracer, and assign processes to DataLoaders."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emulator.config.reader import build
from emulator.errors import FeedrateError
from emulator.plugins.recorder.faults import MOST_EVENTS, Faults
from emulator.plugins.recorder.hook.feedrate_probe import usage
from emulator.plugins.recorder.observation import Loader, Settings
from emulator.plugins.recorder.reads import Reads, Reduction
from emulator.plugins.recorder.steps import FEW, Table, Track, batches_taken, joined, step_cpu
from emulator.plugins.recorder.strace import Tracer
from emulator.record.device import Counters, DeviceReads, counters_of

MOST_LOADERS = 1000
_MOST_POLLED = 256
"""Most processes whose counters are polled."""
_MOST_POLLS = 20_000
"""Most polls of which `progress` is kept, over an hour."""

_MANY_MAPS = 16
"""Fewest maps of a process that maps a file for each sample."""

Key = tuple[int, int]
"""Key of a DataLoader: the process that made it, and its number there."""


@dataclass(slots=True)
class _Seen:
    """One DataLoader."""

    settings: Settings = field(default_factory=Settings)
    track: Track = field(default_factory=lambda: Track(0))
    torch: str = ""
    workers: set[int] = field(default_factory=set)
    base: dict[str, int] = field(default_factory=dict)
    """Counters of the process of a loader without workers, at the first sight of the loader."""
    untraced: int = 0
    """Batches delivered without tracing."""
    worked: int = 0
    """CPU nanoseconds of the process itself for these batches."""
    thread: int = 0
    """ID of the thread that marks steps, in a job that does."""
    readers: tuple[int, ...] = ()
    """Living processes of a job that marks its steps, once it is no longer traced."""
    since: tuple[int, int] = (0, 0)
    """(steps, bytes that calls of `readers` returned) when the number of `readers` changed."""
    called: tuple[int, int] = (0, 0)
    """Steps with the same `readers`, and bytes of their calls meanwhile; of the longest such time."""
    progress: list[tuple[int, int]] = field(default_factory=list)
    """Batches requested of an iterable dataset, and bytes that calls returned, at each poll after tracing."""


class Watch:
    """The state of one recording. Not thread-safe."""

    def __init__(self, *, traced: bool, keep_names: bool = False) -> None:
        self.reduction = Reduction(keep_names)
        self.tracer = Tracer(self.reduction, self._group)
        self.traced = traced
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
        self._device: tuple[Counters, DeviceReads, int] | None = None
        """Counters of the data's device, their values at first, and the job's bytes from storage then."""
        self._faults: dict[int, Faults | None] = {}  # process that maps files -> its page faults
        self._owner: dict[int, Key] = {}  # worker process -> its loader
        self._used: dict[int, dict[str, int]] = {}  # process -> its last counters
        self._seen: dict[int, dict[str, int]] = {}  # `_used` when reads were seen for the last time
        self._begun: dict[int, dict[str, int]] = {}  # worker process -> its counters before its first batch
        self._alive: set[int] = set()  # processes whose counters are polled
        self._handlers: dict[str, Callable[[Mapping[str, Any]], None]] = {
            "p": self._began,
            "w": self._began,
            "u": self._worker_ended,
            "l": self._settings,
            "s": self._delivered,
            "x": self._epoch_ended,
            "o": self._file_opened,
            "d": self._accelerator,
            "t": self._computed,
            "a": lambda event: self.asking.append(_number(event, "p")),
            "lost": self._events_lost,
        }
        self._rest = b""

    def _group(self, process: int) -> object:
        """Return the loader of `process` or of its nearest ancestor with one, otherwise `process`."""
        at, seen = process, 0
        while at not in self._owner and at in self.tracer.parents and seen < 64:
            at, seen = self.tracer.parents[at], seen + 1
        return self._owner.get(at, process)

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
            self._begun[process] = _counters_in(event)
            self._add_maps(process, self._group(process))
        self._watch_counters(process)

    def _worker_ended(self, event: Mapping[str, Any]) -> None:
        process = _number(event, "p")
        self._used[process] = _counters_in(event)
        self._alive.discard(process)

    def _file_opened(self, event: Mapping[str, Any]) -> None:
        group = self._group(_number(event, "p"))
        if not self.traced or group not in self.loaders:  # reads of a loader's processes are traced calls
            self.reduction.named(group, str(event["f"]).encode(errors="surrogateescape"))

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
            if not seen.settings.workers and not seen.base:
                seen.base = usage(f"/proc/{key[0]}")
                self._add_maps(key[0], key)
            if seen.settings.marked:  # its child processes also read for its steps
                seen.thread = _number(event, "t")
                self._owner.setdefault(key[0], key)
        for worker in event["w"]:
            process = int(worker)
            seen.workers.add(process)
            self.reduction.move(self._group(process), key)
            self._owner[process] = key
            self._watch_counters(process)

    def _add_maps(self, process: int, group: object) -> None:
        """Count the mapped files of `process` in `group`: no call shows those of its parent."""
        if self.traced:
            for one in _mapped_files(process):
                self.reduction.mapped(group, one.path, one.size)

    def _look_at_maps(self, key: Key, process: int) -> None:
        """Find out whether the kernel was told that a process of a loader reads its maps at random.

        Tracing madvise(2) would cost more: memory allocators call it all the time.
        """
        if not self.reduction.group(key).totals["mapped"]:
            return
        told: Counter[bool] = Counter()
        for one in _maps(Path(f"/proc/{process}/smaps")):
            told[one.random] += one.size if self.reduction.file(one.path) is not None else 0
        self.reduction.group(key).map_random = told[True] > told[False]

    def look_at_faults(self) -> None:
        """Read the page faults of processes that map files for their samples, if that is permitted."""
        for process, maps in self.tracer.maps.items():
            if process in self._faults or maps < _MANY_MAPS:
                continue
            self._faults[process] = None
            if sum(one.events for one in self._faults.values() if one) < MOST_EVENTS:
                with suppress(OSError):
                    self._faults[process] = Faults(process)
        for process, faults in self._faults.items():
            for touched in faults.read() if faults else ():
                self.reduction.faulted(self._group(process), touched)

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
        for key, seen in self.loaders.items():
            if seen.readers:
                self._count_calls(seen, [process for process in seen.readers if process in self._alive])
            elif self.traced_until and seen.settings.iterable:
                self._follow(key, seen)

    def _find_device(self) -> None:
        """Begin to count the requests that the device of the first loader's data gets."""
        paths = (path for key in self.loaders for path in self.reduction.group(key).paths.values())
        if (path := next(paths, None)) is not None:
            counters = counters_of(Path(os.fsdecode(path)).parent)
            if (first := counters()) is not None:
                self._device = counters, first, self._storage_bytes()

    def _storage_bytes(self) -> int:
        return sum(used.get("storage", 0) for used in self._used.values())

    def _count_calls(self, seen: _Seen, readers: Sequence[int]) -> None:
        """Count what calls of `readers`, which live, returned since there are as many of them."""
        steps, calls = len(seen.track.rows), sum(self._used[one].get("calls", 0) for one in readers)
        if tuple(readers) != seen.readers:  # a parent's counters include those of a child that has ended
            seen.readers, seen.since = tuple(readers), (steps, calls)
        seen.called = max(seen.called, (steps - seen.since[0], calls - seen.since[1]))

    def _follow(self, key: Key, seen: _Seen) -> None:
        """Keep how much the workers have read, for how many batches."""
        if seen.workers and len(seen.progress) < _MOST_POLLS:
            calls = self._counters([key], self._used).get("calls", 0)
            seen.progress.append((seen.track.batches[1], calls))

    def end_reads(self) -> None:
        """Keep the present counters and batches, because reads are not recorded after this."""
        self.poll()
        for process, faults in self._faults.items():
            for touched in faults.close() if faults else ():
                self.reduction.faulted(self._group(process), touched)
        self._faults.clear()
        self._seen = dict(self._used)
        if self._device is not None:
            counters, first, own = self._device
            if (now := counters()) is not None:
                self.request_bytes = now.since(first).request_bytes(self._storage_bytes() - own)
        self.traced_until = time.monotonic_ns() if self.traced else 0
        for key, seen in self.loaders.items():
            seen.track.read = seen.track.batches
            self._look_at_maps(key, min(seen.workers, default=key[0]))
            if seen.settings.marked:
                self._count_calls(seen, [one for one in self._alive if self._group(one) == key])

    @property
    def steps(self) -> int:
        """Number of steps of the loader that has most."""
        return max((len(seen.track.rows) for seen in self.loaders.values()), default=0)

    # ---- Results.

    def asynchronous(self) -> bool:
        """Return True if a loader set up io_uring or libaio, whose reads are not traced."""
        return any(self._group(process) in self.loaders for process in self.tracer.asynchronous)

    def found(self, host: str) -> list[tuple[Loader, Table]]:
        """Return the loaders that delivered batches, each with its steps.

        Loaders of a process that have the same settings count as one.
        """
        alike: dict[tuple[int, Settings], list[Key]] = {}
        tracks: dict[int, list[Track]] = {}
        for key, seen in self.loaders.items():
            if seen.settings.marked:
                seen.settings = self._read_ahead(key, seen)
            if not self.traced and not seen.settings.workers:
                self.reduction.move(key[0], key)  # the opened files of a process are its first such loader's
            if seen.track.rows:
                alike.setdefault((key[0], seen.settings), []).append(key)
                tracks.setdefault(key[0], []).append(seen.track)
        taken = {process: batches_taken(of_process) for process, of_process in tracks.items()}
        return [self._found(host, keys, taken[process]) for (process, _), keys in alike.items()]

    def _found(self, host: str, keys: Sequence[Key], taken: NDArray[np.int64]) -> tuple[Loader, Table]:
        """Return the loaders `keys`, which count as one, and their steps; `taken`: of `batches_taken`."""
        first, *others = keys
        for other in others:
            self.reduction.move(other, first)
        process, settings = first[0], self.loaders[first].settings
        tracks = [self.loaders[key].track for key in keys]
        table = joined([track.table(self.traced_until, taken) for track in tracks])
        steps, batches = np.sum([track.batches for track in tracks], 0).tolist()
        got, requested = np.sum([track.read for track in tracks], 0).tolist()
        counters, used = self._counters(keys, self._seen), self._counters(keys, self._used)
        call_bytes = None
        if batches > requested:  # exclude the cost of tracing
            used, batches = _since(counters, used), batches - requested
            call_bytes = used["calls"] / batches if "calls" in used else None
        if settings.marked:
            counted, calls = self.loaders[first].called
            call_bytes = calls / counted if counted >= FEW else None
        if settings.workers:
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
            samples=sum(track.samples for track in tracks),
            batch_samples=float(table["samples"].mean()),
            read_steps=got,
            ahead=requested / got if got else 1.0,
            others=float(np.median(table["others"])),
            step_cpu_seconds=step_cpu(table),
            batch_cpu_seconds=batch_cpu,
            batch_call_bytes=call_bytes,
            batch_storage_bytes=used["storage"] / batches if "storage" in used else None,
            uneven=max(uneven(self.loaders[key].progress) for key in keys),
            reads=self.reduction.seen(first, counters, not self.traced),
        )
        return loader, table

    def _read_ahead(self, key: Key, seen: _Seen) -> Settings:
        """Return the settings of a job that marks its steps, with its reader threads as workers."""
        readers = self.reduction.group(key).readers
        total, by_steps = sum(readers.values()), readers[seen.thread]
        if not total or by_steps > total / 2:
            return seen.settings
        most = max(readers.values())
        others = sum(size > most / 4 for thread, size in readers.items() if thread != seen.thread)
        return replace(seen.settings, workers=others, prefetch_factor=1)

    def files(self, settings: Settings) -> list[bytes]:
        """Return the sorted paths of the first files that the loaders with these settings read."""
        groups = [
            self.reduction.group(key) for key, seen in self.loaders.items() if seen.settings == settings
        ]
        return sorted({path for group in groups for path in group.paths.values()})

    def _counters(self, keys: Sequence[Key], used: Mapping[int, Mapping[str, int]]) -> dict[str, int]:
        """Return the counters `used` of the workers of the loaders `keys`, since the start of each worker.

        Without workers, return those of their process since the first of them was seen; empty if the process
        has other loaders without workers.
        """
        process, first = keys[0][0], self.loaders[keys[0]]
        total: Counter[str] = Counter()
        if first.settings.workers and not first.settings.marked:
            for worker in (worker for key in keys for worker in self.loaders[key].workers):
                total.update(_since(self._begun.get(worker, {}), used.get(worker, {})))
            return total
        inside = sum(key[0] == process and not seen.settings.workers for key, seen in self.loaders.items())
        return {} if inside > len(keys) else _since(first.base, used.get(process, {}))

    def rest(self) -> Reads:
        """Return the reads for no DataLoader."""
        for key in [key for key in self.reduction.groups if key not in self.loaders and key != "rest"]:
            self.reduction.move(key, "rest")
        mine = {worker for seen in self.loaders.values() for worker in seen.workers}
        counters: Counter[str] = Counter()
        for process, used in self._used.items():
            if process not in mine:
                counters.update(used)
        return self.reduction.seen("rest", counters, sizes_only=True)


def uneven(progress: Sequence[tuple[int, int]]) -> float:
    """Return how far the bytes so far were off those of a steady rate, relative to all: half the range.

    `progress` has (batches, bytes), both rising.
    """
    if not progress:
        return 0.0
    batches, read = np.array(progress, np.float64).T
    batches, read = batches - batches[0], read - read[0]
    if not batches[-1] or not read[-1]:
        return 0.0
    return float(np.ptp(read / read[-1] - batches / batches[-1]) / 2)


@dataclass(slots=True)
class _Map:
    """A file that a process has mapped."""

    path: bytes
    size: int
    permissions: bytes
    random: bool = False
    """True if it has MADV_RANDOM, which only smaps shows."""


def _maps(file: Path) -> list[_Map]:
    """Return the mapped files in /proc/PID/maps, or in smaps, which is slower."""
    try:
        lines = file.read_bytes().splitlines()
    except OSError:
        return []
    found: list[_Map] = []
    for line in lines:
        name, *rest = line.split(maxsplit=5)
        if not name.endswith(b":"):  # BEGIN-END PERMISSIONS OFFSET DEVICE INODE PATH
            begin, end = (int(number, 16) for number in name.split(b"-"))
            found.append(_Map(b"".join(rest[4:]), end - begin, rest[0]))
        elif name == b"VmFlags:":
            found[-1].random = b" rr" in line
    return [one for one in found if one.path.startswith(b"/")]


def _mapped_files(process: int) -> list[_Map]:
    """Return the readable maps of a process, without programs and libraries."""
    found = _maps(Path(f"/proc/{process}/maps"))
    programs = {one.path for one in found if b"x" in one.permissions}
    return [one for one in found if b"r" in one.permissions and one.path not in programs]


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
