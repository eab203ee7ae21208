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

from emulator.errors import SpecError
from emulator.record.result import Corner
from emulator.units import parse_bytes

SUITES = ("four-corners", "mixed", "sequential", "depths", "probe", "weka2020", "weka2023", "noisy-neighbour")
QUICK_DEPTHS = (1, 8, 32)


def access_of(corner: Corner) -> str:
    """Return a name such as `4 KiB random read`, `4 KiB random 70 % read` or `1 MiB sequential write`."""
    mib = corner.block_bytes / 2**20
    block = f"{mib:g} MiB" if mib >= 1 else f"{corner.block_bytes / 1024:g} KiB"
    mix = f"{100 * corner.read_share:.0f} % read"
    reads = {1.0: "read", 0.0: "write"}.get(corner.read_share, mix)
    return f"{block} {corner.pattern} {reads}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One run of the tool on all clients at once."""

    name: str
    corners: Mapping[str, Corner]
    """What runs, without figures, by the name of the section of a job file or of the phase of rados bench."""
    depth: int
    """Requests in flight of each job whose section has no depth of its own."""


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

    @property
    def jobs(self) -> list[str]:
        """Return the names of the sections with jobs."""
        return [name for name in self.sections if name != "global"]

    @property
    def files(self) -> int:
        """Number of files on a client."""
        return len(self.jobs) if self.together else self.clones

    def turns(self) -> tuple[Turn, ...]:
        """Return the runs in order."""
        if self.together:
            return tuple(self._turn_of(kinds) for kinds in self.together)
        return tuple(
            Turn(name=f"{job}-qd{depth}", corners={job: self._corner(job, depth)}, depth=depth)
            for job in self.jobs
            for depth in self.depths
        )

    def _turn_of(self, kinds: str) -> Turn:
        """Return the turn of the jobs whose names begin with `kinds`, such as `writer` or `writer+reader`."""
        neighbours = {"reader": "writers", "writer": "readers"} if "+" in kinds else {}
        corners = {
            job: self._corner(job, beside=neighbours.get(kind, "nothing"))
            for kind in kinds.split("+")
            for job in self.jobs
            if job.startswith(kind)
        }
        return Turn(name=kinds.replace("+", "-"), corners=corners, depth=1)

    def _corner(self, job: str, depth: int = 0, beside: str = "") -> Corner:
        """Return what a section measures. `depth` is for a section without iodepth."""
        parser = ConfigParser(allow_no_value=True, interpolation=None, delimiters=("=",))
        parser.read_string(self.sections[job])
        section = parser[job]
        action = section["rw"].removeprefix("rand")
        shares = {"read": 1.0, "write": 0.0, "rw": section.getint("rwmixread", 50) / 100}
        return Corner(
            pattern="random" if section["rw"].startswith("rand") else "sequential",
            # fio's k and m are binary.
            block_bytes=parse_bytes(section["bs"].upper() + "iB"),
            read_share=shares[action],
            depth=section.getint("iodepth", depth),
            jobs=self.clones,
            clients=1,
            beside=beside,
        )

    def text(self, names: Sequence[str], values: Mapping[str, object]) -> str:
        """Return the job file of the sections `names`, with `values` in place of the names in braces."""
        chosen = "".join(self.sections[name] for name in ("global", *names))
        # safe: fio's own variables, such as $jobnum, stay.
        return Template(chosen).safe_substitute(values)


def load_suite(name: str, clones: int = 0) -> Suite:
    """Read a job file of suites/ with what it includes; `clones` replaces its default."""
    folder = files(__package__) / "suites"
    text = (folder / f"{name}.fio").read_text()
    title = text.splitlines()[0].removeprefix("# ")
    defaults = re.search("^#feedrate (.*)$", text, re.M)
    options = dict(re.findall(r"(\w+)=(\S+)", defaults[1])) if defaults else {}
    # One file that fio can run by itself, wherever it is stored.
    text = text.replace("include global.fio\n", (folder / "global.fio").read_text())
    text = re.sub(r"^#.*\n", "", text, flags=re.M)
    heads_and_bodies = re.split(r"^\[(.+)\]\n", text, flags=re.M)[1:]
    sections = zip(heads_and_bodies[::2], heads_and_bodies[1::2], strict=True)
    return Suite(
        name=name,
        title=title,
        sections={head: f"[{head}]\n{body}" for head, body in sections},
        depths=tuple(map(int, options["depths"].split(","))) if "depths" in options else (),
        clones=clones or int(options.get("jobs", 1)),
        together=tuple(options["together"].split(",")) if "together" in options else (),
    )


def find_suite(
    name: str, depths: Sequence[int] = (), clones: int | None = None, *, quick: bool = False
) -> Suite:
    """Return a suite with `depths`, few of them if `quick`, and clones of its jobs. Raises SpecError."""
    if name not in SUITES:
        raise SpecError(f"--suite {name!r} is not known", "use one of: " + ", ".join(SUITES))
    suite = load_suite(name, clones or 0)
    if suite.together:
        if depths or clones:
            raise SpecError(f"the {name} suite fixes its depths and jobs", "leave --depths and --jobs out")
        return suite
    usual = QUICK_DEPTHS if quick else suite.depths
    return replace(suite, depths=tuple(depths) or usual)
