"""A document of any size takes neither memory nor time: it is refused, with its name and the limit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from faults.harness import run

from emulator.config.reader import read_json, read_toml
from emulator.dataset.manifest import MANIFEST
from emulator.dataset.owned import PLAN
from emulator.errors import StorageError

GENERATE = ("--recipe", "tiny", "--files", "2", "--no-fsync", "--threads", "1")
pytestmark = pytest.mark.usefixtures("warm")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("w.toml", ("run", "{data}", "-w", "{file}")),
        ("recipe.toml", ("generate", "{there}/new", "--recipe", "{file}")),
        ("run.json", ("report", "{there}")),
        ("theirs.yaml", ("import", "{file}", "--out", "{there}/w.toml")),
        (f"data/{MANIFEST}", ("verify", "{data}")),
        (f"data/{PLAN}", ("generate", "{data}", *GENERATE)),
    ],
)  # fmt: skip
def test_a_document_without_end_is_refused(
    data: Path, tmp_path: Path, name: str, words: tuple[str, ...]
) -> None:
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    with file.open("wb") as opened:
        opened.truncate(2**43)
    places = {"data": data, "there": tmp_path, "file": file}
    line = run(tmp_path, *(word.format(**places) for word in words)).one_line()
    assert str(file) in line and "has more than" in line


@pytest.mark.parametrize("read", [read_toml, read_json])
def test_a_read_that_fails_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read) -> None:
    """A disk that fails after open() gives an error without a name."""
    file = Path(f"/proc/{os.getpid()}/mem")  # reading its first page is EIO
    with pytest.raises(StorageError, match=str(file)):
        read(file)
