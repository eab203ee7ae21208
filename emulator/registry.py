"""Plug-ins by name. Installed packages offer them as entry points; feedrate's own are in its setup.cfg.

A plug-in is imported when it is used. The table of names is read once per process, directly from the files of
the installed packages: `importlib.metadata` takes 40 ms, a tenth of a rank's start, and this takes 2 ms.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator
from contextlib import suppress
from functools import cache, reduce
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from emulator.errors import FeedrateError, MissingError


class EntryPoint(NamedTuple):
    """The declaration of a plug-in by its package."""

    package: str
    value: str
    """`module` or `module:attribute`."""

    @property
    def own(self) -> bool:
        """True if it is part of feedrate."""
        return self.value.partition(".")[0] == __package__


@cache
def _entry_points() -> dict[str, dict[str, EntryPoint]]:
    """Return the entry points by group and name: of those of one name feedrate's own, or the first."""
    points: dict[str, dict[str, EntryPoint]] = {}
    places: list[tuple[bool, str, str]] = []
    for folder in sys.path:
        with suppress(OSError):
            for name in os.listdir(folder or "."):  # noqa: PTH208 - a Path for each takes longer
                kind = os.path.splitext(name)[1]  # noqa: PTH122
                if kind in (".dist-info", ".egg-info"):
                    places.append((kind == ".egg-info", folder, name))
    seen = set()
    # A build leaves an .egg-info in the checkout, which may be older than the installed package: it comes
    # last. Otherwise the first on the path is imported, whose order the sort preserves.
    for _, folder, name in sorted(places, key=lambda place: place[0]):
        package = name.partition("-")[0].partition(".egg-info")[0].lower()
        if package not in seen:
            seen.add(package)
            with suppress(OSError, UnicodeDecodeError):
                _read(Path(folder, name, "entry_points.txt"), package, points)
    return points


def _read(path: Path, package: str, found: dict[str, dict[str, EntryPoint]]) -> None:
    """Add the entry points in the file `path` to `found`. Raises OSError, UnicodeDecodeError."""
    text = path.read_text("utf-8")
    if "[feedrate." not in text:
        return
    group = ""
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if line.startswith("["):
            group = line.strip().strip("[]")
        elif equals and group.startswith("feedrate."):
            offers, offer = found.setdefault(group, {}), EntryPoint(package, value.strip())
            first = offers.setdefault(name.strip(), offer)
            if offer.own and not first.own:
                offers[name.strip()] = offer


class Group(Collection[str]):
    """The plug-ins of one kind, by name."""

    def __init__(self, group: str, noun: str) -> None:
        self.group = f"feedrate.{group}"
        self.noun = noun
        self._loaded: dict[str, Any] = {}

    def _offers(self) -> dict[str, EntryPoint]:
        points = _entry_points()
        if "feedrate.verbs" not in points:
            raise MissingError(
                "feedrate's own plug-ins are not installed",
                "pip install feedrate; make install in a checkout",
            )
        return points.get(self.group, {})

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._offers()))

    def __len__(self) -> int:
        return len(self._offers())

    def __contains__(self, name: object) -> bool:
        return name in self._offers()

    def __str__(self) -> str:
        return ", ".join(self)

    def load(self, name: str) -> Any:
        """Return the plug-in of that name. Raises MissingError if there is none, or it cannot be imported.

        If two packages offer the same name, feedrate's own is taken, or the first on the path.
        """
        if name not in self._loaded:
            if name not in self:
                raise MissingError(
                    f"no installed package has the {self.noun} {name}", "install the package that provides it"
                )
            offer = self._offers()[name]
            module, _, attribute = offer.value.partition("[")[0].strip().partition(":")
            try:
                plugin = import_module(module)
                self._loaded[name] = reduce(getattr, attribute.split("."), plugin) if attribute else plugin
            except FeedrateError:
                raise
            except (Exception, SystemExit) as error:  # another package's module may raise anything
                why = " ".join(f"{type(error).__name__}: {error}".split())
                raise MissingError(
                    f"the {self.noun} {name} of the package {offer.package} cannot be imported: {why}",
                    f"install {offer.package} again, or uninstall it",
                ) from error
        return self._loaded[name]

    def working(self) -> Iterator[tuple[str, Any]]:
        """Yield name and plug-in of each one that can be imported."""
        for name in self:
            with suppress(MissingError):
                yield name, self.load(name)


VERBS = Group("verbs", "command")
"""Functions, whose parameters are the options and whose docstring is the help."""
FORMATS = Group("formats", "file format")
"""Subclasses of `dataset.formats.base.Format`."""
STORES = Group("stores", "store")
"""Subclasses of `storage.base.Store`, by the scheme of their URLs."""
LOADERS = Group("loaders", "loader")
"""Objects of `loader.base.LoaderPlugin`."""
KINDS = Group("kinds", "kind of result")
"""Modules, or objects, that implement `report.view.Kind`."""
NOISE = Group("noise", "noise")
"""Modules, or objects, that implement `sweep.noise.Noise`, by the word that `--noise` begins with."""
RULES = Group("rules", "set of rules")
"""Functions from the results of a set of runs, their own name, and True for the strictest division, to a line
for each rule that the set does not meet. A planned result has NaN for figures that are not measured yet."""
GROUPS = (VERBS, FORMATS, STORES, LOADERS, KINDS, NOISE, RULES)
