"""What it costs to read a dataset: fio, feedrate's loaders, and DLIO, on the same files in one run.

    python benchmarks/read_path.py FOLDER [--files 24] [--repeats 5] [--out results/read_path.md]

FOLDER holds a dataset of .npz files; where there is none, `feedrate generate` makes one (recipe
kits19). Contestants take turns, `--repeats` times; the table has medians and, in brackets, the range.

    GB/s             bytes of the files / seconds of reading, start-up left out
    CPU-s/GB         user + system seconds of the process tree while reading
    PSS MB           peak proportional set size of the process tree, sampled every 0.25 s
    first batch s    from the start of the process to its first batch (of --batch samples)

fio is run with psync, libaio and io_uring; the fastest one of a setting stands for it. DLIO (2.0) is
run when $DLIO_PYTHON names a python that has it; its start-up is measured by a run of one epoch and
subtracted from a run of three. Cold: each file is evicted before each turn. Warm: each is read before.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from read_path_contest import spread
from read_path_dlio import dlio_turn
from read_path_fio import fio_turn
from read_path_turn import Files, Turn, watched


@dataclass(frozen=True, slots=True)
class Contestant:
    """One row of the table."""

    name: str
    cache: str
    run: Callable[[], Turn]
    family: str = ""
    """Of contestants with the same family only the one with the best median GB/s is shown."""


def main() -> None:
    options = _options()
    files = _files(options)
    contestants = _contestants(options, files)
    turns: dict[int, list[Turn]] = {number: [] for number in range(len(contestants))}
    for repeat in range(options.repeats):
        for number, contestant in enumerate(contestants):
            print(f"\r{repeat + 1}/{options.repeats} {contestant.name:40s}", end="", file=sys.stderr)
            (files.evict if contestant.cache == "cold" else files.warm)()
            turns[number].append(contestant.run())
    print("\r", end="", file=sys.stderr)
    text = _report(options, files, contestants, turns)
    print(text)
    if options.out:
        options.out.write_text(text)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--files", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--batch", type=int, default=4, help="samples of a batch")
    parser.add_argument("--depth", type=int, default=4, help="queue depth, and workers of a loader")
    parser.add_argument("--block", type=int, default=4 * 2**20, help="bytes of a request")
    parser.add_argument("--crop", type=int, default=128, help="edge of the torch loader's crop in voxels")
    parser.add_argument("--only", default="", help="contestants whose names match this pattern")
    parser.add_argument("--out", type=Path, help="write the table there as Markdown")
    return parser.parse_args()


def _files(options: argparse.Namespace) -> Files:
    folder: Path = options.folder
    if not sorted(folder.glob("*.npz")):
        command = [sys.executable, "-m", "emulator", "generate", folder, "--recipe", "kits19"]
        subprocess.run([*command, "--files", str(options.files)], check=True, stdout=sys.stderr)
    paths = sorted(folder.glob("*.npz"))[: options.files]
    return Files(folder, tuple(paths), tuple(path.stat().st_size for path in paths))


def _contestants(options: argparse.Namespace, files: Files) -> list[Contestant]:
    found = []
    for cache, direct in (("cold", True), ("cold", False), ("warm", False)):
        how = "O_DIRECT" if direct else "buffered"
        for engine in ("psync", "libaio", "io_uring"):

            def fio(engine: str = engine, direct: bool = direct) -> Turn:
                return fio_turn(files, engine, direct, options.depth, options.block)

            found.append(Contestant(f"fio {engine} {how}", cache, fio, f"fio {how} {cache}"))
        found.append(_ours(options, files, "feedrate direct " + how, "direct", cache, direct=direct))
    for cache in ("cold", "warm"):
        found.append(_ours(options, files, "feedrate torch", "torch", cache))
        if os.environ.get("DLIO_PYTHON"):
            found.append(Contestant("DLIO npz", cache, lambda c=cache: dlio_turn(files, options, c)))  # type: ignore[misc]
    return [one for one in found if re.search(options.only, one.name)]


def _ours(
    options: argparse.Namespace, files: Files, name: str, kind: str, cache: str, *,
    direct: bool = False,
) -> Contestant:  # fmt: skip
    """feedrate's loader `kind` in a process of its own."""
    request = {
        "folder": str(files.folder), "names": [path.name for path in files.paths], "sizes": files.sizes,
        "kind": kind, "cache": cache, "direct": direct, "batch": options.batch,
        "workers": options.depth, "block": options.block, "crop": options.crop,
    }  # fmt: skip

    def run() -> Turn:
        child = Path(__file__).with_name("read_path_rank.py")
        command = [sys.executable, str(child), json.dumps({**request, "started": time.time()})]
        done = watched(command)
        said = json.loads(done.out)
        return Turn(said["bytes"], said["seconds"], said["cpu_seconds"], done.peak_pss, said["first_batch"])

    return Contestant(name, cache, run)


def _report(
    options: argparse.Namespace, files: Files, contestants: Sequence[Contestant], turns: dict[int, list[Turn]]
) -> str:
    rates = {number: statistics.median(turn.rate for turn in taken) for number, taken in turns.items()}
    lines = [
        f"# Read path, {time.strftime('%Y-%m-%d')}",
        "",
        f"`python {' '.join(sys.argv)}`",
        "",
        f"{len(files.paths)} files, {files.total / 1e9:.2f} GB; queue depth {options.depth}, requests of "
        f"{options.block / 2**20:g} MiB; medians of {options.repeats} and ranges, interleaved.",
        f"{machine()}",
        "",
        "| reader | cache | GB/s | of fio's best | CPU-s/GB | PSS MB | first batch s |",
        "|---|---|---|---|---|---|---|",
    ]
    best = {
        cache: max(
            (n for n, one in enumerate(contestants) if one.family.endswith(cache)),
            key=lambda n: rates[n],
            default=-1,
        )
        for cache in ("cold", "warm")
    }
    for number, contestant in enumerate(contestants):
        rivals = [n for n, one in enumerate(contestants) if one.family and one.family == contestant.family]
        if rivals and rates[number] < max(rates[n] for n in rivals):
            continue
        fio = turns.get(best[contestant.cache], [])
        shares = [mine.rate / theirs.rate for mine, theirs in zip(turns[number], fio, strict=False)]
        lines.append(f"| {contestant.name} | {contestant.cache} | {_columns(turns[number], shares)} |")
    return "\n".join(lines) + "\n"


def _columns(taken: Sequence[Turn], shares: Sequence[float]) -> str:
    figures = (
        ([turn.rate / 1e9 for turn in taken], 2),
        (shares, 3),
        ([turn.cpu_per_gb for turn in taken], 3),
        ([turn.peak_pss / 1e6 for turn in taken], 0),
        ([turn.first_batch for turn in taken if turn.first_batch is not None], 2),
    )
    return " | ".join(spread(values, digits) if values else "-" for values, digits in figures)


def machine() -> str:
    """Processor, cores, memory and kernel of this machine."""
    info = Path("/proc/cpuinfo").read_text()
    model = next((line.split(": ")[1] for line in info.splitlines() if line.startswith("model name")), "?")
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return f"{os.cpu_count()} cores of {model}, {memory:.0f} GiB, Linux {os.uname().release}."


if __name__ == "__main__":
    main()
