"""The manual knows every limit, kind of answer and flag that the code has. `make docs` checks its links."""

import re
from pathlib import Path
from typing import get_args

import pytest

from emulator.record.result import BoundKind, KneeKind
from emulator.report.view import BOUNDS

ROOT = Path(__file__).resolve().parents[2]
LIMITS = (ROOT / "docs" / "limits.md").read_text()
FLAGS = sorted(
    {
        name
        for module in (ROOT / "emulator").rglob("*.py")
        for name in re.findall(r'Flag\([^)]*?name="([\w-]+)"', module.read_text())
    }
)


def test_flags_are_found():
    assert {"overshoot", "steal", "page-cache", "hidden"} <= set(FLAGS)


@pytest.mark.parametrize("flag", FLAGS)
def test_every_flag_is_explained(flag):
    assert f"| `{flag}` |" in LIMITS


@pytest.mark.parametrize("kind", get_args(BoundKind))
def test_every_limit_is_explained(kind):
    assert f"| {BOUNDS[kind]} |" in LIMITS


@pytest.mark.parametrize("kind", get_args(KneeKind))
def test_every_kind_of_answer_is_explained(kind):
    assert f"| `{kind}` |" in LIMITS
