"""A FUSE server that shows a folder somewhere else: `python3 mirror.py SOURCE MOUNT` (python3-fusepy)."""

import os
import sys
from pathlib import Path

from fuse import FUSE, Operations


class Mirror(Operations):  # type: ignore[misc]
    def __init__(self, root):
        self.root = root

    def at(self, path):
        return self.root + path

    def getattr(self, path, fh=None):
        found = os.lstat(self.at(path))
        names = ("st_atime", "st_ctime", "st_gid", "st_mode", "st_mtime", "st_nlink", "st_size", "st_uid")
        return {name: getattr(found, name) for name in names}

    def readdir(self, path, fh):
        return [".", "..", *(entry.name for entry in os.scandir(self.at(path)))]

    def open(self, path, flags):
        return os.open(self.at(path), flags & ~os.O_DIRECT)

    def read(self, path, size, offset, fh):
        return os.pread(fh, size, offset)

    def mkdir(self, path, mode):
        Path(self.at(path)).mkdir(mode)

    def release(self, path, fh):
        os.close(fh)


if __name__ == "__main__":
    FUSE(Mirror(sys.argv[1]), sys.argv[2], foreground=True, nothreads=True)
