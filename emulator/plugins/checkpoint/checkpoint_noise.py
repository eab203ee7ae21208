"""Noise of checkpoints: one process on each host writes them beside a training run until it is stopped.

    python -m emulator.plugins.checkpoint.checkpoint_noise

is that process. Its job is a line of JSON on stdin. It ends at EOF, and so also when its parent is killed.

The ranks of the checkpointing job are its threads, which spend their time in the kernel and in the cipher.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from emulator.config.checkpoint import data_parallel, load_checkpoint_model, parse_scale, shards, total
from emulator.errors import FeedrateError, SpecError, StorageError, storage_errors
from emulator.files import sync_folder
from emulator.launch.child import ChildProcess
from emulator.plugins.checkpoint import files as place
from emulator.plugins.checkpoint.files import Cancelled, ShardIO, WrittenFile, key_of, write_shard
from emulator.units import parse_seconds, show_bytes, show_rate, show_seconds

_SPEC = re.compile(r"checkpoint(?::([\w.-]+))?((?:,[a-z]+=[^,]+)*)")
_HOW = "write it like checkpoint, or checkpoint:llama3-8b,scale=1/1000,ranks=8,pause=5s"
_START_SECONDS = 60.0
_STOP_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointNoise:
    """The checkpoints that each host writes beside a run."""

    model: str = "llama3-8b"
    scale: str = "1/1000"
    ranks: int = 8
    """Ranks on a host, which writes the shards of the model's first `ranks` ranks."""
    pause: float = 0.0
    """Seconds between two checkpoints."""


def parse_checkpoint_noise(text: str) -> CheckpointNoise:
    """Parse `checkpoint[:MODEL][,scale=S][,ranks=N][,pause=T]`. Raises SpecError."""
    match = _SPEC.fullmatch(text)
    options = dict(part.split("=", 1) for part in match[2].split(",") if part) if match else {}
    ranks = options.get("ranks", "8")
    if match is None or set(options) - {"scale", "ranks", "pause"} or not ranks.isdigit() or ranks == "0":
        raise SpecError(f"--noise {text!r} is not understood", _HOW)
    noise = CheckpointNoise(
        model=match[1] or "llama3-8b",
        scale=options.get("scale", "1/1000"),
        ranks=int(ranks),
        pause=parse_seconds(options.get("pause", "0s")),
    )
    parse_scale(noise.scale)
    data_parallel(load_checkpoint_model(noise.model), noise.ranks, subset=True)
    return noise


def require(text: str) -> None:
    """Check the value of --noise. Raises SpecError."""
    parse_checkpoint_noise(text)


def begin(text: str, folder: Path) -> RunningCheckpoints:
    """Start the noise `text` in `folder`. Raises SpecError, StorageError."""
    return RunningCheckpoints(parse_checkpoint_noise(text), folder)


class RunningCheckpoints:
    """The writing process of this host, from construction to `stop`. It ends with its parent."""

    def __init__(self, noise: CheckpointNoise, folder: Path) -> None:
        """Start, and wait until the first checkpoint is being written. Raises StorageError."""
        self._root = folder
        with storage_errors("cannot make the noise's folder"):
            self._root.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", __name__]
        self._process = ChildProcess("the noise", command, on_death=signal.SIGTERM)
        try:
            self._process.send(json.dumps({**asdict(noise), "root": str(self._root)}) + "\n", last=False)
            if not self._process.wait_for(lambda: bool(place.unfinished(self._root)), _START_SECONDS):
                self._failed(self._process.finish()[1])
        except BaseException:
            self.end()
            raise

    def stop(self) -> str:
        """Stop the process and return its JSON. Raises StorageError if it ended before, or does not end."""
        early = self._process.poll() is not None
        try:
            out, err = self._process.finish(seconds=_STOP_SECONDS)  # it stops at EOF of stdin
        finally:
            self.end()
        if early or self._process.returncode:
            self._failed(err)
        return out

    def _failed(self, err: str) -> None:
        lines = [line for line in err.splitlines() if line.strip()] or ["it ended before the run"]
        raise StorageError(f"the checkpoints beside the run failed: {lines[-1]}")

    def end(self) -> None:
        """Kill the process if it runs, and remove its files. Never raises."""
        self._process.end()
        _empty(self._root)


def line(output: str) -> str:
    """Describe the checkpoints of one host in a line."""
    done: dict[str, Any] = json.loads(output)
    seconds = [float(checkpoint["seconds"]) for checkpoint in done["checkpoints"]]
    size = show_bytes(done["bytes"])
    if not seconds:
        return f"no checkpoint of {size} was completed"
    mean, share = sum(seconds) / len(seconds), sum(seconds) / done["seconds"]
    return (
        f"{len(seconds)} checkpoint{'s' if len(seconds) > 1 else ''} of {size}, {show_seconds(mean)} each "
        f"({show_rate(done['bytes'] / mean)}), {100 * share:.0f} % of the time"
    )


def _empty(root: Path) -> None:
    """Remove the checkpoints in `root`, and `root` itself if it is empty then. Never raises."""
    with suppress(FeedrateError, OSError):
        if not root.is_dir():
            return
        with place.locked(root):
            place.clean(root)
            for number in place.complete(root):
                place.remove(root / place.folder_name(number))
        place.leave(root)
        root.parent.rmdir()  # OSError if it has the folder of another host


def write_until(stop: threading.Event, noise: CheckpointNoise, root: Path) -> dict[str, Any]:
    """Write checkpoints until `stop` is set, keep the last, and return their times. Raises StorageError."""
    model, scale, seed = load_checkpoint_model(noise.model), parse_scale(noise.scale), secrets.randbits(62)
    io, data, ranks = model.io, model.parallelism.data, range(noise.ranks)
    files = [shards(model, data, rank, scale) for rank in ranks]
    done: list[dict[str, float]] = []

    def write(rank: int, part: Path, number: int) -> tuple[WrittenFile, ...]:
        return tuple(
            write_shard(
                part, shard, key_of(seed, number, rank, shard.name), shard_io[rank], io.direct, stop.is_set
            )
            for shard in files[rank]
        )

    with ExitStack() as stack:
        shard_io = [stack.enter_context(ShardIO(io.workers, io.block_bytes)) for _ in ranks]
        pool = stack.enter_context(ThreadPoolExecutor(noise.ranks))
        begin, number = time.monotonic(), 0
        while not stop.is_set():
            part = place.begin(root, number, "noise")
            start = time.monotonic()
            waiting = [pool.submit(write, rank, part, number) for rank in ranks]
            with suppress(Cancelled):
                written = tuple(future.result() for future in waiting)
                sync_folder(part)
                marker = place.Marker(
                    model=noise.model, ranks=noise.ranks, data=1, scale=noise.scale, seed=seed, files=written
                )
                place.commit(part, number, marker)
                if number:
                    place.remove(root / place.folder_name(number - 1))
                done.append({"began": start - begin, "seconds": time.monotonic() - start})
            number += 1
            stop.wait(noise.pause)
    return {
        "bytes": total(model, data, noise.ranks, scale),
        "seconds": time.monotonic() - begin,
        "checkpoints": done,
    }


def main() -> int:
    """Run the writing process and return its exit status. JSON goes to stdout, an error to stderr."""
    job = json.loads(sys.stdin.readline())
    root, stop = Path(job.pop("root")), threading.Event()

    def watch_stdin() -> None:
        while os.read(0, 1):  # not sys.stdin, whose lock would be held when the interpreter ends
            pass
        stop.set()

    signal.signal(signal.SIGTERM, lambda *_: stop.set())  # when the parent is killed
    threading.Thread(target=watch_stdin, daemon=True).start()
    try:
        _empty(root)
        with storage_errors("cannot make the noise's folder"):
            root.mkdir(parents=True, exist_ok=True)
        with place.locked(root):
            done = write_until(stop, CheckpointNoise(**job), root)
    except FeedrateError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    finally:
        _empty(root)
    print(json.dumps({**job, **done}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
