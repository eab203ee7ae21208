"""A file with a known bandwidth, or a known latency, for a loop device to lie on.

    medium.py BACKING FILE BYTES_PER_SECOND     as root: shows BACKING as FILE until FILE is unmounted
    medium.py BACKING FILE BYTES_PER_SECOND LATENCY [JITTER [IOPS]]

A FUSE file system of one file, without libraries. Reads and writes share one bandwidth, as on a disk with one
arm; cgroups count them apart. With a LATENCY in seconds each request takes that long more, and THREADS of
them are served at a time; they differ evenly by a share of JITTER. A rate, or IOPS, of 0 is no limit.
"""

from __future__ import annotations

import ctypes
import errno
import os
import random
import stat
import struct
import sys
import threading
import time

INIT, GETATTR, OPEN, READ, WRITE, RELEASE, FSYNC, FLUSH = 26, 3, 14, 15, 16, 18, 20, 25
WITHOUT_REPLY = (2, 36, 42)  # forget, interrupt, forget many
MOST = 2**20
"""Bytes of a request, data only."""
FLAGS = 1 | 1 << 5 | 1 << 15 | 1 << 22
"""Reads without an order, big writes, direct I/O in parallel, as many pages as MOST holds."""
LAG = 0.02
"""Seconds by which a late wake-up is made up for."""


THREADS = 48
"""Requests of a medium with latency that are served at a time."""


class Medium:
    """One time line for all bytes and requests, and a delay for each request."""

    def __init__(self, rate: float, latency: float = 0.0, jitter: float = 0.0, iops: float = 0.0) -> None:
        self._byte_seconds = 1 / rate if rate else 0.0
        self._request_seconds = 1 / iops if iops else 0.0
        self._latency = latency
        self._jitter = jitter
        self._free = 0.0
        self._lock = threading.Lock()

    def pass_bytes(self, count: int) -> None:
        """Return when the medium has moved the bytes."""
        now = time.monotonic()
        end = now + self._latency * random.uniform(1 - self._jitter, 1 + self._jitter)
        if taken := count * self._byte_seconds + self._request_seconds:
            with self._lock:
                self._free = max(self._free, now - LAG) + taken
                end = max(end, self._free + self._latency)
        if end > now:
            time.sleep(end - now)


def mount(path: str) -> int:
    """The kernel's end of a FUSE file at `path`; the file must exist."""
    device = os.open("/dev/fuse", os.O_RDWR)
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={device},rootmode={stat.S_IFREG:o},user_id=0,group_id=0"
    if libc.mount(b"medium", path.encode(), b"fuse", 0, options.encode()):
        raise OSError(ctypes.get_errno(), "cannot mount", path)
    return device


def attributes(size: int) -> bytes:
    now = int(time.time())
    numbers = (1, size, size // 512, now, now, now, 0, 0, 0, stat.S_IFREG | 0o600, 1, 0, 0, 0, 4096, 0)
    return struct.pack("<QII6Q10I", 3600, 0, 0, *numbers)


def answer(kind: int, body: bytes, file: int, medium: Medium) -> bytes:
    """Answer the request. Raises OSError."""
    if kind == INIT:
        return struct.pack("<IIIIHHIIHHI28x", 7, 31, MOST, FLAGS, 64, 48, MOST, 1, MOST // 4096, 0, 0)
    if kind == GETATTR:
        return attributes(os.fstat(file).st_size)
    if kind == OPEN:
        return struct.pack("<QII", 0, 0, 0)
    if kind in (READ, WRITE):
        _, offset, size = struct.unpack_from("<QQI", body)
        medium.pass_bytes(size)
        if kind == READ:
            return os.pread(file, size, offset)
        return struct.pack("<II", os.pwrite(file, body[40 : 40 + size], offset), 0)
    if kind in (RELEASE, FSYNC, FLUSH):
        return b""
    raise OSError(errno.ENOSYS, "not needed for a loop device")


def serve(device: int, file: int, medium: Medium) -> None:
    """Answer requests until the file is unmounted."""
    while True:
        try:
            request = os.read(device, MOST + 4096)
        except OSError as error:
            if error.errno == errno.ENODEV:  # unmounted
                return
            raise
        _, kind, number = struct.unpack_from("<IIQ", request)
        if kind in WITHOUT_REPLY:
            continue
        status, reply = 0, b""
        try:
            reply = answer(kind, request[40:], file, medium)
        except OSError as error:
            status = -(error.errno or errno.EIO)
        os.write(device, struct.pack("<IiQ", 16 + len(reply), status, number) + reply)


if __name__ == "__main__":
    backing, shown, rate, *late = sys.argv[1:]
    opened = os.open(backing, os.O_RDWR)
    end = mount(shown)
    if os.fork():
        os._exit(0)  # mounted: the caller goes on, the child serves
    os.setsid()
    for stream in (1, 2):  # nobody waits for their end
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    medium = Medium(float(rate), *map(float, late))
    for _ in range(THREADS - 1 if late else 0):
        threading.Thread(target=serve, args=(end, opened, medium), daemon=True).start()
    serve(end, opened, medium)
