"""`verify` over ranks."""

from __future__ import annotations

from command import until

from emulator import live
from emulator.config.storage import parse_place
from emulator.dataset import checking as verify
from emulator.dataset import verify as checking
from emulator.launch.comm import Comm


class Seen(live.View):
    """Keeps the last progress that it was shown."""

    every = 0.01

    def __init__(self) -> None:
        self.last: live.Now | None = None

    def show(self, now: live.Now) -> None:
        self.last = now


class OneOfTwo(Comm):
    """The first of two ranks."""

    size = 2


def test_progress_is_that_of_all_ranks(tiny, monkeypatch):
    seen = Seen()

    def check_files(dataset, indices, threads, done):
        found = checking.check_files(dataset, indices, threads, done)
        seen.last = None
        assert until(lambda: seen.last)
        return found

    monkeypatch.setattr(live, "current", lambda: seen)
    monkeypatch.setattr(verify, "check_files", check_files)
    checked = verify.verify(parse_place(str(tiny)), OneOfTwo())
    assert seen.last and (checked.checked, seen.last.part, seen.last.parts) == (96, 96, 96)
    assert seen.last.share > 0.9, "ranks take turns, so their shares differ by a file"
