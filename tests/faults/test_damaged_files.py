"""Whatever a sample holds, a loader gives its bytes or an error of ours (commands: test_campaign.py).

FEEDRATE_FAULTS_SEED=N repeats a failure.
"""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from pathlib import Path
from random import Random

import pytest
from command import Done
from faults.harness import complaint
from faults.specimens import DAMAGES, FORMATS, UNSUMMED, make_datasets

from emulator.config.workload import LoaderSpec
from emulator.dataset.manifest import open_dataset
from emulator.errors import DatasetError, StorageError
from emulator.loader import make_loader
from emulator.order import Portion, Read

SEED = int(os.environ.get("FEEDRATE_FAULTS_SEED", "20261122"))
CASES = int(os.environ.get("FEEDRATE_FAULTS_CASES", "3"))
"""Cases of a class."""


@pytest.fixture(scope="session")
def specimens(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("specimens")
    make_datasets(folder)
    return folder


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("verify", [True, False], ids=["verified", "unverified"])
def test_a_loader_says_what_is_damaged_or_reads_right(form, verify, specimens, tmp_path):
    """In the process itself: a reader thread has nothing else to give than bytes or an error of ours."""
    copy = tmp_path / "data"
    shutil.copytree(specimens / form, copy)
    dataset = open_dataset(copy)
    many = dataset.manifest.samples_per_file
    spec = LoaderSpec(
        batch_size=1, workers=2, prefetch=2, block_bytes=2**16, crop=(8, 8, 8), stall_timeout=20
    )
    files = sorted(copy.glob("sample_*"))
    contents = {path: path.read_bytes() for path in files}
    for number in range(2 * CASES):
        random = Random(f"{SEED}/{form}/{number}")
        victim = random.choice(files)
        after = DAMAGES[form](contents[victim], random)
        victim.write_bytes(after)
        checksums = dataset.rows["crc"] if verify else None
        with closing(
            make_loader("direct", spec, dataset.store, dataset.manifest, checksums=checksums)
        ) as loader:
            portions = [Portion(many, (Read(file, 0, many),)) for file in range(len(dataset.manifest.names))]
            try:
                list(loader.read(portions))
                wrong = verify and after != contents[victim] and form not in UNSUMMED
            except (DatasetError, StorageError):
                wrong = False
        assert not wrong, (
            f"FEEDRATE_FAULTS_SEED={SEED}: {form}, case {number}: {victim.name} was read as right"
        )
        victim.write_bytes(contents[victim])


def test_a_complaint_is_what_it_says():
    """The judge itself: what it must not let pass."""
    assert "traceback" in complaint(Done(1, "", "Traceback (most recent call last):\nValueError: x", 0.1))
    assert "hang" in complaint(Done(-1, "", "hung for 20 s", 20.0))
    assert "internal" in complaint(Done(1, "", "feedrate: error: an internal error, OSError: x", 0.1))
    assert "signal" in complaint(Done(-6, "", "", 0.1))
    assert "0 lines" in complaint(Done(1, "", "", 0.1))
    assert not complaint(Done(0, "fine", "", 0.1))
    assert not complaint(Done(3, "", "feedrate: error: no", 0.1))
