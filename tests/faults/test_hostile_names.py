"""Names and texts of others in what another program parses, in files, on a terminal, in a picture."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from command import feedrate
from mlperf.artefacts import Run
from s3_server import BUCKET
from synthetic_results import plain_sweep, with_steps

from emulator import __version__
from emulator.cli.main import command
from emulator.config.reader import to_plain
from emulator.config.storage import parse_place
from emulator.errors import SpecError, unexpected
from emulator.plugins.baseline.fio_suite import FioSuite
from emulator.plugins.baseline.rados import RadosBench
from emulator.plugins.baseline.suites import find_suite
from emulator.report.document import document_of
from emulator.report.terminal import Text, render
from emulator.storage import open_store
from emulator.text import printable

ROOT = Path(__file__).resolve().parents[2]
NAMES = [
    "evil\nexec_prerun=touch PWNED", "a\rb", 'quo"te', "quo'te", "co:lon", "c;d", ";c", "#c", "c#d", "$ncpus",
    "${HOME}", "$(touch PWNED)", "`touch PWNED`", "-ds", "--client=x", "{a,b}", "%s%n", "back\\slash", "\\:",
    "blank ", " blank", "two words", "tab\there", "\x01", "\x1b[31m", "日本 é", "\udcff", "a=b", "[x]", "*?",
]  # fmt: skip
with_fio = pytest.mark.skipif(shutil.which("fio") is None, reason="fio is not installed")


def files_below(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


@with_fio
@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_fio_writes_into_that_folder_or_is_not_started(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "d" / name
    folder.mkdir(parents=True)
    try:
        fio = FioSuite(
            suite=find_suite("mixed", clones=2), folders=(folder,), out=tmp_path, file_bytes=2**20,
            direct=False, seconds=1, keep=True,
        )  # fmt: skip
    except SpecError as error:
        assert "\n" not in str(error) and "\x1b" not in str(error)
        assert "fio cannot use" in str(error)
    else:
        with ExitStack() as stack:
            fio.prepare("host", stack)
        place = folder / "feedrate-baseline" / "host"
        assert files_below(folder) == {place / name for name in ("job0.dat", "job1.dat", ".feedrate-lock")}
    assert files_below(tmp_path) == files_below(folder)


@pytest.mark.parametrize("name", ["-p", "--conf=/etc/passwd", "a\nb", "\x1b[31m"], ids=ascii)
def test_names_in_ceph_are_no_options(name, tmp_path):
    for names in ({"pool": name}, {"pool": "p", "user": name}):
        with pytest.raises(SpecError, match="is not a name in Ceph"):
            RadosBench(conf=tmp_path / "ceph.conf", out=tmp_path, **names)


@pytest.mark.parametrize("script", ["local.sh", "slurm.sbatch"])
@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_launch_files_hand_a_folder_on_as_it_is(script, name, tmp_path):
    for program in ("feedrate", "mpirun"):
        (tmp_path / program).write_text('#!/bin/sh\nprintf "%s\\0" "$@" > words\n')
        (tmp_path / program).chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_NTASKS": "2", "SLURM_JOB_ID": "7"}
    subprocess.run(["bash", ROOT / "launch" / script, name], check=True, cwd=tmp_path, env=environment)
    words = (tmp_path / "words").read_bytes().split(b"\0")
    place = words[words.index(b"sweep") + 1]
    assert Path(os.fsdecode(place)) == Path(name) and not place.startswith(b"-")
    assert not (tmp_path / "PWNED").exists()


@pytest.mark.parametrize(("given", "ranks"), [(("4", "--steps", "9"), b"4"), (("--steps", "9"), b"8")])
def test_the_number_of_ranks_may_be_left_out(given, ranks, tmp_path):
    (tmp_path / "feedrate").write_text('#!/bin/sh\nprintf "%s\\0" "$@" > words\n')
    (tmp_path / "feedrate").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = ["bash", ROOT / "launch" / "local.sh", "data", *given]
    subprocess.run(command, check=True, cwd=tmp_path, env=environment)
    words = (tmp_path / "words").read_bytes().split(b"\0")
    assert words[:-1] == [b"sweep", b"data", b"-n", ranks, b"--steps", b"9"]


def test_import_follows_no_link_out_of_the_run(tmp_path):
    secret = tmp_path / "secret.json"
    secret.write_text('{"password": "hunter2"}')
    for name in ("training_1_metadata.json", "summary.json", "dlio_config/config.yaml"):
        run = Run().write(tmp_path / name.replace("/", "-"), "v2.0")
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(secret)
        done = feedrate("import", run, "--out", tmp_path / "out")
        assert done.status == 2 and "a link out of the folder" in done.one_line()
        assert not (tmp_path / "out").exists()
    inner = Run().write(tmp_path / "inner", "v2.0")
    (inner / "summary.json").rename(inner / "kept.json")
    (inner / "summary.json").symlink_to("kept.json")
    assert feedrate("import", inner, "--out", tmp_path / "out").status == 0


HOSTILE = "\x1b]0;owned\x07\x1b[31mred\x9b5m\u202eevil\x00\ufffe\x7f\udc80"


@pytest.fixture
def hostile(tmp_path):
    made = plain_sweep()
    workload = {**made.workload, "title": f"title {HOSTILE}", "name": HOSTILE}
    flags = [replace(flag, sentence=HOSTILE) for flag in made.flags]
    return replace(
        made,
        workload=workload,
        reason=HOSTILE,
        status="incomplete",
        flags=tuple(flags),
        command=("feedrate", HOSTILE),
    )


def test_a_result_reaches_neither_terminal_nor_page_raw(hostile, tmp_path):
    text = document_of(with_steps(hostile)).text("html")
    assert printable(text) == text and r"\x1b[31mred" in text
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "run.json").write_text(json.dumps(to_plain(hostile, named=True)))
    done = feedrate("report", tmp_path / "out")
    assert done.status == 0, done.err
    assert printable(done.out) == done.out and r"\x1b[31mred" in done.out
    assert printable(render([Text(HOSTILE)])) == render([Text(HOSTILE)])


def test_a_picture_shows_escapes(hostile, tmp_path):
    document_of(with_steps(hostile)).write(tmp_path / "p", "svg")
    content = (tmp_path / "p").read_bytes()
    assert rb"\x1b[31mred" in content and b"\x1b" not in content


def test_names_of_files_and_words_reach_no_terminal_raw(tmp_path):
    place = tmp_path / "evil\x1b[31m\x07"
    for words in (
        ("verify", place),
        ("report", place),
        ("import", place),
        ("workloads", str(place) + ".toml"),
        ("--\x1b[31m",),
    ):
        done = feedrate(*words)
        assert done.status != 0 and printable(done.err + done.out) == done.err + done.out, words
    place.mkdir()
    done = feedrate("generate", place / "ds", "--recipe", "tiny", "--files", 2)
    assert done.status == 0 and printable(done.out) == done.out


SECRET = "wJalrXUtnFEMI"
URLS = [
    f"s3://AKIA:{SECRET}@bucket/p", f"s3://bucket/p?secret_access_key={SECRET}",
    f"s3://b/p?aws_session_token={SECRET}", f"s3://b/p?endpoint=http://user:{SECRET}@host:9000",
    f"https://user:{SECRET}@host/x", f"s3://b//p?x&password={SECRET}",
]  # fmt: skip


@pytest.mark.parametrize(
    ("verb", "url"),
    [*(("verify", url) for url in URLS), *((verb, URLS[0]) for verb in ("report", "generate", "run"))],
)
def test_keys_in_a_url_are_shown_nowhere(verb, url, tmp_path):
    done = feedrate(verb, url, cwd=tmp_path)
    assert done.status != 0 and SECRET not in done.out + done.err
    assert not files_below(tmp_path)


@pytest.mark.parametrize(
    "name", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION"]
)
@pytest.mark.parametrize("end", ["\n", "\r\n", " ", "é", "\x1b"], ids=ascii)
def test_a_key_with_a_line_feed_is_one_line(name, end, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(variable, SECRET)
    monkeypatch.setenv(name, SECRET + end)
    with pytest.raises(SpecError, match=name) as error:
        open_store(parse_place(f"s3://{BUCKET}/x"))
    assert SECRET not in str(error.value)


def test_what_no_check_foresaw_is_a_bug_and_says_so(tmp_path, monkeypatch, capsys):
    """Not "damaged": only a reader that knows the file may say that."""
    monkeypatch.setattr("sys.argv", ["feedrate", "report", str(tmp_path)])
    monkeypatch.setattr("emulator.cli.main.app", lambda **_: {}["missing"])
    streams = sys.stdout, sys.stderr
    try:
        assert command() == 1
    finally:
        sys.stdout, sys.stderr = streams
    (line,) = capsys.readouterr().err.splitlines()
    assert "internal error, KeyError" in line
    report = Path(line.rpartition(" with ")[2])
    text = report.read_text()
    report.unlink()
    assert "Traceback" in text and f"feedrate {__version__}" in text


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't start new thread")])
def test_a_limit_of_the_process_is_no_bug(error, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert "ulimit" in unexpected(error) and not list(tmp_path.iterdir())
