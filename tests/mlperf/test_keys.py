"""Passwords and keys of imported files are in nothing that is written or printed."""

from __future__ import annotations

import json
from pathlib import Path

import yaml
from artefacts import UNET3D, Run
from command import feedrate
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.errors import FeedrateError
from emulator.plugins.mlperf.bounded import parse_yaml

SECRET = "hunter2XYZ"
NAMES = (
    "secret_access_key", "access_key_id", "AWS_SECRET_ACCESS_KEY", "password", "passwd", "session_token",
    "sessionToken", "token", "credentials", "api_key", "apiKey", "accountKey", "private-key", "signature",
    "Authorization", "sas_token",
)  # fmt: skip
TEXTS = (
    "s3://user:{}@host/bucket", "https://host/x?X-Amz-Signature={}&a=b", "--secret-key {} --host x",
    "++workload.storage.storage_options.secret_access_key={}", "AccountKey={};x=y",
)  # fmt: skip


def without_secret(folder: Path, *shown: str) -> None:
    leaks = [text for text in shown if SECRET in text]
    leaks += [
        str(path) for path in folder.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()
    ]
    assert not leaks


def options() -> dict[str, object]:
    """Every kind of setting with a secret, as one table."""
    texts = {f"text{number}": text.format(SECRET) for number, text in enumerate(TEXTS)}
    return {
        **dict.fromkeys(NAMES, SECRET),
        **texts,
        "credentials": {"user": SECRET},
        "list": list(texts.values()),
    }


def test_an_imported_yaml_keeps_no_secret(tmp_path):
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    out.mkdir()
    path = folder / "unet3d_h100.yaml"
    path.write_text(UNET3D + yaml.safe_dump({"storage": {"storage_options": options()}}))
    done = feedrate("import", path, "--out", out / "x.toml", "--recipe", out / "r.toml")
    assert done.status == 0, done.err
    without_secret(out, done.out, done.err)
    assert "***" in (out / "x.toml").read_text()


def test_an_imported_tree_keeps_no_secret(tmp_path):
    run, out = Run().write(tmp_path / "in", "v3.0"), tmp_path / "out"
    (overrides,) = run.rglob("overrides.yaml")
    overrides.write_text(
        overrides.read_text() + "".join(f"- {json.dumps(t.format(SECRET))}\n" for t in TEXTS[3:4])
    )
    (config,) = run.rglob("config.yaml")
    table = yaml.safe_load(config.read_text())
    table["workload"]["storage"] = options()
    config.write_text(yaml.safe_dump(table))
    (metadata,) = run.rglob("*_metadata.json")
    metadata.write_text(json.dumps({**json.loads(metadata.read_text()), "args": options()}))
    for flags in ((), ("--json",)):
        done = feedrate("import", run, "--out", out, "--force", *flags)
        assert done.status == 0, done.err
        without_secret(out, done.out, done.err)


@settings(max_examples=60)
@given(
    st.sampled_from(NAMES), st.sampled_from(["", "my_", "storage.", "x-"]), st.sampled_from(["", "_2"]),
    st.sampled_from(["{}: {}", "{}: [{}", "a: {{{}: {}", "{}:\n  {}: x"]),
)  # fmt: skip
def test_no_name_and_no_error_shows_a_secret(name, before, after, form):
    try:
        value = parse_yaml(form.format(f"{before}{name}{after}", SECRET), "x.yaml")
    except FeedrateError as error:
        value = str(error)
    assert SECRET not in repr(value)


def test_what_is_no_secret_stays():
    plain = {
        "tokens": 4,
        "max_tokens": 8,
        "tokenizer": "x",
        "key": 1,
        "keys": [2],
        "monkey": "a=b",
        "file_key": "k",
    }
    assert parse_yaml(yaml.safe_dump(plain), "x.yaml") == plain
