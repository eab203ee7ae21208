"""Measures GET requests a second of `feedrate verify` on many small objects, beside obstore alone.

    python benchmarks/objects.py [--objects 10000] [--kilobytes 17] [--in-flight 16] [--rounds 3] [--out FILE]

The server is the tests' (tests/s3_server.py), a process of its own on loopback; obstore gets the same objects
with as many threads. Both read every byte, and take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

from obstore.store import S3Store
from processes import feedrate, machine, publish, table_line

SERVER = Path(__file__).parents[1] / "tests" / "s3_server.py"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--objects", type=int, default=10000)
    parser.add_argument("--kilobytes", type=int, default=17)
    parser.add_argument("--in-flight", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    publish("Many small objects", machine(), table(given), given.out)


def table(given: argparse.Namespace) -> Iterator[str]:
    yield table_line("objects", "size", "in flight", "who", "seconds", "GET/s")
    yield table_line(*("---" for _ in range(6)))
    with subprocess.Popen(
        [sys.executable, SERVER, "127.0.0.1"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin and server.stdout
        os.environ |= json.loads(server.stdout.readline())
        data, size = "s3://bucket/small", 1000 * given.kilobytes
        sizes = [f"--set=size.bytes_{of}={size if of != 'sd' else 0}B" for of in ("mean", "min", "max", "sd")]
        words = (
            "--recipe",
            "tiny",
            "--files",
            given.objects,
            "--set=format=raw",
            "--set=size.min_edge=8",
            *sizes,
        )
        subprocess.run(feedrate("generate", data, *words), check=True, stdout=subprocess.DEVNULL)
        store = S3Store("bucket", client_options={"allow_http": True})
        names = [one["path"] for page in store.list("small/") for one in page if "sample_" in one["path"]]
        seconds: dict[str, list[float]] = {"feedrate verify": [], "obstore alone": []}
        for _ in range(given.rounds):
            began = time.monotonic()
            threads = ("--threads", given.in_flight)
            subprocess.run(feedrate("verify", data, *threads), check=True, stdout=subprocess.DEVNULL)
            seconds["feedrate verify"].append(time.monotonic() - began)
            began = time.monotonic()
            with ThreadPoolExecutor(given.in_flight) as pool:
                assert len(names) == sum(
                    1 for read in pool.map(lambda name: store.get(name).bytes(), names) if read
                )
            seconds["obstore alone"].append(time.monotonic() - began)
        for who, took in seconds.items():
            each = median(took)
            yield table_line(
                f"{given.objects:,}", f"{given.kilobytes} kB", str(given.in_flight), who, f"{each:.1f}",
                f"{given.objects / each:,.0f}",
            )  # fmt: skip
        server.stdin.close()


if __name__ == "__main__":
    main()
