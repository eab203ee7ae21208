"""Output for scripts: answers on stdout, exit statuses, resumed sweeps."""

import csv
import json
import re
from pathlib import Path

import pytest
from command import ANSWERED, feedrate
from synthetic_results import plain_sweep

from emulator.errors import EXIT_STATUS, FeedrateError
from emulator.record.out import read_result, write_result

SCRIPTS = Path(__file__).resolve().parents[2] / "docs" / "scripts.md"
TINY = ("--workload", "unet3d-tiny", "--loader", "direct")


@pytest.fixture(scope="module")
def swept(tiny, tmp_path_factory):
    """A small sweep: the finished command and its folder."""
    out = tmp_path_factory.mktemp("swept") / "o u t"
    words = (*TINY, "--steps", 4, "--counts", "1,2", "--storage", "shaped:400MB/s", "--label", "as it was")
    return feedrate("sweep", tiny, *words, "--out", out, "--json"), out


def test_a_sweep_answers_with_one_line_and_says_the_rest_on_stderr(swept):
    done, out = swept
    assert done.status in ANSWERED, done.err
    answer = json.loads(done.out)  # one JSON document, nothing else
    assert answer["out"] == str(out) and answer["label"] == "as it was"
    assert [point["ranks"] for point in answer["points"]] == [1, 2]
    assert f"feedrate report '{out}' --html page.html" in done.err, "quoted, so that it can be pasted"
    assert read_result(out).label == "as it was"


@pytest.mark.parametrize(
    "words", [("workloads",), ("workloads", "unet3d-tiny"), ("checkpoint", "--models")], ids=" ".join
)
def test_every_answer_is_json(words):
    done = feedrate(*words, "--json")
    assert done.status == 0, done.err
    json.loads(done.out.splitlines()[0])


def test_report_as_json_csv_and_markdown(swept, tmp_path):
    out = swept[1]
    assert json.loads(feedrate("report", out, "--json").out)["answer"]
    rows = list(csv.DictReader(feedrate("report", out, "--csv", "-").out.splitlines()))
    assert [row["ranks"] for row in rows] == ["1", "2"] and {row["label"] for row in rows} == {"as it was"}
    for row, point in zip(rows, read_result(out).points, strict=True):
        assert float(row["bytes_per_second"]) == point.bytes_per_second
        assert 0 < float(row["read_p50_seconds"]) <= float(row["read_max_seconds"]) < 60
    assert "| ranks |" in feedrate("report", out, "--markdown", "-").out
    assert json.loads(feedrate("compare", out, out, "--json").out)["results"][0]["label"] == "as it was"
    unwritable = feedrate("report", out, "--html", tmp_path / "no" / "p.html")
    assert unwritable.status == 4 and "MB/s" not in unwritable.out


def test_gates_decide_the_exit_status(tmp_path):
    """Fourteen are fed."""
    out, junit = tmp_path / "out", tmp_path / "gate.xml"
    out.mkdir()
    write_result(out, plain_sweep())
    for words, status in (
        (("report", out, "--require", 8, "--junit", junit), 0),
        (("report", out, "--require", 99), 10),
        (("compare", out, out, "--fail-if-worse", "50%", "--junit", junit), 0),
        (("compare", out, out, "--fail-if-worse", "5%", "--junit", tmp_path / "no" / "gate.xml"), 4),
        (("compare", out, "--fail-if-worse", "5%"), 2),
        (("compare", out, out, "--fail-if-worse", "5 apples"), 2),
        (("report", out, "--junit", junit), 2),
    ):
        done = feedrate(*words)
        assert done.status == status, (words, done.out, done.err)
        assert bool(done.err) == (status not in (0, 9, 10)), done.err
    assert 'name="--fail-if-worse 50%"' in junit.read_text()


def test_resume_needs_nothing_but_the_folder(swept, tmp_path):
    out = swept[1]
    done = feedrate("sweep", "--resume", out, "--counts", "1,2,1", cwd=tmp_path)
    assert done.status in ANSWERED, done.err
    assert [point.ranks for point in read_result(out).points] == [1, 2, 1]
    wrong = feedrate("sweep", "--workload", "unet3d-tiny")
    assert wrong.status == 2 and "sweep needs DIR" in wrong.one_line()


def test_the_live_stream_is_an_object_a_second(tiny, tmp_path):
    words = (*TINY, "-n", 2, "--steps", 40, "--out", tmp_path / "out")
    done = feedrate("run", tiny, *words, "--live", "json")
    assert done.status == 0, done.err
    seen = [json.loads(line) for line in done.out.splitlines()]
    assert seen and all(now["verb"] == "run" and now["parts"] in (None, 1) for now in seen)
    assert "result: " in done.err


def test_quiet_leaves_the_answer_and_verbose_shows_what_is_started(tiny, tmp_path):
    words = ("run", tiny, *TINY, "--steps", 2, "-n", 2)
    quiet = feedrate(*words, "--out", tmp_path / "a", "-q")
    assert quiet.status == 0 and "point 1" not in quiet.out + quiet.err and "B/s" in quiet.out
    loud = feedrate(*words, "--out", tmp_path / "b", "-v")
    assert loud.status == 0 and "2 ranks" in loud.err


def test_every_exit_status_is_in_the_help():
    text = feedrate("-h").out
    for error in FeedrateError.__subclasses__():
        assert error.exit_code in EXIT_STATUS
    assert all(f" {status}  " in text for status in EXIT_STATUS)


def test_small_slips_have_hints(tmp_path):
    assert "write s3://bucket" in feedrate("verify", "s3:/bucket").one_line()
    words = ("datasize", "-w", "unet3d-a100", "--accelerators", 8, "--host-memory", "256")
    assert "256GiB" in feedrate(*words).one_line()
    assert "name it" in feedrate("workloads", "--toml").one_line()
    (tmp_path / "file").write_text("")
    assert "is a file" in feedrate("doctor", tmp_path / "file").out
    assert "--recipe" in feedrate("generate", tmp_path / "data").one_line()


def test_the_file_of_a_workload_begins_one_of_your_own(tmp_path):
    (tmp_path / "mine.toml").write_text(feedrate("workloads", "unet3d-a100", "--toml").out)
    assert feedrate("workloads", tmp_path / "mine.toml").out == feedrate("workloads", "unet3d-a100").out


SHAPES = {
    command: set(re.findall(r"`(\w+)`", keys))
    for commands, keys in re.findall(r"^\| (`.*?) \| (.*) \|$", SCRIPTS.read_text(), re.MULTILINE)
    for command in re.findall(r"`(.*?)`", commands)
}
"""Command -> keys of its JSON, as docs/scripts.md says."""


@pytest.mark.parametrize(
    "words",
    [
        ("compare", "OUT", "OUT"),
        ("plan", "-w", "unet3d-a100", "-s", "weka-performance"),
        ("efficiency", "-s", "ceph-nvme"),
        ("generate", "DATA", "--recipe", "tiny", "--files", 2),
        ("verify", "DATA"),
        ("datasize", "-w", "unet3d-a100", "--accelerators", 8, "--host-memory", "256GiB"),
        ("published", "unet3d-h100"),
        ("doctor",),
    ],
    ids=lambda words: words[0],
)
def test_the_keys_of_an_answer_are_those_of_the_documentation(words, swept, tmp_path):
    if words[0] == "verify":
        assert feedrate("generate", tmp_path / "data", "--recipe", "tiny", "--files", 2).status == 0
    places = {"OUT": swept[1], "DATA": tmp_path / "data"}
    done = feedrate(*(places.get(word, word) for word in words), "--json")
    assert set(json.loads(done.out.splitlines()[0])) == SHAPES[words[0]]


def test_an_answer_in_json_has_the_verdict(swept):
    done = feedrate("report", swept[1], "--json", "--require", 1)
    answer = json.loads(done.out.splitlines()[0])["answer"]
    assert answer["gate"]["status"] == done.status and answer["gate"]["asked"] == "--require 1"
    assert {"question", "sentence", "number", "interval", "unit", "threshold", "limit", "advice"} < set(
        answer
    )
    assert feedrate("report", swept[1], "-q", "--require", 1).out.count("\n") == 1
