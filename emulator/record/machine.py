"""Facts about the machine that a result was measured on, and its activity during the measurement."""

from __future__ import annotations

import os
import platform
import socket
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from threading import Event, Thread
from typing import Any

from emulator import __version__


def describe_machine() -> dict[str, Any]:
    """Return the facts about this host that a result depends on; None where the system does not tell."""
    return {
        "host": socket.gethostname(),
        "cpu": _cpu_model(),
        "cores": cores(),
        "cpu_limit": cpu_limit(),
        "governor": _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").strip() or None,
        "numa_nodes": len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) or None,
        "memory_bytes": memory_bytes(),
        "network": _network(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": installed("torch"),
        "feedrate": __version__,
    }


def installed(package: str) -> str | None:
    """Return the installed version of a package; None: it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def memory_bytes() -> int:
    """Return the bytes of physical memory, or of the lowest limit of this process's cgroups."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in ("memory.max", "memory.limit_in_bytes"):
        limits = (_read(str(file)).strip() for file in cgroup_files("memory", name))
        total = min([total, *(int(text) for text in limits if text.isdigit())])
    return total


def cpu_limit() -> float | None:
    """Return the cores that the lowest CPU quota of this process's cgroups amounts to; None: no quota."""
    pairs = [_read(str(file)).split() for file in cgroup_files("cpu", "cpu.max")]
    for file in cgroup_files("cpu", "cpu.cfs_quota_us"):
        pairs.append([_read(str(file)).strip(), _read(str(file.with_name("cpu.cfs_period_us"))).strip()])
    quotas = [int(pair[0]) / int(pair[1]) for pair in pairs if len(pair) == 2 and pair[0].isdigit()]
    return min(quotas, default=None)


def _network() -> dict[str, dict[str, int | None]]:
    """Return the interfaces that are up, by name: `mtu` in bytes, `speed` in bit/s, None if unknown."""
    found = {}
    for interface in sorted(Path("/sys/class/net").glob("*")):
        if interface.name == "lo" or _read(str(interface / "operstate")).strip() != "up":
            continue
        mtu, speed = (_read(str(interface / name)).strip() for name in ("mtu", "speed"))
        found[interface.name] = {
            "mtu": int(mtu) if mtu.isdigit() else None,
            "speed": 1_000_000 * int(speed) if speed.isdigit() else None,  # virtual ones say -1
        }
    return found


def describe_mount(folder: Path) -> dict[str, str]:
    """Return mount point, source, type and options of `folder`'s file system; empty if unknown."""
    path = folder.resolve()
    best: tuple[str, str, str, str] | None = None
    for line in _read("/proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        target, own = left.split()[4:6]
        target = target.replace("\\040", " ")
        kind, source, shared = right.split()[:3]
        # Of mounts stacked on one place the last one counts, hence >=.
        if path.is_relative_to(target) and (best is None or len(target) >= len(best[0])):
            # Those of the mount, then those of the file system, which repeat rw.
            best = (target, source, kind, ",".join(dict.fromkeys(f"{own},{shared}".split(","))))
    return {} if best is None else dict(zip(("mount", "source", "type", "options"), best, strict=True))


def cgroup_files(controller: str, name: str) -> list[Path]:
    """Return the file `name` in this process's cgroup and its ancestors, nearest first, where it exists.

    Covers cgroups v2, and v1 with `controller`; in a container only the visible ancestors.
    """
    groups = {}
    for line in _read("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            groups["cgroup" if controllers else "cgroup2"] = path
    found: list[Path] = []
    for line in _read("/proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        root, target = left.split()[3:5]
        kind, _, options = right.split()[:3]
        if kind not in groups or (kind == "cgroup" and controller not in options.split(",")):
            continue
        mount, inside = Path(target), Path(groups[kind])
        group = mount / inside.relative_to(root) if inside.is_relative_to(root) else mount
        if ".." in group.parts or not group.is_dir():  # a cgroup outside of what this namespace shows
            group = mount
        while group.is_relative_to(mount):
            found += [group / name] if (group / name).is_file() else []
            group = group.parent
    return found


def _cpu_model() -> str:
    for line in _read("/proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostActivity:
    """CPU, network and pressure of a host between two moments. None if the system does not report a value."""

    busy_share: float | None
    """Share of the time of the cores that this process may use that was not idle (0 to 1)."""
    steal_share: float | None
    """Share of the same time that a hypervisor took away (0 to 1)."""
    runqueue: float | None
    """Mean number of runnable threads."""
    nic_bytes: int | None
    """Bytes received, without loopback."""
    pressure: dict[str, float]
    """`cpu`, `io`, `memory` -> share of the time in which some thread waited for it (PSI).

    `cgroup cpu` and so on -> the same of this process's cgroup. Empty where the kernel does not tell.
    """


class HostProbe:
    """Probe that watches this host from `start()` to `stop()`, in a thread that wakes twice a second."""

    PERIOD = 0.5
    """Seconds between two samples of the run queue."""

    def __init__(self) -> None:
        self._done = Event()
        self._cores = frozenset(os.sched_getaffinity(0))
        self._queue: list[int] = []
        self._thread = Thread(target=self._watch, name="host-probe", daemon=True)

    def start(self) -> None:
        self._ticks, self._nic = _ticks(self._cores), _nic_bytes()
        self._began, self._stalled = time.monotonic(), _stalled()
        self._thread.start()

    def stop(self) -> HostActivity:
        """Return the activity of the host since `start()`."""
        self._done.set()
        self._thread.join()
        nic, stalled = _nic_bytes(), _stalled()
        seconds = max(1e-9, time.monotonic() - self._began)
        spent = [after - before for after, before in zip(_ticks(self._cores), self._ticks, strict=False)]
        total = sum(spent[:8])
        return HostActivity(
            busy_share=1 - (spent[3] + spent[4]) / total if total else None,
            steal_share=spent[7] / total if total else None,
            runqueue=sum(self._queue) / len(self._queue) if self._queue else None,
            nic_bytes=None if nic is None or self._nic is None else nic - self._nic,
            pressure={name: (stalled[name] - was) / seconds for name, was in self._stalled.items()},
        )

    def _watch(self) -> None:
        while not self._done.wait(self.PERIOD):
            running = _proc_stat("procs_running")
            if running:
                self._queue.append(max(0, running[0] - 1))  # this thread is one of them


def _proc_stat(name: str) -> list[int]:
    """Return the numbers of a line of /proc/stat; empty if it cannot be read."""
    for line in _read("/proc/stat").splitlines():
        if line.startswith(name + " "):
            return [int(part) for part in line.split()[1:]]
    return []


def _ticks(cores: frozenset[int]) -> list[int]:
    """Return the summed ticks of these cores: user, nice, system, idle, iowait, irq, softirq, steal, ..."""
    names = {f"cpu{core}" for core in cores}
    lines = [line.split() for line in _read("/proc/stat").splitlines()]
    rows = [map(int, numbers) for name, *numbers in filter(None, lines) if name in names]
    return [sum(column) for column in zip(*rows, strict=False)]


def _stalled() -> dict[str, float]:
    """Return the seconds in which some thread waited, by resource as in HostActivity.pressure (Linux PSI)."""
    found = {}
    for name in ("cpu", "io", "memory"):
        files = {name: Path("/proc/pressure") / name}
        own = [
            file for file in cgroup_files("", f"{name}.pressure") if (file.parent / "cgroup.type").is_file()
        ]
        if own:  # not the root, whose pressure is the host's
            files[f"cgroup {name}"] = own[0]
        for key, file in files.items():
            words = (
                _read(str(file)).partition("\n")[0].split()
            )  # some avg10=... avg60=... avg300=... total=MICROSECONDS
            if words[:1] == ["some"]:
                found[key] = int(words[-1].removeprefix("total=")) / 1e6
    return found


def _nic_bytes() -> int | None:
    rows = _read("/proc/net/dev").splitlines()[2:]
    pairs = [row.split(":", 1) for row in rows]
    received = [int(rest.split()[0]) for name, rest in pairs if name.strip() != "lo"]
    return sum(received) if received else None


def cpu_seconds() -> float:
    """Return the user + system seconds of this process so far."""
    times = os.times()
    return times.user + times.system


def utc_now() -> str:
    """Return the current time as ISO 8601, UTC, whole seconds."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
