"""Recording of a real training job, run unchanged, as a workload for replay on any storage.

In a notebook, around the loop over a DataLoader:

    from emulator.plugins.recorder import recording

    with recording("job"):
        for batch in loader:
            ...
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["recording"]


@contextmanager
def recording(
    out: str | Path, *, warmup: int = 5, keep_names: bool = False, force: bool = False
) -> Iterator[None]:
    """Record the DataLoaders of this process during the body, into the folder `out`.

    The folder is that of `feedrate record`, but reads are known only from opened files and /proc/PID/io,
    because a process cannot trace itself. An exception in the body propagates after the recording is
    written. Iterators made before the body are not recorded. Raises SpecError if `out` has other files,
    StorageError.
    """
    from emulator.plugins.recorder.cli import lines
    from emulator.plugins.recorder.job import prepare, write
    from emulator.plugins.recorder.session import Ran, inside
    from emulator.plugins.recorder.watch import Watch

    folder = Path(out)
    prepare(folder, force)
    watch = Watch(traced=False, keep_names=keep_names)
    status = 1
    try:
        with inside(watch):
            yield
        status = 0
    finally:
        why = "recorded from within the process"
        written = write(folder, watch, Ran(status=status, stopped=False), why=why, warmup=warmup)
        sys.stderr.write("\n".join(lines(written)) + "\n")
