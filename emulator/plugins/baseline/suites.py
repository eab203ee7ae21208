"""Suites: fio's job files in suites/, each with its title, its default queue depths and jobs in its head.

Sources: the two WekaFS briefs (2020, 2023) and the noisy-neighbour brief (2023); results/README.md has their
titles.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from configparser import ConfigParser
from dataclasses import dataclass, replace
from importlib.resources import files
from string import Template
from typing import Literal

from emulator.errors import SpecError
from emulator.units import parse_bytes

SUITES = ("four-corners", "mixed", "sequential", "depths", "probe", "weka2020", "weka2023", "noisy-neighbour")
QUICK_DEPTHS = (1, 8, 32)

PatternKind = Literal["random", "sequential"]


def access_name(pattern: str, block_bytes: int, read_share: float) -> str:
    """Return a name such as `4 KiB random read`, `4 KiB random 70 % read` or `1 MiB sequential write`."""
    mib = block_bytes / 2**20
    block = f"{mib:g} MiB" if mib >= 1 else f"{block_bytes / 1024:g} KiB"
    reads = {1.0: "read", 0.0: "write"}.get(read_share, f"{read_share:.0%} read".replace("%", " %"))
    return f"{block} {pattern} {reads}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The access pattern of one section of a job file, or of one phase of rados bench."""

    name: str
    pattern: PatternKind
    block_bytes: int
    read_share: float
    """Share of the requests that read (0 to 1)."""
    depth: int
    """Requests in flight of each of its clones; 0 if the suite sweeps it."""
    beside: str = ""
    """Jobs that run at the same time: `nothing`, `writers` or `readers`; empty outside of noisy-neighbour."""

    @property
    def access(self) -> str:
        return access_name(self.pattern, self.block_bytes, self.read_share)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One run of the tool on all clients at once."""

    name: str
    jobs: tuple[Job, ...]
    depth: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """A job file with its defaults."""

    name: str
    title: str
    sections: Mapping[str, str]
    """Text of each section by name, in the order of the file; `global` is the first."""
    depths: tuple[int, ...]
    """Queue depths to sweep; empty if its jobs have fixed ones."""
    clones: int
    """Clones of each job on a client."""
    together: tuple[str, ...] = ()
    """Jobs that run at once, by the beginnings of their names: `writer`, `writer+reader`."""

    def turns(self) -> tuple[Turn, ...]:
        """Return the runs in order."""
        jobs = [_job(name, text) for name, text in self.sections.items() if name != "global"]
        if not self.together:
            return tuple(
                Turn(name=f"{job.name}-qd{depth}", jobs=(replace(job, depth=depth),), depth=depth)
                for job in jobs
                for depth in self.depths
            )
        turns = []
        for kinds in self.together:
            others = {"reader": "writers", "writer": "readers"} if "+" in kinds else {}
            some = tuple(
                replace(job, beside=others.get(kind, "nothing"))
                for kind in kinds.split("+")
                for job in jobs
                if job.name.startswith(kind)
            )
            turns.append(Turn(name=kinds.replace("+", "-"), jobs=some, depth=1))
        return tuple(turns)

    @property
    def files(self) -> int:
        """Number of files on a client."""
        return len(self.sections) - 1 if self.together else self.clones

    def text(self, names: Sequence[str], values: Mapping[str, object]) -> str:
        """Return the job file of the sections `names`, with `values` in place of the names in braces."""
        chosen = "".join(self.sections[name] for name in ("global", *names))
        return Template(chosen).safe_substitute(values)


def _job(name: str, text: str) -> Job:
    parser = ConfigParser(allow_no_value=True, interpolation=None, delimiters=("=",))
    parser.read_string(text)
    section = parser[name]
    action = section["rw"].removeprefix("rand")
    shares = {"read": 1.0, "write": 0.0, "rw": section.getint("rwmixread", 50) / 100}
    return Job(
        name=name,
        pattern="random" if section["rw"].startswith("rand") else "sequential",
        block_bytes=parse_bytes(section["bs"].upper() + "iB"),
        read_share=shares[action],
        depth=section.getint("iodepth", 0),
    )


def load_suite(name: str, clones: int = 0) -> Suite:
    """Read a job file of suites/ with what it includes; `clones` replaces its default."""
    folder = files(__package__) / "suites"
    text = (folder / f"{name}.fio").read_text()
    head = re.search("^#feedrate (.*)$", text, re.M)
    options = dict(re.findall(r"(\w+)=(\S+)", head[1])) if head else {}
    included = text.replace("include global.fio\n", (folder / "global.fio").read_text())
    parts = re.split(r"^\[(.+)\]\n", re.sub(r"^#.*\n", "", included, flags=re.M), flags=re.M)[1:]
    return Suite(
        name=name,
        title=text.partition("\n")[0].removeprefix("# "),
        sections={head: f"[{head}]\n{body}" for head, body in zip(parts[::2], parts[1::2], strict=True)},
        depths=tuple(map(int, options["depths"].split(","))) if "depths" in options else (),
        clones=clones or int(options.get("jobs", 1)),
        together=tuple(options["together"].split(",")) if "together" in options else (),
    )


def find_suite(name: str, depths: Sequence[int] = (), clones: int | None = None) -> Suite:
    """Return a suite, with other queue depths or clones of its jobs. Raises SpecError."""
    if name not in SUITES:
        raise SpecError(f"--suite {name!r} is not known", "use one of: " + ", ".join(SUITES))
    suite = load_suite(name, clones or 0)
    if suite.together and (depths or clones):
        raise SpecError(f"the {name} suite fixes its depths and jobs", "leave --depths and --jobs out")
    return replace(suite, depths=tuple(depths) or suite.depths)
