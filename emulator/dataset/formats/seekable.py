"""Files for libraries that want to seek, over bytes that lie elsewhere."""

from __future__ import annotations

import io


class Seekable(io.RawIOBase):
    """What h5py and pyarrow want of a file besides reading and writing."""

    size = 0
    at = 0

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self.at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self.at, io.SEEK_END: self.size}[whence]
        return self.at

    def truncate(self, size: int | None = None) -> int:
        self.size = self.at if size is None else size
        return self.size
