"""Damaged trees: no result differs from that of the intact tree without a word in the result."""

from __future__ import annotations

import json
import math
import random
import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from artefacts import Run
from test_trees import checkpoint_run

from emulator.config.reader import to_plain
from emulator.errors import FeedrateError
from emulator.plugins.mlperf.results import Imports, import_folder, results_of

SEEDS, TREES = (32, 202, 203), 500
DAMAGES = ("truncate", "flip", "swap", "delete")
LOST = ("seed", "saved", "au_met")
"""Facts of a run that become unknown without a figure that changes."""
ONCE = ("slowest_rank", "host", "named", "start", "end")
"""Facts that one document alone has: a rank's file does not say its rank, v1.0 names a host once, and a run
may have started up to an hour before its first epoch, and ended after its last."""
TOLD = ("flags", "created", "command", "title", "sources", "verdict", "knee", "from_logs")
"""What says it, or follows from the figures."""
START = datetime(2026, 1, 1)


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    """Published runs as MLPerf's rules ask for them: 3D U-Net in two layouts, and checkpoints."""
    root = tmp_path_factory.mktemp("published")
    as_asked = {"batch": 7, "step": 0.323, "record": 146_600_628, "epochs": 5, "first": 0.4}
    for number in range(2):
        start = START + timedelta(hours=number)
        run = Run(**as_asked, steps=10, start=start)
        run.write(root / f"closed/One/results/sys/unet3d_h100/run{number}", "v1.0", logs=False, seed=number)
        place = root / f"closed/Two/results/sys/training/unet3d/run/{start:%Y%m%d_%H%M%S}"
        newer = replace(run, oversleep=0.0005, teardown=4.3)  # v3.0 logs sleeps as they were
        newer.write(place, "v3.0", seed=number)
    for number, verb in enumerate(("save", "load")):
        start = START + timedelta(hours=number)
        place = root / f"closed/Two/results/sys/checkpointing/llama3-8b/{start:%Y%m%d_%H%M%S}"
        checkpoint_run(place, verb, start)
    return root


def results(imports: Imports) -> dict[str, dict[str, Any]]:
    """The results by name, as run.json would have them."""
    made = results_of(imports, ())
    found = [result for result, _ in made.values()]
    for result in found:
        result.environment["named"] = result.environment.pop("hosts", None)
    flags = [
        flag for result in found for flag in (*result.flags, *(f for p in result.points for f in p.flags))
    ]
    for why in (why for reasons in imports.notes.values() for why in reasons):
        assert any(why in flag.sentence for flag in flags), why
    return {name: json.loads(json.dumps(to_plain(result, named=True))) for name, (result, _) in made.items()}


def differences(one: Any, other: Any, where: str = "") -> Iterator[str]:
    """Places where two results differ by more than 1 %."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted({*one, *other} - {*TOLD, *ONCE}):
            if not (key in LOST and other.get(key) is None):
                yield from differences(one.get(key), other.get(key), f"{where}/{key}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for number, pair in enumerate(zip(one, other, strict=True)):
            yield from differences(*pair, f"{where}/{number}")
    elif type(one) in (int, float) and type(other) in (int, float):
        if not math.isclose(one, other, rel_tol=0.01, abs_tol=0.005):
            yield f"{where}: {one} became {other}"
    elif one != other:
        yield f"{where}: {str(one)[:60]} became {str(other)[:60]}"


def damage(root: Path, dice: random.Random) -> str:
    """Damage one or two files below `root`; say how."""
    files = sorted(path for path in root.rglob("*") if path.is_file())
    path, how = dice.choice(files), dice.choice(DAMAGES)
    whole, at = path.read_bytes(), 0
    if how == "truncate":
        at = dice.randrange(len(whole))
        path.write_bytes(whole[:at])
    elif how == "flip":
        digits = [place for place, byte in enumerate(whole) if chr(byte).isdigit()]
        at = dice.choice(digits) if digits and dice.random() < 0.5 else dice.randrange(len(whole))
        new = ord(dice.choice("0123456789")) if at in digits else whole[at] ^ 1 << dice.randrange(8)
        path.write_bytes(whole[:at] + bytes([new]) + whole[at + 1 :])
    elif how == "swap":
        alike = [file for file in files if file != path and file.suffix == path.suffix]
        other = dice.choice(alike)
        path.write_bytes(other.read_bytes())
        other.write_bytes(whole)
        return f"{how} {path.relative_to(root)} {other.relative_to(root)}"
    else:
        path.unlink()
    return f"{how} {path.relative_to(root)} at {at}"


def test_the_intact_tree_says_nothing(tree):
    imports = import_folder(tree)
    assert not imports.notes and not imports.skipped and len(imports.runs) == 6
    assert set(results(imports)) == {"One-sys-unet3d-h100", "Two-sys-unet3d-h100", "Two-sys-llama3-8b"}


@pytest.mark.parametrize(
    ("file", "was", "became", "said"),
    [
        ("unet3d_h100/run0/configs/config.yaml", "68341808", "68341802", "bytes_sd is 68341802 here"),
        ("training/unet3d/run/20260101_000000/1_output.json", "0.7235", "0.7435", "its start and end 3.7"),
        ("training/unet3d/run/20260101_000000/1_output.json", "0.3235", "0.3135", "compute is 0.3135 to"),
        (
            "training/unet3d/run/20260101_000000/summary.json",
            "        16.0",
            "16.4",
            "host_memory_GB is 16.4",
        ),
        ("training/unet3d/run/20260101_000000/summary.json", "        8\n", "48\n", "host_cpu_count is 48"),
        ("unet3d_h100/run0/summary.json", "00:00:00", "00:00:30", "start is 2026-01-01T00:00:30, but the"),
        ("unet3d_h100/run0/summary.json", "2026-", "2025-", "start is 2025-01-01T00:00:00, but the first"),
        ("checkpointing/llama3-8b/20260101_000000/summary.json", "52.35", "51.35", "52.35 by its rank 0"),
        ("checkpointing/llama3-8b/20260101_000000/summary.json", "[96,", "[16,", "host_cpu_count is 8 of a"),
    ],
)
def test_a_digit_that_another_document_knows_is_said(file, was, became, said, tree, tmp_path):
    shutil.copytree(tree, tmp_path / "tree")
    (path,) = (tmp_path / "tree").glob(f"closed/*/results/sys/{file}")
    assert was in path.read_text()
    path.write_text(path.read_text().replace(was, became, 1))
    ((_, (why,)),) = import_folder(tmp_path / "tree").notes.items()
    assert said in why


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", SEEDS)
def test_no_damage_is_silent(seed, tree, tmp_path):
    dice, intact = random.Random(seed), results(import_folder(tree))
    silent = []
    for number in range(TREES):
        root = tmp_path / "damaged"
        shutil.copytree(tree, root)
        how = damage(root, dice)
        try:
            imports = import_folder(root)
        except FeedrateError:
            continue
        finally:
            shutil.rmtree(root)
        differ = list(differences(intact, results(imports)))
        if differ and not imports.skipped and not imports.notes:
            silent.append(f"{number}: {how}: {'; '.join(differ[:3])}")
    assert not silent, "\n".join(silent)
