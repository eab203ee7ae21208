"""Facts about the machine that a result was measured on."""

from __future__ import annotations

import os
import platform
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from emulator import __version__


def describe_machine() -> dict[str, Any]:
    """Return the facts about this host that a result depends on; None where the system does not tell."""
    return {
        "host": socket.gethostname(),
        "cpu": _cpu_model(),
        "cores": cores(),
        "cpu_limit": cpu_limit(),
        "governor": read_text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").strip() or None,
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
    from importlib import metadata  # imported here: 15 ms that most commands need not pay

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
        limits = (read_text(file).strip() for file in cgroup_files("memory", name))
        total = min([total, *(int(text) for text in limits if text.isdigit())])
    return total


def free_memory_bytes() -> int:
    """Return the bytes of memory that are available, at most those of `memory_bytes`."""
    import psutil  # imported here: ranks that do not need it do not pay for it

    return min(int(psutil.virtual_memory().available), memory_bytes())


def cpu_limit() -> float | None:
    """Return the cores that the lowest CPU quota of this process's cgroups amounts to; None: no quota."""
    pairs = [read_text(file).split() for file in cgroup_files("cpu", "cpu.max")]
    for file in cgroup_files("cpu", "cpu.cfs_quota_us"):
        pairs.append([read_text(file).strip(), read_text(file.with_name("cpu.cfs_period_us")).strip()])
    quotas = [int(pair[0]) / int(pair[1]) for pair in pairs if len(pair) == 2 and pair[0].isdigit()]
    return min(quotas, default=None)


def _network() -> dict[str, dict[str, int | None]]:
    """Return the interfaces that are up, by name: `mtu` in bytes, `speed` in bit/s, None if unknown."""
    import psutil  # here, as above

    interfaces = sorted(psutil.net_if_stats().items())
    return {
        name: {"mtu": stats.mtu, "speed": 1_000_000 * stats.speed or None}
        for name, stats in interfaces
        if stats.isup and name != "lo"
    }


def describe_mount(folder: Path) -> dict[str, str]:
    """Return mount point, source, type and options of `folder`'s file system; empty if unknown."""
    mount = mount_of(folder.resolve())
    mount.pop("device", None)
    return mount


def mount_of(path: Path) -> dict[str, str]:
    """Return the same and `device`, major:minor, for an absolute path, without touching it."""
    best: dict[str, str] = {}
    for line in read_text("/proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        device, _, target, own = left.split()[2:6]
        target = target.replace("\\040", " ")
        kind, source, shared = right.split()[:3]
        # Of mounts stacked on one place the last one counts, hence >=.
        if path.is_relative_to(target) and len(target) >= len(best.get("mount", "")):
            # Those of the mount, then those of the file system, which repeat rw.
            options = ",".join(dict.fromkeys(f"{own},{shared}".split(",")))
            best = {"mount": target, "source": source, "type": kind, "options": options, "device": device}
    return best


def cgroup_files(controller: str, name: str) -> list[Path]:
    """Return the file `name` in this process's cgroup and its ancestors, nearest first, where it exists.

    Covers cgroups v2, and v1 with `controller`; in a container only the visible ancestors.
    """
    groups = {}  # kind of file system -> this process's group in it
    for line in read_text("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            groups["cgroup" if controllers else "cgroup2"] = Path(path)
    files: list[Path] = []
    for line in read_text("/proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        root, mount = map(Path, left.split()[3:5])
        kind, _, options = right.split()[:3]
        if kind in groups and (kind == "cgroup2" or controller in options.split(",")):
            visible = _visible_groups(mount, root, groups[kind])
            files += [group / name for group in visible if (group / name).is_file()]
    return files


def _visible_groups(mount: Path, root: Path, group: Path) -> Iterator[Path]:
    """Yield the folders of a cgroup and of its ancestors below `mount`, which shows the cgroup `root`."""
    folder = mount / group.relative_to(root) if group.is_relative_to(root) else mount
    if ".." in folder.parts or not folder.is_dir():  # a cgroup outside of what this namespace shows
        folder = mount
    while folder.is_relative_to(mount):
        yield folder
        folder = folder.parent


def _cpu_model() -> str:
    for line in read_text("/proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def read_text(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def utc_now() -> str:
    """Return the current time as ISO 8601, UTC, whole seconds."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
