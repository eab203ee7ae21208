"""The child of read_path.py: one loader of feedrate reads the files as a rank does, epoch after epoch."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from emulator.config.workload import LoaderSpec
from emulator.loader import make_loader
from emulator.order import Portion, Read
from emulator.storage.base import TimedStorage
from emulator.storage.posix import PosixStorage


@dataclass(frozen=True)
class Listed:
    """The files, as a manifest lists them."""

    names: list[str]
    sizes: list[int]
    format: str = "npz"
    samples_per_file: int = 1


def main() -> None:
    request = json.loads(sys.argv[1])
    batch = request["batch"]
    spec = LoaderSpec(
        batch_size=batch, workers=request["workers"],
        prefetch=2 * request["workers"], block_bytes=request["block"], crop=(request["crop"],) * 3,
    )  # fmt: skip
    storage = TimedStorage(
        PosixStorage(Path(request["folder"]), direct=request["direct"], cache=request["cache"])
    )
    samples = Listed(request["names"], request["sizes"])
    indices = range(len(samples.names))
    steps = (indices[at : at + batch] for at in range(0, len(indices), batch))
    batches = [Portion(len(files), tuple(Read(file) for file in files)) for files in steps]
    first = 0.0
    loader = make_loader(request["kind"], spec, storage, samples)
    for epoch in range(2):  # start-up: workers, buffers, and their pages' first use
        for number, _ in enumerate(loader.read(batches)):
            first = time.time() - request["started"] if epoch == number == 0 else first
    begin, cpu = time.monotonic(), time.process_time() + loader.helper_cpu_seconds()
    size = sum(one.bytes for _ in range(2) for one in loader.read(batches))
    seconds = time.monotonic() - begin
    spent = time.process_time() + loader.helper_cpu_seconds() - cpu
    loader.close()
    print(json.dumps({"bytes": size, "seconds": seconds, "cpu_seconds": spent, "first_batch": first}))


if __name__ == "__main__":
    main()
