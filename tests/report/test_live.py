"""The view on a terminal and its facts: what fits, what is kept on the way from a rank to its launcher."""

import io
import json
from dataclasses import asdict, replace
from multiprocessing import Pipe

from rich.console import Console, Group

from emulator.live import Follower, Now, Shared, speak
from emulator.report.live import frame

NOW = Now(
    verb="sweep", doing="8 ranks, step 12 of 40", part=4, parts=7, about=True, share=0.52, seconds=130.0,
    eta_seconds=180.0, bytes_per_second=3.98e8, au=0.71, limit="storage at 6 ranks", knee=(5.2, 5.5, 5.9),
)  # fmt: skip


def test_the_view_has_all_facts():
    console = Console(file=io.StringIO(), width=200)
    console.print(Group(*frame(NOW)))
    text = console.file.getvalue()
    for fact in (
        "398 MB/s",
        "AU 71 %",
        "knee 5.5 (5.2 to 5.9)",
        "run 4 of about 7",
        "limit: storage at 6 ranks",
    ):
        assert fact in text


def test_control_characters_of_others_are_escapes():
    assert "\x1b" not in [*frame(Now(verb="generate", doing="a\x1b[2J"))][-1].plain


def test_json_has_every_field_and_nothing_that_is_no_json():
    told = json.loads(Now(verb="run", doing="x", bytes_per_second=float("inf")).as_json())
    assert told.keys() == asdict(NOW).keys() and told["bytes_per_second"] is None


def test_the_launcher_shows_what_its_rank_says(capsys):
    speak(live="lines")
    ours, theirs = Pipe(duplex=False)
    rank, launcher = Shared(theirs), Follower(ours)
    rank.say("point 1 of 2")
    rank.show(NOW)
    launcher.follow()
    rank.show(NOW)  # too soon for lines
    rank.say("point 2 of 2")
    theirs.close()
    launcher.follow()
    first, progress, last = capsys.readouterr().out.splitlines()
    assert (first, last) == ("point 1 of 2", "point 2 of 2")
    assert "run 4 of about 7, 8 ranks, step 12 of 40, 398 MB/s" in progress


def test_a_line_says_how_long_it_will_take_unless_nobody_knows():
    assert NOW.line().endswith("about 3 min 00 s left")
    for unknown in (None, float("inf")):
        assert "left" not in replace(NOW, eta_seconds=unknown).line()
