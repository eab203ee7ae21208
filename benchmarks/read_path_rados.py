"""What objects of a Ceph pool cost: the direct loader beside `rados bench`.

    python benchmarks/read_path_rados.py POOL [--conf FILE] [--turns 5] [--seconds 3] [--out FILE]

An object is read whole, by one operation; as many of one size are written for both, which then read any of
them, with as many operations under way, in turns. The table has medians and, in brackets, the range. CPU is
user + system seconds of the client; those of `rados bench` contain its start. The objects are removed.
"""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from read_path import machine
from read_path_contest import Turn, arguments, in_turns, publish, rows
from read_path_objects import THREADS, loader_turns, objects_of, timed

from emulator.config.storage import ObjectURL
from emulator.plugins.objects.rados import RadosStore
from emulator.run.selftest import ram_files

SIZES = (64 << 10, 1 << 20, 4_000_000)


@contextmanager
def rados_bench(
    pool: str, conf: str, size: int, objects: int, seconds: float
) -> Iterator[Callable[[], Turn]]:
    """A contestant: Ceph's own tool, on objects that it has written itself."""
    rados = ["rados", "-c", conf, "-p", pool]
    kept = ["-b", str(size), "-t", str(THREADS), "--max-objects", str(objects), "--no-cleanup"]
    _said([*rados, "bench", "60", "write", *kept])

    def turn() -> Turn:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        said = _said([*rados, "bench", f"{seconds:.0f}", "rand", "-t", str(THREADS)])
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took, reads = (
            float(re.findall(rf"{words}:\s+([\d.]+)", said)[0])
            for words in ("Total time run", "Total reads made")
        )
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return Turn(reads / took, cpu / (reads * size) * 1e9)

    try:
        yield turn
    finally:
        _said([*rados, "cleanup"])


def _said(command: list[str]) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--conf", default=os.environ.get("CEPH_CONF", "/etc/ceph/ceph.conf"))
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args()
    pool = str(options.folder)
    store = RadosStore(
        ObjectURL(kind="rados", bucket=pool, prefix="feedrate-set", options=(("conf", options.conf),))
    )
    lines = [
        f"# Objects of a Ceph pool, {time.strftime('%Y-%m-%d')}",
        "",
        f"`python {' '.join(sys.argv)}`",
        "",
        f"{THREADS} operations under way; medians of {options.turns} turns of {options.seconds:g} s, ranges. "
        f"{machine()}",
        "",
        "| object | client | reads/s | CPU-s/GB | CPU of rados bench / its own |",
        "|---|---|---|---|---|",
    ]
    for size in SIZES:
        workload = objects_of(size)
        with tempfile.TemporaryDirectory() as folder:
            files = ram_files(Path(folder), workload)
            for name in files.names:
                store.put(name, Path(folder, name).read_bytes())
        found = int(files.sizes[0])
        with rados_bench(pool, options.conf, found, len(files.names), options.seconds) as theirs:
            ours = timed(loader_turns(workload, files, store), found, options.seconds)
            taken = in_turns({"feedrate direct": ours, "rados bench": theirs}, options.turns)
        store.delete(files.names)
        lines += rows(f"{found / 1000:.0f} kB", taken, ("rados bench",), rate=0)
    publish(lines, options.out)


if __name__ == "__main__":
    main()
