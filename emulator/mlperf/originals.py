"""The OUT folder of an import: a result as any other, and the documents that it was made from.

OUT/run.json, OUT/steps.parquet
OUT/mlperf/00000/ ...      the documents of point 0, as they were: feedrate export writes them again
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from emulator.errors import storage_error
from emulator.mlperf.folder import RunFolder, read_run, write_run
from emulator.mlperf.results import Group, result_of
from emulator.record.store import check_out, prepare_out, write_result, write_steps

ORIGINALS = "mlperf"


def write_imported(
    groups: Sequence[Group], places: Mapping[str, Path], command: Sequence[str], force: bool
) -> None:
    """Write every group's result to its place. Raises SpecError when one is taken, StorageError."""
    results = [(places[group.name], group, *result_of(group, command)) for group in groups]
    for out, _, _, _ in results:
        check_out(out, force)
    for out, group, result, steps in results:
        prepare_out(out, force)
        _remove(out / ORIGINALS)
        for number, one in enumerate(group.runs):
            write_run(one.run, out / ORIGINALS / f"{number:05d}")
        if len(steps):
            write_steps(out, steps)
        write_result(out, result)


def _remove(folder: Path) -> None:
    """An earlier import's documents. Raises StorageError."""
    if folder.is_dir() and not folder.is_symlink():
        try:
            shutil.rmtree(folder)
        except OSError as error:
            raise storage_error(error, "cannot remove an earlier import") from None


def read_originals(out: Path, names: Sequence[str]) -> list[RunFolder]:
    """The documents that the result in OUT came from, under `names`. Raises SpecError, StorageError."""
    return [read_run(out / ORIGINALS / f"{number:05d}", name) for number, name in enumerate(names)]
