"""Calls into the storage that hang, and calls that are only slow."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import until

from emulator import notes
from emulator.errors import FeedrateError, StorageError
from emulator.launch.watch import Alarm, bytes_moved
from emulator.notes import Page

LIMIT = 0.6
"""--storage-timeout, in seconds."""


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    """A page of notes that this process writes to during the test, as rank 3."""
    monkeypatch.setenv(notes.VARIABLE, "")
    before = notes._Own.page, notes._Own.rank
    page = notes.share(Page.new(), 3)
    page.head.timeout = LIMIT
    yield page
    notes._Own.page, notes._Own.rank = before
    notes._Own.threads = threading.local()


def looked(page: Page, seconds: float = 3 * LIMIT) -> FeedrateError | None:
    """Look at the page until the alarm is raised, for so long at most."""
    alarm, end = Alarm(page), time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(alarm.pause)
        if found := alarm.look():
            return found[1]
    return None


def hang(page: Page, call: str, path: str) -> threading.Event:
    """Have a thread wait within a call; it ends with the event."""
    over, begun = threading.Event(), threading.Event()

    def wait() -> None:
        with notes.doing(call, path):
            begun.set()
            over.wait(60)

    threading.Thread(target=wait, daemon=True).start()
    begun.wait(60)
    return over


def test_a_call_that_does_not_return_is_named_with_its_rank_and_its_path(page):
    over = hang(page, "read", "/mnt/a/f17")
    error = looked(page, 60)
    over.set()
    assert isinstance(error, StorageError)
    assert "rank 3 on " in str(error) and "read of /mnt/a/f17 has not answered for " in str(error)


def test_calls_that_return_and_calls_that_compute_raise_no_alarm(page):
    end = time.monotonic() + 3 * LIMIT

    def compute() -> None:
        with notes.doing("load", "/mnt/a/large.h5"):
            while time.monotonic() < end:
                sum(range(1000))

    threading.Thread(target=compute, daemon=True).start()
    over = hang(page, "open", "/mnt/a/f1")
    over.set()
    assert looked(page) is None


def test_an_inner_call_is_named_and_then_the_outer_one_again(page):
    with notes.doing("list", "/mnt/a"):
        with notes.doing("stat", "/mnt/a/f1"):
            assert [note.text for note in page.notes()] == [b"stat of /mnt/a/f1"]
        assert [note.text for note in page.notes()] == [b"list of /mnt/a"]
    assert [note.text for note in page.notes()] == [b""]


def test_another_process_finds_the_page_and_a_stopped_one_is_named(page):
    code = "import time; from emulator import notes; notes.mine(); print(flush=True); time.sleep(60)"
    words = [sys.executable, "-c", code]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        assert process.pid in {note.process for note in page.notes()}
        process.send_signal(signal.SIGSTOP)
        error = looked(page, 60)
        assert "rank 3 on " in str(error) and f"it is stopped (process {process.pid}" in str(error)
        process.kill()
    assert looked(page) is None


def test_the_first_failure_counts(page):
    assert page.failure() is None
    assert page.fail("rank 1: it hangs", 4) and not page.fail("rank 0: it has lost rank 1", 6)
    assert page.failure() == ("rank 1: it hangs", 4)


def test_what_is_moved_is_counted_on_a_disk():
    place, moved = bytes_moved(str(Path(__file__)))
    assert place and Path(place).is_dir() and moved >= 0
    assert bytes_moved("/proc/self/status") == ("/proc", 0)


def test_a_slow_fsync_is_no_hang_while_data_moves(page, tmp_path):
    file = tmp_path / "large"
    if not bytes_moved(str(file))[1]:
        pytest.skip("no disk below the folder for temporary files")
    over = hang(page, "fsync", str(file))
    moving = threading.Event()

    def write() -> None:
        with file.open("wb") as open_file:
            while not moving.is_set():
                open_file.write(os.urandom(4 << 20))
                open_file.flush()
                os.fsync(open_file.fileno())

    writer = threading.Thread(target=write)
    writer.start()
    assert looked(page, 4 * LIMIT) is None
    moving.set()
    writer.join()
    assert until(lambda: looked(page, 3 * LIMIT))
    over.set()
