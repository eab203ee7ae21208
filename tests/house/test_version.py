"""The version stands in three places, which agree."""

import re
from pathlib import Path

from emulator import __version__

ROOT = Path(__file__).resolve().parents[2]


def test_citation_and_changelog_name_the_version():
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert __version__ in re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
