"""The manifest: small, fast, and strict about what it reads."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from emulator.config.recipe import load_recipe
from emulator.dataset.manifest import MANIFEST, Manifest, open_dataset, read_manifest, write_manifest
from emulator.dataset.plan import DatasetPlan
from emulator.dataset.table import ROW
from emulator.errors import DatasetError
from emulator.storage.folder import FolderStore


def write(folder: Path, files: int = 5, **changes: object) -> Manifest:
    rows = np.zeros(files, ROW)
    rows["bytes"] = np.arange(files) + 1000
    plan = DatasetPlan(recipe=load_recipe("tiny"), seed=3, files=files, subfolders=4)
    manifest = Manifest(format="npz", plan=plan, names=plan.names, sizes=rows["bytes"].copy())
    write_manifest(FolderStore(folder), manifest, rows)
    head = json.loads((folder / MANIFEST).read_bytes())
    (folder / MANIFEST).write_text(json.dumps({**head, **changes}))
    return manifest


def test_what_is_written_is_read(tmp_path):
    written = write(tmp_path)
    found = read_manifest(tmp_path)
    assert (found.format, found.recipe, found.seed, found.total) == ("npz", "tiny", 3, written.total)
    assert list(found.names) == [f"{number % 4:04d}/sample_{number:07d}.npz" for number in range(5)]
    assert found.sizes[:].tolist() == [1000, 1001, 1002, 1003, 1004]
    assert open_dataset(tmp_path).rows["crc"][1:3].tolist() == [0, 0]
    assert found.bytes_of(np.array([0, 3])) == 2003
    assert found.names[-1] == found.names[4] and found.names[1:3] == list(found.names)[1:3]
    with pytest.raises(IndexError):
        found.names[5]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"schema": 99}, "schema 99"),
        ({"feedrate": "no"}, "not a manifest of feedrate"),
        ({"table": "../x.npy"}, "names no table"),
        ({"table": "samples-00000000.npy"}, "is missing"),
        ({"table_crc32": 1}, "checksum"),
        ({"checksum": ""}, "was changed after it was written"),
        ({"identity": "4"}, "was changed after it was written"),
        ({"plan": {"files": 5}}, "corrupt"),
        ({"measured": 7}, "corrupt"),
    ],
)
def test_a_wrong_manifest_is_one_line(tmp_path, changes, said):
    write(tmp_path, **changes)
    with pytest.raises(DatasetError) as error:
        read_manifest(tmp_path)
    assert said in str(error.value) and str(tmp_path) in str(error.value)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"[" * 100_000])
def test_garbage_is_one_line(tmp_path, content):
    (tmp_path / MANIFEST).write_bytes(content)
    with pytest.raises(DatasetError, match=str(tmp_path)):
        read_manifest(tmp_path)


def test_what_is_not_there_says_what_to_do(tmp_path):
    with pytest.raises(DatasetError, match="there is no dataset folder .*: run feedrate generate"):
        read_manifest(tmp_path / "none")
    with pytest.raises(DatasetError, match="has no manifest.json: run feedrate generate"):
        read_manifest(tmp_path)
    (tmp_path / ".feedrate").mkdir()
    with pytest.raises(DatasetError, match="not finished.*it resumes"):
        read_manifest(tmp_path)
    nothing = np.zeros(0, ROW)
    write_manifest(FolderStore(tmp_path), Manifest(format="npz", names=[], sizes=nothing["bytes"]), nothing)
    with pytest.raises(DatasetError, match="empty"):
        read_manifest(tmp_path)
