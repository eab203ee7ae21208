"""One self-contained HTML page of a result: inline SVG and CSS, no script, no network."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from emulator import __version__
from emulator.record.result import RunResult
from emulator.record.step import Steps
from emulator.record.store import write_whole
from emulator.report import checkpoint_plots
from emulator.report.baseline import Grid
from emulator.report.baseline_plots import drawings
from emulator.report.extras import extra
from emulator.report.facts import cards, facts
from emulator.report.hosts import HostRow, fullest, host_rows, shortened
from emulator.report.kinds import answer, grids, question, setting
from emulator.report.latency import measured
from emulator.report.plots import PICTURE, draw
from emulator.report.style import DARK, NARROW, WIDE, Size
from emulator.report.view import (
    computes,
    limits,
    marks,
    notes,
    number,
    percent,
    rows,
    title,
)
from emulator.units import show_rate, show_seconds

CAPTIONS = {
    "throughput": "All processes together. Dashed: what processes that never wait would read.",
    "per-process": "Bytes per second that each process gets. Dashed: what it asks for.",
    "utilisation": (
        "AU: nominal compute over elapsed time, as MLPerf Storage defines it. X/X_ideal: samples per second "
        "over what accelerators that never wait would consume. Both leave out the first step of an epoch."
    ),
    "step-time": (
        "Mean over all steps of all processes: compute is the emulated accelerator, wait is for data, "
        "barrier is the other processes, overshoot is the emulator itself."
    ),
    "latency": "One read request, as the loader sends it. Upper edges of histogram buckets.",
}
"""What each plot shows, in words."""
MOST_HOSTS = 24


def write_html(
    result: RunResult,
    steps: Steps,
    path: Path,
    beside: Sequence[Grid] = (),
    baselines: Sequence[RunResult] = (),
) -> None:
    """Write the page whole or not at all, with the tables `beside` and the plots of `baselines`.

    Raises MissingError, StorageError.
    """
    content = page(result, steps, beside, baselines).encode()
    write_whole(path, lambda file: file.write(content))


def page(
    result: RunResult, steps: Steps, beside: Sequence[Grid] = (), baselines: Sequence[RunResult] = ()
) -> str:
    """The page as text. `steps` may be empty. Raises MissingError."""
    return render(
        "page.html",
        result=result,
        title=title(result),
        setting=setting(result),
        marks=marks(result),
        question=question(result),
        answer=answer(result),
        cards=cards(result),
        rows=rows(result),
        grids=(*grids(result), *beside),
        figures=_figures(result, steps, PICTURE) + _baselines(result, baselines),
        latency_figure=next(iter(_figures(result, steps, ("latency",))), None),
        balance=_balance(result),
        latency=_latency(result),
        limits=limits(result),
        notes=notes(result),
        environment=facts(result.environment),
        storage=facts(result.storage),
        dataset=facts(result.dataset),
        workload=facts(
            {key: value for key, value in result.workload.items() if key != "sources"},
            result.workload.get("sources") or {},
        ),
        command=shlex.join(result.command),
    )


def render(template: str, **values: Any) -> str:
    """A template of this folder with the style sheet in it; every value is escaped. Raises MissingError."""
    jinja2 = extra("jinja2")
    folder = Path(__file__).parent
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    css = (folder / "page.css").read_text(encoding="utf-8") + _dark_plots()
    text: str = environment.get_template(template).render(
        css=extra("markupsafe").Markup(css), version=__version__, **values
    )
    return text


def _dark_plots() -> str:
    """Rules that give the colours of the plots their dark twins."""
    rules = "".join(
        f'  .plot [{what}="{light}"] {{ {what}: {dark}; }}\n'
        for light, dark in DARK.items()
        for what in ("fill", "stroke")
    )
    return f"@media screen and (prefers-color-scheme: dark) {{\n{rules}}}\n"


def _figures(result: RunResult, steps: Steps, names: tuple[str, ...]) -> list[dict[str, Any]]:
    captions = {name: _caption(result, name) for name in names}
    return figures(captions, lambda name, size: draw(name, result, steps, size))


def _baselines(result: RunResult, baselines: Sequence[RunResult]) -> list[dict[str, Any]]:
    found = [*drawings(result, baselines), *checkpoint_plots.drawings(result)]
    return [one for captions, drawn in found for one in figures(captions, drawn)]


def figures(captions: Mapping[str, str], draw: Callable[[str, Size], str | None]) -> list[dict[str, Any]]:
    """Every plot twice: drawn for a wide page and for a narrow one; CSS shows one of them."""
    found = []
    for name, caption in captions.items():
        wide, narrow = draw(name, WIDE), draw(name, NARROW)
        if wide is not None and narrow is not None:
            drawings = {"wide": inline(wide, f"{name}-wide"), "narrow": inline(narrow, f"{name}-narrow")}
            found.append({"name": name, "caption": caption, **drawings})
    return found


def _caption(result: RunResult, name: str) -> str:
    """The caption, without the dashed line where there is no ideal to draw."""
    text = CAPTIONS[name]
    return text if any(map(computes, result.points)) else text.partition(" Dashed:")[0]


def inline(svg: str, prefix: str) -> Any:
    """An SVG for a page that holds several: ids of its own, and as wide as its frame."""
    own = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{prefix}-", svg)
    head, tail = own.split(">", 1)
    wide = re.search(r'viewBox="0 0 ([0-9.]+)', head)
    head = re.sub(r'\s(width|height)="[^"]*"', "", head)
    limit = f' style="max-width:{wide[1]}px"' if wide else ""
    return extra("markupsafe").Markup(f'{head} role="presentation"{limit}>{tail}')


def _balance(result: RunResult) -> dict[str, Any] | None:
    point = fullest(result)
    if point is None or not point.hosts:
        return None
    found = host_rows(point)
    head, tail, between = shortened(found, MOST_HOSTS)
    top = max(row.bytes_per_second for row in found) or 1.0
    return {
        "ranks": f"{point.ranks:,}",
        "hosts": f"{len(found):,}",
        "several": len(found) > 1,
        "rate": show_rate(point.bytes_per_second),
        "head": [_host(row, top) for row in head],
        "tail": [_host(row, top) for row in tail],
        "between": f"{between:,}" if between else "",
    }


def _host(row: HostRow, top: float) -> dict[str, str]:
    return {
        "host": row.host,
        "ranks": f"{row.ranks:,}",
        "rate": show_rate(row.bytes_per_second),
        "bar": f"{row.bytes_per_second / top * 100:.1f}",
        "wait": percent(row.wait_share),
        "busy": percent(row.busy_share),
        "cost": number(row.cpu_seconds_per_gb, 2),
        "queue": number(row.runqueue, 2),
        "nic": "–" if row.nic_bytes_per_second is None else show_rate(row.nic_bytes_per_second),
    }


def _latency(result: RunResult) -> list[list[str]]:
    return [
        [f"{point.ranks:,}", *(show_seconds(value) for value in values)]
        for point, values in measured(result.points)
    ]
