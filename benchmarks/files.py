"""Memory and time of adopt, verify and a repeated generate against the number of files.

    python benchmarks/files.py [--files 1000 10000 100000 1000000] [--tables N...] [--folder DIR] [--out FILE]

Files are sparse, of 512 bytes in folders of 1,000, so that a million of them take little space in a file
system in memory. Each command runs in a process of its own, whose largest resident memory is the kernel's
(ru_maxrss); what it has of 16 files, the first line, is subtracted from that of more. `rank` has the dataset
from what the first rank of its host sends, and asks for 20,000 names and sizes in the order of an epoch; its
share of what processes have together (PSS) stands behind. Of the --tables there are no files: only ranks are
run.
"""

from __future__ import annotations

import argparse
import os
import pickle
import re
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
from processes import become_feedrate, in_a_process, table_line

from emulator.config.recipe import load_recipe
from emulator.dataset.manifest import Manifest, open_dataset, write_manifest
from emulator.dataset.plan import DatasetPlan
from emulator.dataset.table import ROW, Listed
from emulator.order import EpochPlan, batches
from emulator.storage.folder import FolderStore

SIZE, IN_A_FOLDER = 512, 1000
RECIPE = """name = "sparse"
title = "sparse files"
format = "bytes"
[size]
distribution = "fixed"
bytes_mean = 512
shape = "flat"
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, nargs="+", default=[1000, 10_000, 100_000, 1_000_000])
    parser.add_argument("--tables", type=int, nargs="*", default=[], help="files that are only in a table")
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm"), help="where they are made")
    parser.add_argument("--out", type=Path, help="the table as a Markdown file")
    given = parser.parse_args()
    verbs = ("rank", "rank, adopted", "generate again", "verify", "adopt", "verify adopted")
    lines = [
        table_line("files", *(f"{verb}, s | MB | B a file" for verb in verbs)),
        table_line(*["---"] * (1 + 3 * len(verbs))),
    ]
    base: list[float] = []
    for files in [16, *given.files, *given.tables]:
        with tempfile.TemporaryDirectory(dir=given.folder) as name:
            found = of_ranks(Path(name), files)
            if files not in given.tables:
                found += of_commands(Path(name), files)
        base = base or [memory for _, memory in found]
        cells = [
            f"{seconds:.2f} | {memory:.0f} | {1e6 * (memory - least) / files:.0f}"
            for (seconds, memory), least in zip(found, base, strict=False)
        ]
        lines.append(table_line(f"{files:,}", *cells))
        print(lines[-1], flush=True)
    if given.out:
        given.out.write_text("\n".join(lines) + "\n")


def plan_of(folder: Path, files: int) -> DatasetPlan:
    (folder / "r.toml").write_text(f"files = {files}\n{RECIPE}")
    recipe = load_recipe(str(folder / "r.toml"), [])
    return DatasetPlan(recipe=recipe, seed=0, files=files, subfolders=-(-files // IN_A_FOLDER))


def theirs_of(files: int) -> Iterator[str]:
    """Names of somebody else's files."""
    return (f"{index % -(-files // IN_A_FOLDER)}/img_{index}.bin" for index in range(files))


def write_tables(folder: Path, files: int) -> None:
    """A dataset as feedrate makes it, and an adopted one, but for their files."""
    plan = plan_of(folder, files)
    rows = np.zeros(files, ROW)
    rows["bytes"], rows["crc"] = SIZE, zlib.crc32(bytes(SIZE))
    for place, names in (("made", plan.names), ("theirs", Listed.of(theirs_of(files)))):
        (folder / place).mkdir()
        manifest = Manifest(
            format="bytes", recipe=plan.recipe.name, seed=0, names=names, sizes=rows["bytes"].copy(),
            subfolders=plan.subfolders, payload=plan.recipe.payload, identity=plan.identity, made=plan.recipe,
        )  # fmt: skip
        write_manifest(FolderStore(folder / place), manifest, rows)
        (folder / f"{place}.sent").write_bytes(pickle.dumps(open_dataset(folder / place).manifest))


def write_files(folder: Path, files: int) -> None:
    plan = plan_of(folder, files)
    for number in range(plan.subfolders):
        (folder / "made" / plan.names.leaf(number)).mkdir()
        (folder / "theirs" / f"{number}").mkdir()
    for mine, other in zip(plan.names, theirs_of(files), strict=True):
        sparse(folder / "made" / mine)
        sparse(folder / "theirs" / other)


def of_ranks(folder: Path, files: int) -> list[tuple[float, float]]:
    """Seconds and megabytes."""
    in_a_process(lambda: write_tables(folder, files))  # what a process holds counts for those that it forks
    return [in_a_process(lambda: rank(folder / "made")), in_a_process(lambda: rank(folder / "theirs"))]


def of_commands(folder: Path, files: int) -> list[tuple[float, float]]:
    """Seconds and megabytes of each."""
    made, theirs = folder / "made", folder / "theirs"
    for table in theirs.iterdir():
        table.unlink()
    in_a_process(lambda: write_files(folder, files))
    again = ("generate", made, "--recipe", folder / "r.toml", "--subfolders", -(-files // IN_A_FOLDER))
    return [
        in_a_process(lambda: become_feedrate(*again)),
        in_a_process(lambda: become_feedrate("verify", made)),
        in_a_process(lambda: become_feedrate("adopt", theirs, "--format", "bytes")),
        in_a_process(lambda: become_feedrate("verify", theirs)),
    ]


def sparse(name: Path) -> None:
    file = os.open(name, os.O_CREAT | os.O_WRONLY, 0o600)
    os.truncate(file, SIZE)
    os.close(file)


def rank(place: Path) -> None:
    manifest = pickle.loads((place.parent / f"{place.name}.sent").read_bytes())  # noqa: S301
    plan = EpochPlan(samples=manifest.samples, ranks=1, batch_size=1)
    begin = time.process_time()
    for batch in islice(batches(plan, 0, 0, 0), 20_000):
        assert all(manifest.names[index] and manifest.sizes[index] for index in batch)
    used = 1e6 * (time.process_time() - begin) / min(20_000, manifest.samples)
    (shared,) = re.findall(r"^Pss: +(\d+)", Path("/proc/self/smaps_rollup").read_text(), re.MULTILINE)
    print(f"{place.name}: {used:.1f} us of CPU a sample, PSS {int(shared) / 1000:.0f} MB", file=sys.stderr)


if __name__ == "__main__":
    main()
