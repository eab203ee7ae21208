"""Plug-ins by name. Installed packages offer them as entry points; feedrate's own are in its setup.cfg.

A plug-in is imported when it is used.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from emulator.errors import FeedrateError, MissingError


@cache
def _entry_points() -> Any:
    """Return the entry points of all groups, which takes 10 ms; their type depends on Python's version."""
    return entry_points()


def _is_own(point: EntryPoint) -> bool:
    """Return True if the plug-in is part of feedrate."""
    return point.module.partition(".")[0] == __package__


class Group(Collection[str]):
    """The plug-ins of one kind, by name."""

    def __init__(self, group: str, noun: str) -> None:
        self.group = f"feedrate.{group}"
        self.noun = noun
        self._loaded: dict[str, Any] = {}

    def _offers(self) -> dict[str, EntryPoint]:
        """Return the entry points by name: of those of one name feedrate's own, or the first on the path."""
        points = _entry_points()
        if not points.select(group="feedrate.verbs"):
            raise MissingError(
                "feedrate's own plug-ins are not installed",
                "pip install feedrate; make install in a checkout",
            )
        offers: dict[str, EntryPoint] = {}
        for point in points.select(group=self.group):
            first = offers.setdefault(point.name, point)
            if _is_own(point) and not _is_own(first):
                offers[point.name] = point
        return offers

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
            package = offer.dist.name if offer.dist else "?"
            try:
                self._loaded[name] = offer.load()
            except FeedrateError:
                raise
            except (Exception, SystemExit) as error:  # another package's module may raise anything
                why = " ".join(f"{type(error).__name__}: {error}".split())
                raise MissingError(
                    f"the {self.noun} {name} of the package {package} cannot be imported: {why}",
                    f"install {package} again, or uninstall it",
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
RULES = Group("rules", "set of rules")
"""Functions from the results of a set of runs, their own name, and True for the strictest division, to a line
for each rule that the set does not meet. A planned result has NaN for figures that are not measured yet."""
PAYLOADS = Group("payloads", "payload")
"""Modules, or objects, that implement `dataset.grow.SeedPayload`."""
FILLERS = Group("fillers", "filler")
"""Functions that make files of a dataset elsewhere, called like `plugins.dask.fill.fill`."""
GROUPS = (VERBS, FORMATS, STORES, LOADERS, KINDS, RULES, PAYLOADS, FILLERS)
