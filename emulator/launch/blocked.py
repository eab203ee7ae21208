"""Find the system call that a thread of this process is blocked in, and its file.

/proc/self/task/TID/syscall has the call's number and arguments; descriptors are links in /proc/self/fd, and
paths are read from this process's memory. This finds calls of libraries, too.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from emulator.launch.process import process_state
from emulator.record.device import counters_at
from emulator.record.machine import mount_of

# fmt: off
_OF_DESCRIPTORS = {
    "x86_64": {
        0: "read", 1: "write", 3: "close", 5: "fstat", 8: "lseek", 17: "pread", 18: "pwrite", 19: "readv",
        20: "writev", 40: "sendfile", 74: "fsync", 75: "fdatasync", 77: "ftruncate", 138: "fstatfs",
        217: "listdir", 221: "fadvise", 277: "sync_file_range", 285: "fallocate", 295: "preadv",
        296: "pwritev", 306: "syncfs", 326: "copy_file_range", 327: "preadv", 328: "pwritev",
    },
    "aarch64": {
        44: "fstatfs", 46: "ftruncate", 47: "fallocate", 57: "close", 61: "listdir", 62: "lseek", 63: "read",
        64: "write", 65: "readv", 66: "writev", 67: "pread", 68: "pwrite", 69: "preadv", 70: "pwritev",
        71: "sendfile", 80: "fstat", 82: "fsync", 83: "fdatasync", 84: "sync_file_range", 223: "fadvise",
        267: "syncfs", 285: "copy_file_range", 286: "preadv", 287: "pwritev",
    },
}
"""Names of calls whose first argument is a descriptor, by machine and number."""

_OF_PATHS = {
    "x86_64": {
        2: ("open", 0), 257: ("open", 1), 4: ("stat", 0), 6: ("stat", 0), 262: ("stat", 1), 332: ("stat", 1),
        21: ("access", 0), 269: ("access", 1), 439: ("access", 1), 137: ("statfs", 0), 76: ("truncate", 0),
        82: ("rename", 0), 264: ("rename", 1), 316: ("rename", 1), 87: ("unlink", 0), 263: ("unlink", 1),
        83: ("mkdir", 0), 258: ("mkdir", 1), 84: ("rmdir", 0), 86: ("link", 0), 265: ("link", 1),
        88: ("symlink", 1), 266: ("symlink", 2), 89: ("readlink", 0), 267: ("readlink", 1), 90: ("chmod", 0),
        268: ("chmod", 1), 280: ("utime", 1), 191: ("getxattr", 0), 194: ("listxattr", 0),
    },
    "aarch64": {
        56: ("open", 1), 79: ("stat", 1), 291: ("stat", 1), 48: ("access", 1), 439: ("access", 1),
        43: ("statfs", 0), 45: ("truncate", 0), 38: ("rename", 1), 276: ("rename", 1), 35: ("unlink", 1),
        34: ("mkdir", 1), 37: ("link", 1), 36: ("symlink", 2), 78: ("readlink", 1), 53: ("chmod", 1),
        88: ("utime", 1), 8: ("getxattr", 0), 11: ("listxattr", 0),
    },
}
# fmt: on
"""Names of calls with a path, and the index of that argument, by machine and number."""

_OTHERS = {
    "x86_64": {11: "munmap", 26: "msync", 27: "mincore", 28: "madvise", 162: "sync"},
    "aarch64": {215: "munmap", 227: "msync", 232: "mincore", 233: "madvise", 81: "sync"},
}
"""Names of calls that may wait for a file system but take no file, by machine and number."""

_PATH_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Call:
    """A call into a file system."""

    name: str
    path: str = ""
    """Path of the file; empty if unknown."""

    def __str__(self) -> str:
        return f"{self.name} of {self.path}" if self.path else self.name


def open_files() -> dict[int, str]:
    """Return the paths of this process's open files, by descriptor."""
    paths = {}
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        with suppress(OSError):
            path = os.readlink(f"/proc/self/fd/{name}")  # noqa: PTH115
            if _is_file(path):
                paths[int(name)] = path
    return paths


def _is_file(path: str) -> bool:
    # Step barriers wait on named pipes that have been unlinked.
    return (
        path.startswith("/") and not path.startswith(("/dev/", "/proc/")) and not path.endswith(" (deleted)")
    )


def blocked_call(thread: int, files: Mapping[int, str]) -> Call | None:
    """Return the call into a file system that a thread of this process is blocked in, or None.

    `files` are earlier results of `open_files`: the kernel frees a descriptor before it closes the file, so
    the path of a close that hangs can no longer be looked up.
    Pipes, sockets and terminals do not count: a thread that waits there waits for a process.
    """
    machine = os.uname().machine
    try:
        number, *values = Path(f"/proc/self/task/{thread}/syscall").read_text().split()
        if number == "-1":  # no system call: a page fault, or the thread runs
            return Call("a read of a mapped file") if process_state(thread) == "D" else None
        arguments = [int(value, 16) for value in values[:6]]
        if name := _OF_DESCRIPTORS.get(machine, {}).get(int(number)):
            if name == "close":
                return Call(name, files.get(arguments[0], "a file"))
            path = str(Path(f"/proc/self/fd/{arguments[0]}").readlink())
            return Call(name, path) if _is_file(path) else None
        if path_call := _OF_PATHS.get(machine, {}).get(int(number)):
            return Call(path_call[0], _text_at(arguments[path_call[1]]))
        name = _OTHERS.get(machine, {}).get(int(number))
        return Call(name) if name else None
    except (OSError, ValueError, IndexError):  # the thread runs or has ended, or the kernel does not say
        return None


def _text_at(address: int) -> str:
    """Return the C string at `address`, read through /proc because it may have been freed by now."""
    memory = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        page = _PATH_BYTES - address % _PATH_BYTES
        data = os.pread(memory, page, address)
        if b"\0" not in data:
            with suppress(OSError):
                data += os.pread(memory, _PATH_BYTES, address + page)
    finally:
        os.close(memory)
    return os.fsdecode(data.partition(b"\0")[0])


def bytes_moved(path: str) -> tuple[str, int]:
    """Return the mount point of `path` and the bytes read and written there so far; 0 bytes if unknown.

    The kernel counts them for local disks and NFS. This does not access the storage.
    """
    mount = mount_of(Path(path or "/"))
    with suppress(OSError, ValueError, IndexError):
        if counters := counters_at(mount)():
            return mount["mount"], counters.bytes + counters.written_bytes
    return mount.get("mount", ""), 0
