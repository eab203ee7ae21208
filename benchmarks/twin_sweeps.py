"""The sweeps of results/twin.md, on storage whose limits are known. Root, for devices and hosts.

    python benchmarks/twin_sweeps.py FOLDER [SET...]

Each set is a folder of a result in FOLDER; those that are there are not run again. Accelerators take their
time, 40 MB/s each (20 MB/s over networks), so that the storage is the limit and not the cores of one machine.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import namespaces
from processes import AS_ROOT, feedrate

LAB = Path(__file__).parents[1] / "tests" / "lab"
FILES = 512

Place = tuple[list[str], str]
"""The words before the command `feedrate`, and the dataset."""


def check(*words: object) -> str:
    environment = {**os.environ, **AS_ROOT}
    done = subprocess.run([*map(str, words)], check=True, env=environment, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip()


@contextmanager
def local() -> Iterator[Place]:
    """Files on this machine, read past the page cache."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        check(*feedrate("generate", f"{folder}/data", "--recipe", "tiny", "--files", FILES))
        yield [], f"{folder}/data"


@contextmanager
def device(*rates: int) -> Iterator[Place]:
    """An ext4 on a loop device that reads so many bytes/s; of several rates, each for 5 s."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder, ExitStack() as stack:
        group = check(LAB / "device.sh", "up", folder, "1G", rates[0])
        stack.callback(check, LAB / "device.sh", "down", folder)
        check(*feedrate("generate", f"{folder}/mnt/data", "--recipe", "tiny", "--files", FILES))
        check("sync")
        limit, ended = Path(group) / "blkio.throttle.read_bps_device", threading.Event()
        number = limit.read_text().split()[0]

        def change() -> None:
            for rate in cycle(rates):
                limit.write_text(f"{number} {rate}")
                if ended.wait(5):
                    return

        changing = threading.Thread(target=change)
        changing.start()
        stack.callback(changing.join)
        stack.callback(ended.set)
        yield [str(LAB / "device.sh"), "in", group], f"{folder}/mnt/data"


@contextmanager
def hosts(slots: int, *links: str) -> Iterator[Place]:
    """Hosts with `slots` ranks and a link of a rate each, which read objects from one more."""
    count = len(links) + 1
    with ExitStack() as stack:
        stack.enter_context(namespaces.hosts(count))
        variables = stack.enter_context(namespaces.s3_server(count, {**os.environ}))
        data = "s3://bucket/data"
        given = [f"{name}={value}" for name, value in {**variables, **AS_ROOT}.items()]
        make = ["env", *given, *feedrate("generate", data, "--recipe", "tiny", "--files", FILES)]
        check(*namespaces.on(1, shlex.join(make)))
        for number, rate in enumerate(links, 1):
            tbf = f"tc qdisc add dev p{number} root tbf rate {rate} burst 200kb latency 200ms"
            check("ip", "netns", "exec", f"{namespaces.NAME}sw", *tbf.split())
        exported = [word for name in variables for word in ("-x", name)]
        command = namespaces.mpirun(dict.fromkeys(range(1, count), slots), slots * len(links), *exported)
        yield namespaces.on(1, "--", "env", *given, *command), data


@dataclass(frozen=True)
class Set:
    place: Callable[[], AbstractContextManager[Place]]
    counts: str
    step: float = 0.1
    steps: int = 40
    options: tuple[str, ...] = ()


def shaped(rate: str) -> tuple[str, ...]:
    return "--storage", f"shaped:{rate}"


SETS = {
    "shaped200": Set(local, "1,2,3,4,5,6,8,9", options=shaped("200MB/s")),
    "shapedlat": Set(local, "1,2,4,6,7,8,9,11", options=shaped("200MB/s,60ms")),
    "shaped400": Set(local, "1,2,3,4,5,6,8,9", 0.05, 60, shaped("400MB/s")),
    "device": Set(lambda: device(200 * 10**6), "1,2,3,4,5,6,8,9"),
    "objects1": Set(lambda: hosts(8, "640mbit"), "1,2,3,4,5,6,8", 0.2),
    "hosts2": Set(lambda: hosts(4, "360mbit", "360mbit"), "1,2,3,4,5,6,8", 0.2),
    "hosts3": Set(lambda: hosts(3, "360mbit", "360mbit", "360mbit"), "1,3,4,5,6,7,9", 0.2),
    "below": Set(local, "1,2,3,4", options=shaped("400MB/s")),
    "slowhost": Set(lambda: hosts(3, "360mbit", "120mbit"), "2,4,6", 0.2),
    "drift": Set(lambda: device(100 * 10**6, 320 * 10**6), "1,3,5,6,7,8,9"),
}


def main() -> int:
    folder, wanted = Path(sys.argv[1]).absolute(), sys.argv[2:] or list(SETS)
    folder.mkdir(exist_ok=True)
    for name in wanted:
        made = SETS[name]
        if (folder / name).exists():
            continue
        with made.place() as (before, data):
            words = feedrate(
                "sweep", data, "--workload", "unet3d-tiny", "--set", f"accelerator.step_seconds={made.step}",
                "--steps", made.steps, "--loader", "direct", *made.options, "--counts", made.counts,
                "--out", folder / name,
            )  # fmt: skip
            print(f"{name}:", shlex.join(words), flush=True)
            if before[:1] == [namespaces.AGENT]:  # as ssh, it gives a shell one line
                before, words = before[:2], [shlex.join([*before[3:], *words])]
            status = subprocess.run([*before, *words], env={**os.environ, **AS_ROOT}, check=False).returncode
            print(f"{name}: exit status {status}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
