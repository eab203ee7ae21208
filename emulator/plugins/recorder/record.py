"""Record a job: run it, write the recording, and check it with a replay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from emulator.errors import SpecError
from emulator.plugins.recorder import strace
from emulator.plugins.recorder.check import check
from emulator.plugins.recorder.job import Written, prepare, write
from emulator.plugins.recorder.session import Ran, run_job
from emulator.plugins.recorder.watch import Watch

TRACERS = ("auto", "strace", "python")

_BY_SIGNAL = 128
"""Exit status of a shell, less the signal's number, if a signal ended the job."""


def record_job(
    command: Sequence[str],
    out: Path,
    *,
    tracer: str = "auto",
    steps: int | None = None,
    warmup: int = 5,
    keep_names: bool = False,
    traced_steps: int = 100,
    checked: bool = True,
    force: bool = False,
    on_end: Callable[[Ran], None] = lambda _: None,
    on_written: Callable[[Written], None] = lambda _: None,
) -> Written:
    """Run `command`, record it into the folder `out`, and with `checked` compare a replay with it.

    A job that a signal ended is not replayed. `on_end` is called when the job has ended, `on_written` when
    the recording is in `out`, before the replay. Call it in the main thread. Raises SpecError, StorageError,
    LaunchError.
    """
    if tracer not in TRACERS:
        raise SpecError(f"--tracer {tracer!r} is not known", "use auto, strace or python")
    why = strace.usable() if tracer != "python" else "--tracer python"
    if tracer == "strace" and why:
        raise SpecError(f"--tracer strace: {why}", "apt install strace, or leave the option out")
    prepare(out, force)
    watch = Watch(traced=not why, keep_names=keep_names)
    ran = run_job(command, watch, steps=steps, warmup=warmup, traced_steps=traced_steps)
    on_end(ran)
    written = write(out, watch, ran, why=why, warmup=warmup)
    on_written(written)
    return check(written, watch) if checked and will_be_checked(written) else written


def will_be_checked(written: Written) -> bool:
    """Return True if there is a workload to replay and no signal ended the job."""
    return written.described is not None and 0 <= written.observation.status < _BY_SIGNAL
