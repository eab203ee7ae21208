"""The pages in a real headless browser: nothing overflows, overlaps, is clipped or tiny; a silent console.

`make test-browser` installs Chromium and axe-core.
Pages at all widths are frames of one document, so that the browser starts once; a script of the test measures
them, and points at a dot of the answer's chart.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from synthetic_results import PAGES

WIDTHS = (400, 1400)
SMALLEST_PX = 10.0
"""Letters of a plot must not be drawn smaller than this."""
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.browser

MEASURE = """
function overlap(a, b) {
  const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
  const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
  return wide > 1.5 && high > 3;
}
function plots(doc) {
  const bad = [];
  for (const svg of doc.querySelectorAll('svg')) {
    const frame = svg.getBoundingClientRect();
    if (!frame.width) continue;  // the drawing for the other width
    const seen = [];
    for (const text of svg.querySelectorAll('text')) {
      const box = text.getBoundingClientRect();
      if (!text.textContent.trim() || getComputedStyle(text).opacity === '0') continue;
      const size = parseFloat(getComputedStyle(text).fontSize) * text.getScreenCTM().a;
      const turned = Math.abs(text.getScreenCTM().b) > 0.1;
      if (!turned && size < SMALLEST) bad.push(['tiny', text.textContent, size]);
      if (box.left < frame.left - 1 || box.right > frame.right + 1 ||
          box.top < frame.top - 1 || box.bottom > frame.bottom + 1) bad.push(['clipped', text.textContent]);
      for (const [other, name] of seen)
        if (overlap(box, other)) bad.push(['overlap', text.textContent, name]);
      seen.push([box, text.textContent]);
    }
  }
  return bad;
}
function pointed(doc) {
  const dots = [...doc.querySelectorAll('#plot-throughput .dot')];
  const dot = dots.find(e => e.getBoundingClientRect().width);
  return dot ? dot.querySelector('title').textContent : null;
}
window.addEventListener('load', () => {
  const found = {};
  for (const frame of document.querySelectorAll('iframe')) {
    const doc = frame.contentDocument, root = doc.documentElement;
    found[frame.name] = {
      overflow: root.scrollWidth - root.clientWidth,
      cut: [...doc.querySelectorAll('.scroll')].filter(
        e => e.scrollWidth > e.clientWidth + 1).map(e => e.innerText),
      plots: plots(doc),
      said: pointed(doc),
    };
  }
  document.getElementById('found').textContent = JSON.stringify(found);
});
"""


def in_browser(document: Path, profile: Path, *more: str) -> subprocess.CompletedProcess[str]:
    assert BROWSER is not None
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        "--disable-dev-shm-usage", "--enable-logging=stderr", f"--user-data-dir={profile}",
        *more, "--dump-dom", document.as_uri(),
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=150, check=True)


@pytest.fixture(scope="module")
def seen(
    tmp_path_factory: pytest.TempPathFactory, pages: dict[str, str], comparison_pages: dict[str, str]
) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("browser")
    frames = []
    for name, page in {**pages, **comparison_pages}.items():
        text = html.escape(page, quote=True)
        frames += [
            f'<iframe name="{name}-{width}" width="{width}" height="900" srcdoc="{text}"></iframe>'
            for width in WIDTHS
        ]
    script = MEASURE.replace("SMALLEST", str(SMALLEST_PX))
    document = folder / "pages.html"
    document.write_text(
        f'<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,"><script>{script}</script>'
        f'{"".join(frames)}<pre id="found"></pre>'
    )
    done = in_browser(document, folder / "profile")
    told = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    assert told, done.stderr
    found: dict[str, Any] = json.loads(html.unescape(told[1]))
    found["console"] = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return found


def test_the_console_stays_silent(seen: dict[str, Any]) -> None:
    assert seen["console"] == []


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", [*PAGES, "compared", "compared-long"])
def test_nothing_overflows_overlaps_or_is_tiny(seen: dict[str, Any], name: str, width: int) -> None:
    found = seen[f"{name}-{width}"]
    assert found["overflow"] <= 0
    assert found["cut"] == []
    assert found["plots"] == []


@pytest.mark.parametrize("width", WIDTHS)
def test_a_point_of_the_answers_chart_says_its_figures(seen: dict[str, Any], width: int) -> None:
    said = seen[f"multi-host-{width}"]["said"]
    assert said.startswith("1 process: 1.6")


AXE = """
window.addEventListener('load', () => axe.run(document).then(result => {
  const told = document.createElement('pre');
  told.id = 'found';
  told.textContent = JSON.stringify({
    passed: result.passes.length,
    violations: result.violations.map(v => [v.impact, v.id, v.help, v.nodes.map(n => n.html.slice(0, 200))]),
  });
  document.body.append(told);
}));
"""


@pytest.fixture(scope="module")
def axe() -> str:
    """The source of axe-core, which the package axe-playwright-python carries."""
    package = find_spec("axe_playwright_python")
    if package is None or package.origin is None:
        pytest.skip("axe-core is not installed: make test-browser")
    return (Path(package.origin).parent / "axe.min.js").read_text().replace("</script", "<\\/script")


@pytest.mark.parametrize("ground", ["light", "dark"])
@pytest.mark.parametrize("name", ["multi-host", "flagged", "compared"])
def test_axe_has_nothing_serious(
    name: str, ground: str, axe: str, pages: dict[str, str], comparison_pages: dict[str, str], tmp_path: Path
) -> None:
    document = tmp_path / "page.html"
    page = {**pages, **comparison_pages}[name]
    document.write_text(page.replace("</body>", f"<script>{axe}</script><script>{AXE}</script></body>"))
    scheme = f"--blink-settings=preferredColorScheme={1 if ground == 'light' else 0}"
    done = in_browser(document, tmp_path / "profile", scheme, "--virtual-time-budget=30000")
    told = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    assert told, done.stderr
    found = json.loads(html.unescape(told[1]))
    assert found["passed"] > 15, "the rules were tried"
    assert [each for each in found["violations"] if each[0] in ("serious", "critical")] == []
