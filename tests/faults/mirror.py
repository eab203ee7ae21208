"""A FUSE server that shows a folder somewhere else: `python3 mirror.py SOURCE MOUNT` (python3-fusepy)."""

import os
import sys

try:
    from fuse import FUSE, Operations
except ImportError:  # Debian calls it by another name
    from fusepy import FUSE, Operations

STAT = ("st_atime", "st_ctime", "st_gid", "st_mode", "st_mtime", "st_nlink", "st_size", "st_uid")
STATFS = ("f_bavail", "f_bfree", "f_blocks", "f_bsize", "f_favail", "f_ffree", "f_files", "f_frsize",
          "f_namemax")  # fmt: skip


class Mirror(Operations):  # type: ignore[misc]
    def __init__(self, root):
        self.root = root

    def at(self, path):
        return self.root + path

    def getattr(self, path, fh=None):
        found = os.lstat(self.at(path))
        return {name: getattr(found, name) for name in STAT}

    def statfs(self, path):
        found = os.statvfs(self.at(path))
        return {name: getattr(found, name) for name in STATFS}

    def readdir(self, path, fh):
        return [".", "..", *(entry.name for entry in os.scandir(self.at(path)))]

    def open(self, path, flags):
        return os.open(self.at(path), flags & ~os.O_DIRECT)

    def create(self, path, mode, fi=None):
        return os.open(self.at(path), os.O_RDWR | os.O_CREAT, mode)

    def read(self, path, size, offset, fh):
        return os.pread(fh, size, offset)

    def write(self, path, data, offset, fh):
        return os.pwrite(fh, data, offset)

    def truncate(self, path, length, fh=None):
        os.truncate(self.at(path), length)

    def fsync(self, path, datasync, fh):
        os.fsync(fh)

    def mkdir(self, path, mode):
        os.mkdir(self.at(path), mode)  # noqa: PTH102

    def rmdir(self, path):
        os.rmdir(self.at(path))  # noqa: PTH106

    def unlink(self, path):
        os.unlink(self.at(path))  # noqa: PTH108

    def rename(self, old, new):
        os.rename(self.at(old), self.at(new))  # noqa: PTH104

    def release(self, path, fh):
        os.close(fh)


if __name__ == "__main__":
    FUSE(Mirror(sys.argv[1]), sys.argv[2], foreground=True, nothreads=True)
