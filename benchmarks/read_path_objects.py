"""What objects cost: the direct loader beside threads that call obstore alone, from an S3 endpoint of nginx.

    apt-get install --yes nginx-light
    python benchmarks/read_path_objects.py FOLDER [--turns 5] [--seconds 2] [--out FILE]

An object is read whole, by one GET. nginx, one process beside the clients, gives the files of FOLDER, which
lie in the page cache; it looks at no signatures, which clients make all the same. Both have as many threads,
and take turns; the table has medians and, in brackets, the range. CPU is user + system seconds of the client.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import count, cycle
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import obstore
from read_path import machine
from read_path_contest import Turn, arguments, in_turns, publish, rows

from emulator.config.storage import ObjectURL
from emulator.config.workload import AccessSpec, Workload, load_workload
from emulator.dataset.manifest import Manifest
from emulator.loader import make_loader
from emulator.order import EpochPlan, RankPlan
from emulator.plugins.objects.s3 import S3Store
from emulator.run.selftest import ram_files
from emulator.storage.base import Store, TimedStorage

SIZES = (64 << 10, 256 << 10, 1 << 20, 4_000_000)
THREADS = 4
NGINX = """\
worker_processes 1; daemon off; pid {folder}/pid; error_log stderr; user root;
events {{ worker_connections 256; }}
http {{
  access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000; open_file_cache max=1000;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  server {{ listen 127.0.0.1:{port}; root {folder}; }}
}}
"""


@contextmanager
def endpoint(folder: Path) -> Iterator[str]:
    """The URL at which nginx gives FOLDER/BUCKET/KEY."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "nginx.conf").write_text(NGINX.format(folder=folder, port=port))
    program = shutil.which("nginx") or sys.exit("there is no nginx: apt-get install --yes nginx-light")
    server = subprocess.Popen([program, "-p", str(folder), "-c", str(folder / "nginx.conf")])
    try:
        for _ in range(100):
            with socket.socket() as probe:
                if not probe.connect_ex(("127.0.0.1", port)):
                    break
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


def loader_turns(workload: Workload, files: Manifest, store: Store) -> Iterator[int]:
    """The bytes of batches of the direct loader."""
    spec, access = (
        replace(workload.loader, batch_size=16, workers=THREADS, prefetch=8, block_bytes=4 << 20),
        AccessSpec(),
    )
    loader = make_loader("direct", spec, TimedStorage(store), files, access=access)
    plan = EpochPlan(samples=files.samples, ranks=1, batch_size=16, access=access)
    try:
        for batch in loader.read(RankPlan(plan=plan, seed=0, epochs=10**6).portions(0)):
            yield batch.bytes
    finally:
        loader.close()


def obstore_turns(url: str, keys: list[str], size: int) -> Iterator[int]:
    """The bytes of 16 objects each, by threads that do nothing else."""
    client = obstore.store.S3Store(
        "bucket", endpoint=url, region="us-east-1", client_options={"allow_http": True}
    )
    turns = cycle(keys)

    def get(key: str) -> int:
        return len(obstore.get_range(client, key, start=0, end=size))

    with ThreadPoolExecutor(THREADS) as pool:
        for _ in count():
            yield sum(pool.map(get, [next(turns) for _ in range(16)]))


def timed(batches: Iterator[int], size: int, seconds: float) -> Callable[[], Turn]:
    """A contestant: it reads for so many seconds."""

    def turn() -> Turn:
        next(batches)
        begin, cpu, done = time.monotonic(), time.process_time(), 0
        while time.monotonic() - begin < seconds:
            done += next(batches)
        return Turn(done / size / (time.monotonic() - begin), (time.process_time() - cpu) / done * 1e9)

    return turn


def objects_of(size: int) -> Workload:
    """A workload whose samples are objects of this size."""
    workload = load_workload("retinanet-b200")
    return replace(workload, sample=replace(workload.sample, bytes_mean=size, bytes_sd=0))


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args()
    os.environ |= dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "any")
    lines = [
        f"# Objects, {time.strftime('%Y-%m-%d')}",
        "",
        f"`python {' '.join(sys.argv)}`",
        "",
        f"nginx on the same machine, page cache, {THREADS} threads; medians of {options.turns} turns of "
        f"{options.seconds:g} s, and ranges. {machine()} obstore {obstore.__version__}.",
        "",
        "| object | client | GET/s | CPU-s/GB | CPU of obstore alone / its own |",
        "|---|---|---|---|---|",
    ]
    for size in SIZES:
        workload = objects_of(size)
        with tempfile.TemporaryDirectory(dir=options.folder) as folder, endpoint(Path(folder)) as url:
            os.environ["AWS_ENDPOINT_URL"] = url
            (Path(folder) / "bucket/set").mkdir(parents=True)
            files = ram_files(Path(folder) / "bucket/set", workload)
            found = int(files.sizes[0])
            keys = [f"set/{name}" for name in files.names]
            store = S3Store(ObjectURL(kind="s3", bucket="bucket", prefix="set"))
            readers = {
                "feedrate direct": timed(loader_turns(workload, files, store), found, options.seconds),
                "obstore alone": timed(obstore_turns(url, keys, found), found, options.seconds),
            }
            taken = in_turns(readers, options.turns)
        lines += rows(f"{found / 1000:.0f} kB", taken, ("obstore alone",), rate=0)
    publish(lines, options.out)


if __name__ == "__main__":
    main()
