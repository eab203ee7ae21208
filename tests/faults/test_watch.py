"""Calls into the storage that hang, and calls that are only slow."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from command import until

from emulator.errors import SpecError
from emulator.launch.blocked import Call, blocked_call, bytes_moved
from emulator.launch.watch import LAST_WORDS_SECONDS, Watchdog, storage_timeout


@pytest.mark.parametrize(
    ("words", "seconds"),
    [
        ("", 30),
        ("--storage-timeout 90s", 90),
        ("--storage-timeout=2min", 120),
        ("--set loader.stall_timeout=5min", 300),
        ("--set=loader.stall_timeout=45s", 45),
        ("--set loader.stall_timeout=5s", 30),
        ("--set loader.stall_timeout=5min --storage-timeout 7s", 7),
        ("-- --storage-timeout 7s", 30),
    ],
)
def test_a_longer_stall_timeout_is_not_cut_short_in_silence(words, seconds):
    assert storage_timeout(words.split()) == seconds


def test_a_timeout_that_is_none():
    with pytest.raises(SpecError, match="storage-timeout"):
        storage_timeout(["--storage-timeout", "0s"])


def call_of(work, *values, expected=None):
    """The call that blocks a thread within `work(*values)`; it may need some time to come to `expected`."""
    thread = threading.Thread(target=work, args=values, daemon=True)
    thread.start()
    time.sleep(0.2)
    until(lambda: blocked_call(thread.native_id, {}) == expected)
    return blocked_call(thread.native_id, {})


def test_a_call_is_named_with_its_path(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def read() -> bytes:
        return pipe.read_bytes()

    call = Call("open", str(pipe))
    assert call_of(read, expected=call) == call
    os.close(os.open(pipe, os.O_RDWR))


def test_a_call_of_a_library_is_found_in_the_kernel(tmp_path):
    """h5py and pyarrow call from C."""
    pipe = tmp_path / "file"
    os.mkfifo(pipe)
    ours = os.open(pipe, os.O_RDWR)
    import ctypes

    library_function = ctypes.CDLL(None).read

    def load() -> None:
        library_function(ours, ctypes.create_string_buffer(8), 8)

    call = Call("read", str(pipe))
    assert call_of(load, expected=call) == call
    os.write(ours, b"end")
    assert call_of(threading.Event().wait, 1) is None


def test_what_is_moved_is_counted_on_a_disk():
    place, moved = bytes_moved(str(Path(__file__)))
    assert place and Path(place).is_dir() and moved >= 0
    assert bytes_moved("/proc/self/status") == ("/proc", 0)


def test_a_slow_fsync_is_no_hang_while_data_moves(tmp_path):
    """Gigabytes are written to the disk while a thread is said to wait in fsync; then nothing is."""
    file = tmp_path / "large"
    if not bytes_moved(str(file))[1]:
        pytest.skip("no disk below the folder for temporary files")
    watcher = Watchdog(3600, lambda error: None)
    watcher._timeout = 1.0
    call, seen = Call("fsync", str(file)), []
    with file.open("wb") as open_file:
        for second in range(4):
            open_file.write(os.urandom(8 << 20))
            open_file.flush()
            os.fsync(open_file.fileno())
            seen.append(watcher._moves(call, 100.0 + second, 100.0))
    assert seen == [False, True, True, True]
    assert not watcher._moves(Call("read", str(file)), 104.0, 100.0)  # no read takes so long
    assert not watcher._moves(call, 111.0, 100.0)  # nor ten times the timeout
    assert not watcher._moves(Call("fsync", "/proc/x"), 104.0, 100.0)  # it does not count


END = """
import time
from emulator.errors import RankError
from emulator.launch import watch
watch.before_end(lambda line: FIRST)
print(time.monotonic(), flush=True)
watch.end_rank(3, RankError("it hangs", "look"))
"""


@pytest.mark.parametrize("first", [True, False])
def test_a_rank_that_is_not_the_first_to_fail_is_quiet_and_lets_the_first_speak(first):
    """It ends all others: one that has yet to print its line would not."""
    words = [sys.executable, "-c", END.replace("FIRST", str(first))]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    took = time.monotonic() - float(done.stdout)
    assert done.returncode == 6
    assert done.stderr.count("feedrate: error: rank 3 on ") == first
    assert first or took >= LAST_WORDS_SECONDS
