"""Files that appear atomically."""

from __future__ import annotations

import errno
import os
import socket
import stat
import threading
from pathlib import Path

import pytest

from emulator.errors import StorageError
from emulator.files import replacing, sync_folder, temporary_name, write_whole, written_by


def one_line(error: pytest.ExceptionInfo[StorageError]) -> str:
    line = str(error.value)
    assert "\n" not in line
    return line


def failing(number: int):
    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))

    return fsync


def test_what_was_there_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    write_whole(tmp_path / "file", b"old")
    write_whole(tmp_path / "file", "new \u00e9")
    assert (tmp_path / "file").read_bytes() == "new \u00e9".encode()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_its_mode_is_what_the_umask_gives(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        write_whole(tmp_path / "file", b"")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o666 & ~umask


@pytest.mark.parametrize("failure", [ValueError(), KeyboardInterrupt(), OSError(errno.EIO, "broken")])
def test_a_failure_leaves_what_was_there(tmp_path: Path, failure: BaseException) -> None:
    write_whole(tmp_path / "file", b"old")
    with pytest.raises((ValueError, KeyboardInterrupt, StorageError)), replacing(tmp_path / "file") as file:
        file.write(b"half")
        file.flush()
        raise failure
    assert (tmp_path / "file").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP, errno.EBADF])
def test_a_file_system_that_cannot_sync_folders_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(os, "fsync", failing(number))
    write_whole(tmp_path / "file", b"new")
    sync_folder(tmp_path)
    assert (tmp_path / "file").read_bytes() == b"new"


def test_a_link_in_the_place_of_the_temporary_file_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    monkeypatch.setattr(os, "urandom", bytes)
    temporary_name(tmp_path / "file").symlink_to(victim)
    with pytest.raises(StorageError) as error:
        write_whole(tmp_path / "file", b"evil")
    assert "file" in one_line(error)
    assert victim.read_bytes() == b"precious"
    assert temporary_name(tmp_path / "file").is_symlink()  # what is not ours is not removed


def test_two_writers_of_one_file_do_not_meet(tmp_path: Path) -> None:
    with replacing(tmp_path / "file") as first, replacing(tmp_path / "file") as second:
        first.write(b"first")
        second.write(b"second")
    assert (tmp_path / "file").read_bytes() == b"first"


def test_temporary_names_are_known_again_and_fit() -> None:
    for name in ("run.json", "a" * 255, "\N{SNOWMAN}" * 85, "with\nnewline"):
        temporary = temporary_name(Path("/folder") / name).name
        assert written_by(temporary) == (name[:40], socket.gethostname()[:32], os.getpid())
        assert len(os.fsencode(temporary)) <= 255
    for name in ("run.json", "download.iso.part", "host-1-0123456789abcdef.part"):
        assert written_by(name) is None


def test_a_missing_folder_is_one_line_without_the_temporary_name(tmp_path: Path) -> None:
    with pytest.raises(StorageError) as error:
        write_whole(tmp_path / "missing" / "file", b"")
    assert (
        one_line(error) == f"cannot write {tmp_path}/missing/file: No such file or directory: check the path"
    )


def test_a_pipe_is_written_to(tmp_path):
    pipe, got = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()
    write_whole(pipe, b"page")
    reader.join(10)
    assert got == [b"page"] and pipe.is_fifo()


def test_a_device_stays_one(tmp_path):
    device = tmp_path / "null"
    try:
        os.mknod(device, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
        device.write_bytes(b"")
    except PermissionError:
        pytest.skip("nobody but root may make devices, or use them here")
    write_whole(device, b"page")
    assert device.is_char_device() and [path.name for path in tmp_path.iterdir()] == ["null"]


def test_a_folder_that_could_not_be_synced_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", failing(errno.EIO))
    with pytest.raises(StorageError) as error:
        write_whole(tmp_path / "file", b"new")
    assert "the storage failed" in one_line(error)
