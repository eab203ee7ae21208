"""Files of a rank: what is read is what was written, or an error; a folder in which no half looks whole."""

import json
import os
import zlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from emulator.config.checkpoint import Shard
from emulator.errors import DatasetError, StorageError
from emulator.plugins.checkpoint import files as place
from emulator.plugins.checkpoint.files import ShardIO, WrittenFile, key_of, read_shard, write_shard
from emulator.storage.posix import PosixStorage

BLOCK = 1 << 20
KEY = key_of(1, 2, 3, "any")


@pytest.fixture(scope="module")
def shard_io():
    with ShardIO(2, BLOCK) as found:
        yield found


def storage(folder: Path) -> PosixStorage:
    return PosixStorage(folder, direct=False, cache="cold")


@pytest.mark.parametrize("direct", [True, False])
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(size=st.one_of(st.integers(1, 9000), st.integers(BLOCK - 9, 3 * BLOCK + 9), st.just(2 * BLOCK)))
def test_what_is_written_is_read(tmp_path, shard_io, size, direct):
    (tmp_path / "c").mkdir(exist_ok=True)
    written = write_shard(tmp_path / "c", Shard(name="shard", size=size), KEY, shard_io, direct)
    data = (tmp_path / "c" / "shard").read_bytes()
    assert (len(data), zlib.crc32(data)) == (size, written.crc)
    read_shard(storage(tmp_path), "c", written, shard_io)
    assert [path.name for path in (tmp_path / "c").iterdir()] == ["shard"]


def test_nothing_compresses_and_no_block_is_there_twice(tmp_path, shard_io):
    blocks: set[bytes] = set()
    for number in range(2):
        shard = Shard(name=f"s{number}", size=3 * BLOCK)
        write_shard(tmp_path, shard, key_of(1, number, 0, "same"), shard_io, True)
        data = (tmp_path / shard.name).read_bytes()
        assert len(zlib.compress(data, 1)) > 0.99 * len(data)
        blocks |= {data[at : at + 4096] for at in range(0, len(data), 4096)}
    assert len(blocks) == 2 * 3 * BLOCK // 4096


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("at", [0, BLOCK - 1, BLOCK, 2 * BLOCK + 76])
def test_a_flipped_bit_is_never_read(tmp_path, shard_io, at, direct):
    (tmp_path / "c").mkdir()
    written = write_shard(tmp_path / "c", Shard(name="shard", size=2 * BLOCK + 77), KEY, shard_io, True)
    with (tmp_path / "c" / "shard").open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))
    with pytest.raises(DatasetError, match="checksum"):
        read_shard(PosixStorage(tmp_path, direct=direct, cache="cold"), "c", written, shard_io)


@pytest.mark.parametrize("size", [0, BLOCK, 2 * BLOCK + 1])
def test_another_size_is_never_read(tmp_path, shard_io, size):
    (tmp_path / "c").mkdir()
    written = write_shard(tmp_path / "c", Shard(name="shard", size=2 * BLOCK), KEY, shard_io, True)
    os.truncate(tmp_path / "c" / "shard", size)
    with pytest.raises(DatasetError, match="bytes"):
        read_shard(storage(tmp_path), "c", written, shard_io)


def test_a_missing_file_and_one_of_another_checkpoint_are_never_read(tmp_path, shard_io):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    shard = Shard(name="shard", size=5000)
    first = write_shard(tmp_path / "a", shard, key_of(1, 0, 0, "shard"), shard_io, True)
    write_shard(tmp_path / "b", shard, key_of(1, 1, 0, "shard"), shard_io, True)
    (tmp_path / "b" / "shard").replace(tmp_path / "a" / "shard")
    with pytest.raises(DatasetError, match="checksum"):
        read_shard(storage(tmp_path), "a", first, shard_io)
    with pytest.raises(DatasetError, match="missing"):
        read_shard(storage(tmp_path), "b", first, shard_io)


def test_a_folder_that_is_gone_is_one_line(tmp_path, shard_io):
    with pytest.raises(StorageError, match="gone"):
        write_shard(tmp_path / "gone", Shard(name="shard", size=9), KEY, shard_io, True)


def marker(files: tuple[tuple[WrittenFile, ...], ...] = ()) -> place.Marker:
    return place.Marker(model="any", ranks=1, data=1, scale="1", seed=7, files=files)


def test_a_checkpoint_is_complete_only_after_the_commit(tmp_path):
    part = place.begin(tmp_path, 7, "run")
    (part / "0-model").write_bytes(b"x")
    assert place.complete(tmp_path) == [] and place.unfinished(tmp_path) == [part]
    said = marker(((WrittenFile(name="0-model", size=1, crc=2),),))
    place.commit(part, 7, said)
    (tmp_path / place.folder_name(8)).mkdir()
    assert place.complete(tmp_path) == [7], "a folder without a marker is not complete"
    (tmp_path / place.folder_name(8)).rmdir()
    assert place.unfinished(tmp_path) == []
    assert place.read_marker(tmp_path, 7) == said and said.size == 1
    place.remove(tmp_path / place.folder_name(7))
    assert list(tmp_path.iterdir()) == []


FIELDS = {"model": "x", "ranks": 1, "data": 1, "scale": "1", "seed": 1, "files": []}
ESCAPES = {**FIELDS, "files": [[{"name": "../../etc/passwd", "size": 1, "crc": 1}]]}


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "[" * 5000, '{"model": "x"}', json.dumps(ESCAPES), json.dumps({**FIELDS, "ranks": "1"})],
)
def test_markers_that_cannot_be(tmp_path, text):
    place.commit(place.begin(tmp_path, 0, "a"), 0, marker())
    (tmp_path / place.folder_name(0) / place.MARKER).write_text(text)
    with pytest.raises(DatasetError) as error:
        place.read_marker(tmp_path, 0)
    assert "\n" not in str(error.value) and len(str(error.value)) < 500
