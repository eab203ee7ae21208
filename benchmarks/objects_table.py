"""What ranks of a host take of a table in an object store, which the first of them fetches for all.

    python benchmarks/objects_table.py [--files 100000 10000000] [--ranks 4]

The tables, of feedrate's files and of adopted ones, are objects of the tests' S3 server; samples there are
none. Ranks open the dataset as `feedrate run` does, and ask for 20,000 names and sizes in the order of an
epoch.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from itertools import islice
from pathlib import Path

from files import write_tables
from processes import in_a_process

from emulator.config.storage import parse_place
from emulator.launch.mpirun import find_launcher, rank_environment
from emulator.order import EpochPlan, batches
from emulator.run.shared import open_together
from emulator.run.world import world

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from s3_server import s3_server


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, nargs="+", default=[100_000, 10_000_000])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rank-of", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank_of:
        rank(given.rank_of)
        return
    for files in given.files:
        with tempfile.TemporaryDirectory(dir="/dev/shm") as name, s3_server() as endpoint:
            in_a_process(lambda files=files, name=name: write_tables(Path(name), files))
            for kind in ("made", "theirs"):
                for file in Path(name, kind).iterdir():
                    endpoint.objects[f"{kind}/{file.name}"] = file.read_bytes()
                print(f"{files:,} files, {kind}", flush=True)
                command = [sys.executable, __file__, "--rank-of", f"s3://bucket/{kind}"]
                subprocess.run(
                    find_launcher().command(given.ranks, command),
                    check=True,
                    env={**rank_environment(), **endpoint.environment()},
                )
                print("GETs:", dict(Counter(key for method, key, _ in endpoint.asked if method == "GET")))
                endpoint.asked.clear()


def rank(place: str) -> None:
    comm, begin = world(), time.monotonic()
    manifest = open_together(comm, parse_place(place)).manifest
    seconds = time.monotonic() - begin
    plan = EpochPlan(samples=manifest.samples, ranks=1, batch_size=1)
    for batch in islice(batches(plan, 0, 0, 0), 20_000):
        assert all(manifest.names[index] and manifest.sizes[index] for index in batch)
    rolled = Path("/proc/self/smaps_rollup").read_text()
    rss, pss = (
        int(re.findall(rf"^{what}: +(\d+)", rolled, re.MULTILINE)[0]) / 1000 for what in ("Rss", "Pss")
    )
    comm.barrier()
    print(f"rank {comm.rank}: {seconds:.2f} s to open, {rss:.0f} MB resident, PSS {pss:.0f} MB", flush=True)


if __name__ == "__main__":
    main()
