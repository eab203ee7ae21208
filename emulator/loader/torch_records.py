"""Records as tensors: what a step reads, in one tensor of bytes. Nothing is decoded."""

from __future__ import annotations

import threading

import numpy as np
import torch

from emulator.loader.buffers import aligned_buffer
from emulator.loader.parts import PartReader
from emulator.loader.threads import DaemonPool
from emulator.loader.torch_samples import Request, Tensors
from emulator.plan.reads import Read


class RecordReader:
    """Reads what a step asks for and keeps all of it, from any number of threads."""

    def __init__(self, whole: PartReader) -> None:
        self.whole = whole
        self.cancelled_before = 0
        self._local = threading.local()

    def __reduce__(self) -> tuple[object, ...]:
        return (RecordReader, (self.whole,))

    def __call__(self, epoch: int, read: Read) -> torch.Tensor:
        """The bytes of `read`. Raises DatasetError, StorageError."""
        if not hasattr(self._local, "buffer"):
            self._local.buffer = aligned_buffer(self.whole.room())
        data = bytearray()
        for piece in self.whole.pieces(read, self._local.buffer, lambda: epoch < self.cancelled_before):
            data += piece
        return torch.from_numpy(np.frombuffer(data, np.uint8))

    def batch(self, request: Request, pool: DaemonPool | None) -> tuple[Tensors, int]:
        """As BatchReader.batch."""
        epoch, portion = request
        if pool is None:
            parts = [self(epoch, read) for read in portion.reads]
        else:
            futures = [pool.submit(self, epoch, read) for read in portion.reads]
            parts = [future.result() for future in futures]
        joined = torch.cat(parts) if parts else torch.empty(0, dtype=torch.uint8)
        return (joined,), joined.numel()
