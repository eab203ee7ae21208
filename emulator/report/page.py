"""The figures beside the answer, and nested facts (workload, environment) as flat rows of text."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from emulator import __version__
from emulator.errors import SpecError
from emulator.files import write_whole
from emulator.record.folder import RESULT, read_result
from emulator.record.result import Knee, Point, RunResult
from emulator.record.steps import Steps
from emulator.report.drawing import DARK, NARROW, WIDE, Size, extra
from emulator.report.figures import PICTURE, draw
from emulator.report.kinds import answer, grids, question, setting
from emulator.report.rows import mean_demand, ordered
from emulator.report.tables import HostRow, fullest, host_rows, shortened
from emulator.report.view import (
    NONE,
    Grid,
    computes,
    limits,
    marks,
    measured,
    notes,
    number,
    percent,
    rows,
    title,
)
from emulator.satellites.baseline.figures import drawings
from emulator.satellites.baseline.report import against
from emulator.satellites.checkpoint import figures as checkpoint_plots
from emulator.satellites.systems.efficiency import efficiency_grid
from emulator.satellites.systems.system import System, load_system
from emulator.units import show_bytes, show_rate, show_seconds

MOST_ITEMS = 12
"""Items of a list that are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One figure with its name and what it means."""

    name: str
    value: str
    detail: str


def cards(result: RunResult) -> list[Card]:
    """The few figures that answer the question, the knee first."""
    points = ordered(result)
    if not points:
        return []
    found = _knee_cards(result, result.knee, points) if result.knee else []
    one = mean_demand(points)
    if one is not None:
        found.append(Card(name="One process asks for", value=show_rate(one), detail=_step(result)))
    last = points[-1]
    detail = f"at {last.ranks:,} process{'es' if last.ranks > 1 else ''}"
    if computes(last):
        detail += f", AU {percent(last.au)}\N{NO-BREAK SPACE}%"
    found.append(Card(name="Largest count", value=show_rate(last.bytes_per_second), detail=detail))
    return found


def _knee_cards(result: RunResult, knee: Knee, points: list[Point]) -> list[Card]:
    share = result.workload.get("training", {}).get("au_threshold", 0.9)
    most = points[-1].ranks
    found = [
        Card(
            name=f"Knee, {share * 100:g} % of ideal",
            value="none seen" if knee.n_au is None else number(knee.n_au, 3),
            detail=f"in counts from {points[0].ranks:,} to {most:,}"
            if knee.n_au is None
            else _interval(knee),
        )
    ]
    if knee.n_98 is not None:
        found.append(
            Card(
                name="Onset, 98 % of ideal", value=number(knee.n_98, 3), detail="each process begins to slow"
            )
        )
    one = mean_demand(points)
    if knee.n_saturation is not None and one is not None:
        detail = f"what {number(knee.n_saturation, 3)} processes ask for"
        found.append(Card(name="Saturates at", value=show_rate(knee.n_saturation * one), detail=detail))
    if knee.peak_samples_per_second is not None:
        value = number(knee.peak_samples_per_second, 4)
        found.append(Card(name="Peak, samples/s", value=value, detail="throughput falls after it"))
    return found


def _interval(knee: Knee) -> str:
    if knee.interval is None:
        return "no interval"
    return f"95 % interval {number(knee.interval[0], 3)} to {number(knee.interval[1], 3)}"


def _step(result: RunResult) -> str:
    batch = result.workload.get("loader", {}).get("batch_size")
    seconds = result.workload.get("accelerator", {}).get("step_seconds")
    if batch is None or seconds is None:
        return ""
    return f"{batch} sample{'s' if batch != 1 else ''} every {show_seconds(float(seconds))}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One row: a dotted key, its value, and where the value comes from."""

    key: str
    value: str
    source: str = ""


def facts(table: Mapping[str, Any], sources: Mapping[str, str] | None = None) -> list[Fact]:
    """All values of a nested table as rows, in its order; `sources` maps dotted keys to words."""
    known = sources or {}
    return [
        Fact(key=key, value=show(key, value), source=known.get(key, "")) for key, value in _flat(table, "")
    ]


def _flat(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from _flat(value, f"{key}.")
        elif isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value):
            for place, item in enumerate(value[:MOST_ITEMS]):
                yield from _flat(item, f"{key}.{place}.") if isinstance(item, Mapping) else ((key, item),)
            if len(value) > MOST_ITEMS:
                yield key, f"and {len(value) - MOST_ITEMS:,} more"
        else:
            yield key, value


def show(key: str, value: Any) -> str:
    """A value for people: sizes, rates and durations by the name of their key, others as they are."""
    if value is None:
        return NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        more = f" and {len(value) - MOST_ITEMS:,} more" if len(value) > MOST_ITEMS else ""
        return (", ".join(map(str, value[:MOST_ITEMS])) or NONE) + more
    if not isinstance(value, int | float):
        return str(value)
    name = key.rpartition(".")[2]
    if "bytes" in name or name == "memory":
        return f"{show_bytes(value)} ({value:,})" if abs(value) >= 1000 else f"{value} B"
    if name.endswith("rate"):
        return show_rate(value)
    if name.endswith(("seconds", "timeout", "latency")) and math.isfinite(value):
        return show_seconds(value)
    return f"{value:,}" if isinstance(value, int) and name != "seed" else f"{value}"


# ---- What belongs on one page: a result, the baselines beside it, the systems that it ran on.


_FIRST = ("sweep", "run", "simulated", "imported", "checkpoint", "baseline")
"""Which kind of result leads a page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """The parts of one page."""

    main: Path
    """OUT of the result that leads."""
    baselines: tuple[tuple[str, RunResult], ...]
    """Name and result of each baseline beside it."""
    systems: tuple[System, ...]
    checkpoints: tuple[tuple[str, RunResult], ...] = ()
    """Name and result of each checkpoint run beside it."""


def gather(out: Path, baselines: Sequence[Path], systems: Sequence[str]) -> Gathered:
    """The parts for `out`: a result, or a folder that holds results and system files.

    In a folder the sweep leads (of several the one made last), baselines and checkpoint runs stand beside it,
    and every system file is measured against its knee. Raises SpecError, StorageError.
    """
    found = [(path.name, _baseline(path)) for path in baselines]
    loaded = [load_system(name) for name in systems]
    if not out.is_dir() or (out / RESULT).is_file():
        main = out.parent if out.suffix == ".json" else out
        return Gathered(main=main, baselines=tuple(found), systems=tuple(loaded))
    held = {path.parent: read_result(path) for path in sorted(out.glob(f"*/{RESULT}"))}
    if not held:
        read_result(out)  # says what is missing
    main = min(held, key=lambda path: (_FIRST.index(held[path].kind), _reversed(held[path].created)))
    found += [(path.name, one) for path, one in held.items() if one.kind == "baseline" and path != main]
    loaded += [load_system(str(path)) for path in sorted(out.glob("*.toml"))]
    written = [(path.name, one) for path, one in held.items() if one.kind == "checkpoint" and path != main]
    return Gathered(main=main, baselines=tuple(found), systems=tuple(loaded), checkpoints=tuple(written))


def _baseline(path: Path) -> RunResult:
    result = read_result(path)
    if result.kind != "baseline":
        raise SpecError(f"{path} is no baseline but a {result.kind}", "feedrate baseline makes one")
    return result


def _reversed(created: str) -> tuple[int, ...]:
    """A key that puts the latest time first."""
    return tuple(-ord(letter) for letter in created)


def beside(result: RunResult, found: Gathered) -> tuple[Grid, ...]:
    """The tables that stand beside a result: training against fio, the baselines, the efficiency."""
    tables: list[Grid] = []
    for name, baseline in found.baselines:
        if result.kind not in ("baseline", "checkpoint"):
            tables.append(_named(against(result, baseline), name))
        tables += [_named(grid, name) for grid in grids(baseline)]
    for name, one in found.checkpoints:
        tables += [_named(grid, name) for grid in grids(one)]
    if found.systems:
        fed = result.knee.n_au if result.knee else None
        tables.append(efficiency_grid(found.systems, [fed] * len(found.systems)))
    return tuple(grid for grid in tables if grid.rows)


def _named(grid: Grid, name: str) -> Grid:
    return replace(grid, caption=f"{grid.caption} ({name})")


# ---- One self-contained HTML page of a result: inline SVG and CSS, no script, no network.


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
    write_whole(path, content)


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
