"""A FUSE server with one file, `disk`, that a loop device makes a disk of: `python3 disk.py MOUNT SIZE LOG`.

Every write and every flush is appended to LOG. From it follows what the disk would hold after a power cut at
any moment: all that was written before the last flush, and any part of what came later.
"""

import os
import stat
import struct
import sys

try:
    from fuse import FUSE, FuseOSError, Operations
except ImportError:  # Debian calls it by another name
    from fusepy import FUSE, FuseOSError, Operations

RECORD = struct.Struct("<qq")
"""Offset and bytes of a write, which follow; a flush has the offset -1."""


class Disk(Operations):  # type: ignore[misc]
    def __init__(self, size, log):
        self.data = bytearray(size)
        self.log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)

    def getattr(self, path, fh=None):
        if path == "/":
            return {"st_mode": stat.S_IFDIR | 0o700, "st_nlink": 2}
        if path == "/disk":
            return {"st_mode": stat.S_IFREG | 0o600, "st_nlink": 1, "st_size": len(self.data)}
        raise FuseOSError(2)

    def readdir(self, path, fh):
        return [".", "..", "disk"]

    def open(self, path, flags):
        return 0

    def read(self, path, size, offset, fh):
        return bytes(self.data[offset : offset + size])

    def write(self, path, data, offset, fh):
        self.data[offset : offset + len(data)] = data
        os.write(self.log, RECORD.pack(offset, len(data)) + data)
        return len(data)

    def fsync(self, path, datasync, fh):
        os.write(self.log, RECORD.pack(-1, 0))


if __name__ == "__main__":
    FUSE(Disk(int(sys.argv[2]), sys.argv[3]), sys.argv[1], foreground=True, nothreads=True)
