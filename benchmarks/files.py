"""Memory and time of adopt, verify and a repeated generate against the number of files.

    python benchmarks/files.py [--files 1000 10000 100000 1000000] [--folder DIR] [--out FILE]

Files are sparse, of 512 bytes in folders of 1,000, so that a million of them take little space in a file
system in memory. Each command runs in a process of its own, whose largest resident memory is the kernel's
(ru_maxrss); what it has of 16 files, the first line, is subtracted from that of more. `rank` opens the
dataset as a rank does that is not the first of its host, and reads 20,000 names and sizes in the order of an
epoch.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import zlib
from itertools import islice
from pathlib import Path

import numpy as np
from processes import feedrate, in_a_process, table_line

from emulator.config.recipe import load_recipe
from emulator.dataset.manifest import ROW, Manifest, open_dataset, write_manifest
from emulator.dataset.plan import DatasetPlan
from emulator.plan import EpochPlan, batches
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
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm"), help="where they are made")
    parser.add_argument("--out", type=Path, help="the table as a Markdown file")
    given = parser.parse_args()
    verbs = ("generate again", "verify", "adopt", "verify adopted", "rank", "rank, adopted")
    lines = [
        table_line("files", *(f"{verb}, s | MB | B a file" for verb in verbs)),
        table_line(*["---"] * (1 + 3 * len(verbs))),
    ]
    base: list[float] = []
    for files in [16, *given.files]:
        with tempfile.TemporaryDirectory(dir=given.folder) as name:
            found = measured(Path(name), files)
        base = base or [memory for _, memory in found]
        cells = [
            f"{seconds:.1f} | {memory:.0f} | {1e6 * (memory - least) / files:.0f}"
            for (seconds, memory), least in zip(found, base, strict=True)
        ]
        lines.append(table_line(f"{files:,}", *cells))
        print(lines[-1], flush=True)
    if given.out:
        given.out.write_text("\n".join(lines) + "\n")


def prepare(folder: Path, files: int) -> None:
    """A dataset as feedrate makes it, and a folder of somebody else's files."""
    (folder / "r.toml").write_text(f"files = {files}\n{RECIPE}")
    recipe = load_recipe(str(folder / "r.toml"), [])
    plan = DatasetPlan(recipe=recipe, seed=0, files=files, subfolders=-(-files // IN_A_FOLDER))
    made, theirs = folder / "made", folder / "theirs"
    for place in (made, theirs):
        place.mkdir()
    for number in range(plan.subfolders):
        (made / plan.names.leaf(number)).mkdir()
        (theirs / f"{number}").mkdir()
    for index in range(files):
        sparse(made / plan.names[index])
        sparse(theirs / f"{index % plan.subfolders}" / f"img_{index}.bin")
    rows = np.zeros(files, ROW)
    rows["bytes"], rows["crc"] = SIZE, zlib.crc32(bytes(SIZE))
    manifest = Manifest(
        format="bytes", recipe=recipe.name, seed=0, names=plan.names, sizes=rows["bytes"].copy(),
        subfolders=plan.subfolders, payload=recipe.payload, identity=plan.identity, made=recipe,
    )  # fmt: skip
    write_manifest(FolderStore(made), manifest, rows)


def measured(folder: Path, files: int) -> list[tuple[float, float]]:
    """Seconds and megabytes of each verb."""
    made, theirs = folder / "made", folder / "theirs"
    in_a_process(lambda: prepare(folder, files))  # what a process holds counts for those that it forks
    again = ("generate", made, "--recipe", folder / "r.toml", "--subfolders", -(-files // IN_A_FOLDER))
    return [
        in_a_process(lambda: feedrate(*again)),
        in_a_process(lambda: feedrate("verify", made)),
        in_a_process(lambda: feedrate("adopt", theirs, "--format", "bytes")),
        in_a_process(lambda: feedrate("verify", theirs)),
        in_a_process(lambda: rank(made)),
        in_a_process(lambda: rank(theirs)),
    ]


def sparse(name: Path) -> None:
    file = os.open(name, os.O_CREAT | os.O_WRONLY, 0o600)
    os.truncate(file, SIZE)
    os.close(file)


def rank(place: Path) -> None:
    manifest = open_dataset(place, trusted=True).manifest
    plan = EpochPlan(samples=manifest.samples, ranks=1, batch_size=1)
    for batch in islice(batches(plan, 0, 0, 0), 20_000):
        assert all(manifest.names[index] and manifest.sizes[index] for index in batch)


if __name__ == "__main__":
    main()
